"""The inverse under forward AD and ``torch.func``: every rule that torch can ask for. Times nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch, _len_torch_dispatch_stack
from torch._C._functorch import TransformType

from autoinv.calls.answer import torchs_own, untimed_answer
from autoinv.calls.library_op import INV_OP
from autoinv.calls.state import is_transformed, wants_gradient
from autoinv.ops.inv.rules import backward_of_inverse, forward_of_inverse


class TransformedInverse(torch.autograd.Function):
    """The inverse with its rules for reverse mode, forward mode and vmap, in any order and depth."""

    @staticmethod
    def forward(A: Tensor) -> Tensor:
        """Invert the tensor below all transforms."""
        return _bare_inverse(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep the inverse: all derivatives are functions of it."""
        del inputs
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        """Return -X^H G X^H."""
        (X,) = ctx.saved_tensors
        return backward_of_inverse(X, G)

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> Tensor:
        """Return -X dA X."""
        (X,) = ctx.saved_tensors
        return forward_of_inverse(X, dA)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], A: Tensor) -> tuple[Tensor, int]:
        """Invert the mapped matrices as one batch."""
        del info
        return _apply(A.movedim(in_dims[0], 0)), 0


SMALL = 300_000
"""Below so many matrices times n^3, torch's own rules under ``grad`` and ``jvp`` are the faster ones.

Those of a Function cost some 400 us a call in Python: ``vmap(grad(inv))`` of 80 3x3 took 745 us, with torch's
own call 312; from about 10,000 3x3 or 100 16x16 on the strategy has saved that.
"""


def _is_small(A: Tensor) -> bool:
    if _len_torch_dispatch_stack():
        return False  # a graph is to hold the op
    n = A.shape[-1]
    while _functorch.is_functorch_wrapped_tensor(A):
        A = _functorch.get_unwrapped(A)
    return A.numel() * n < SMALL


def _apply(A: Tensor) -> Tensor:
    X: Tensor = TransformedInverse.apply(A)  # type: ignore[no-untyped-call]
    return X


def _bare_inverse(A: Tensor) -> Tensor:
    return INV_OP(A) if _len_torch_dispatch_stack() else untimed_answer(A)


def transformed_inverse(A: Tensor) -> Tensor:
    """Return the inverse of a tensor while a transform or forward AD is active.

    Raises:
        torch.linalg.LinAlgError: when a matrix is singular, also one of a mapped batch.
    """
    levels = _functorch.get_interpreter_stack() or ()
    if A.dim() < 2 or any(level.key() == TransformType.Functionalize for level in levels):
        return torchs_own(A)  # its error; and torch has no rule for Functions under `functionalize`
    return _below_vmap(A)


def _below_vmap(A: Tensor) -> Tensor:
    """Take mapped dims off as leading batch dims, one level at a time; what is left is answered by the rules.

    The Function's own rule does the same, through ten times the Python: torch.vmap(inv) took 174 us for
    80 3x3, torch.vmap(torch.linalg.inv) 74.
    """
    level = _functorch.peek_interpreter_stack()
    if level is None:
        return _apply(A) if is_transformed() or wants_gradient(A) else _bare_inverse(A)
    if level.key() != TransformType.Vmap:
        return torchs_own(A) if _is_small(A) else _apply(A)
    depth = level.level()
    is_mapped = _functorch.is_batchedtensor(A) and _functorch.maybe_get_level(A) == depth
    mapped_dim = _functorch.maybe_get_bdim(A) if is_mapped else 0
    popped = _functorch.pop_dynamic_layer_stack()
    try:
        matrices = _functorch.get_unwrapped(A) if is_mapped else A
        X = _below_vmap(matrices.movedim(mapped_dim, 0) if mapped_dim else matrices)
    finally:
        _functorch.push_dynamic_layer_stack(popped)
    return _functorch._add_batch_dim(X, 0, depth) if is_mapped else X
