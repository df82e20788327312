"""The derivative of the inverse, one for all strategies: dX = -X dA X, and backward -X^H G X^H.

Source: M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008), 2.2.3; torch's convention for complex numbers (conjugate Wirtinger).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack

from autoinv.ops._inv_answer import answer, untimed_answer
from autoinv.ops._inv_op import INV_OP
from autoinv.ops._inv_backward import backward_of_inverse


class PlainInverse(torch.autograd.Function):
    """The inverse in plain eager mode, where only reverse mode can be wanted.

    Without ``setup_context``, ``jvp`` and ``vmap`` torch calls it in 7 us instead of 18.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        """Invert by the chosen strategy, tuned and remembered like any other call."""
        X = answer(A)
        ctx.save_for_backward(X)
        return X

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        """Return -X^H G X^H."""
        (X,) = ctx.saved_tensors
        return backward_of_inverse(X, G)


class TransformedInverse(torch.autograd.Function):
    """The inverse under forward AD and ``torch.func``: every rule that torch can ask for. Times nothing."""

    @staticmethod
    def forward(A: Tensor) -> Tensor:
        """Invert by what is known of this problem, or put the op into the graph that is being traced."""
        return INV_OP(A) if _len_torch_dispatch_stack() else untimed_answer(A)

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
        return -(X @ dA @ X)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], A: Tensor) -> tuple[Tensor, int]:
        """Invert the mapped matrices as one batch."""
        del info
        (batch_dim,) = in_dims
        assert batch_dim is not None  # torch calls this rule only when its one input is mapped
        return transformed_inverse(A.movedim(batch_dim, 0)), 0


def plain_inverse(A: Tensor) -> Tensor:
    """Return the inverse of an ordinary tensor whose gradient is wanted."""
    X: Tensor = PlainInverse.apply(A)  # type: ignore[no-untyped-call]
    return X


def transformed_inverse(A: Tensor) -> Tensor:
    """Return the inverse of a tensor under forward AD or ``torch.func``."""
    X: Tensor = TransformedInverse.apply(A)  # type: ignore[no-untyped-call]
    return X
