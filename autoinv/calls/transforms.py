"""An operation under forward AD and ``torch.func``: every rule that torch can ask for. Times nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch, _len_torch_dispatch_stack
from torch._C._functorch import TransformType

from autoinv.calls.answer import torchs_own, untimed_answer
from autoinv.calls.batching import with_leading_batch
from autoinv.calls.call import Call
from autoinv.calls.gradient import operand_gradients
from autoinv.calls.state import is_transformed, wants_gradient
from autoinv.operation import Operands


class Transformed(torch.autograd.Function):
    """An operation with its rules for reverse mode, forward mode and vmap, in any order and depth."""

    @staticmethod
    def forward(call: Call, *operands: Tensor) -> Tensor:
        """Compute on the tensors below all transforms."""
        return _bare_answer(call, operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the derivatives are functions of."""
        call, *operands = inputs
        ctx.rules = call.operation.rules
        ctx.shapes = [x.shape for x in operands] if len(operands) > 1 else None
        saved = ctx.rules.saved(tuple(operands), output)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        """Return the operands' gradients."""
        wanted = ctx.needs_input_grad[1:]
        return (None, *operand_gradients(ctx.rules, ctx.saved_tensors, G, wanted, ctx.shapes))

    @staticmethod
    def jvp(ctx: Any, call: None, *tangents: Tensor | None) -> Tensor:
        """Return the tangent of the result."""
        del call
        tangent: Tensor = ctx.rules.jvp(ctx.saved_tensors, tangents)
        return tangent

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *operands: Tensor) -> tuple[Tensor, int]:
        """Compute the mapped operands as one batch."""
        del info
        return _apply(call, with_leading_batch(call.operation, operands, in_dims[1:])), 0


SMALL = 300_000
"""Below so many multiplications, torch's own rules under ``grad`` and ``jvp`` are the faster ones.

Those of a Function cost some 400 us a call in Python: ``vmap(grad(inv))`` of 80 3x3 took 745 us, with torch's
own call 312; from about 10,000 3x3 or 100 16x16 on the strategy has saved that.
"""


def _is_small(call: Call, operands: Operands) -> bool:
    if _len_torch_dispatch_stack():
        return False  # a graph is to hold the op
    operation, shapes = call.operation, [x.shape for x in operands]
    if not operation.fits(*shapes):
        return True  # torch's own error
    mapped = max(_unwrapped(x).numel() / max(x.numel(), 1) for x in operands)
    return mapped * math.prod(operation.batch_shape(shapes)) * operation.work(*shapes) < SMALL


def _unwrapped(A: Tensor) -> Tensor:
    while _functorch.is_functorch_wrapped_tensor(A):
        A = _functorch.get_unwrapped(A)
    return A


def _apply(call: Call, operands: Operands) -> Tensor:
    result: Tensor = Transformed.apply(call, *operands)  # type: ignore[no-untyped-call]
    return result


def _bare_answer(call: Call, operands: Operands) -> Tensor:
    return (
        call.library_op(*operands)
        if _len_torch_dispatch_stack()
        else untimed_answer(call.dispatcher, operands)
    )


def transformed(call: Call, operands: Operands) -> Tensor:
    """Answer while a transform or forward AD is active.

    Raises:
        torch.linalg.LinAlgError: when there is no answer, say for a singular matrix, also one of a mapped batch.
    """
    levels = _functorch.get_interpreter_stack() or ()
    is_functionalized = any(level.key() == TransformType.Functionalize for level in levels)
    if is_functionalized or not call.operation.fits(*[x.shape for x in operands]):
        return torchs_own(call.operation, operands)  # its error; no Function works under `functionalize`
    return _below_vmap(call, operands)


def _below_vmap(call: Call, operands: Operands) -> Tensor:
    """Take mapped dims off as leading batch dims, one level at a time; what is left is answered by the rules.

    The Function's own rule does the same, through ten times the Python: torch.vmap(inv) took 174 us for
    80 3x3, torch.vmap(torch.linalg.inv) 74.
    """
    level = _functorch.peek_interpreter_stack()
    if level is None:
        needs_rules = is_transformed() or wants_gradient(*operands)
        return _apply(call, operands) if needs_rules else _bare_answer(call, operands)
    if level.key() != TransformType.Vmap:
        return torchs_own(call.operation, operands) if _is_small(call, operands) else _apply(call, operands)
    depth = level.level()
    below: list[Tensor] = []
    mapped_dims: list[int | None] = []
    for x in operands:
        is_mapped = _functorch.is_batchedtensor(x) and _functorch.maybe_get_level(x) == depth
        mapped_dims.append(_functorch.maybe_get_bdim(x) if is_mapped else None)
        below.append(_functorch.get_unwrapped(x) if is_mapped else x)
    popped = _functorch.pop_dynamic_layer_stack()
    try:
        result = _below_vmap(call, with_leading_batch(call.operation, below, mapped_dims))
    finally:
        _functorch.push_dynamic_layer_stack(popped)
    if all(d is None for d in mapped_dims):
        return result
    mapped: Tensor = _functorch._add_batch_dim(result, 0, depth)
    return mapped
