"""The inverse in plain eager mode with a gradient wanted: a bare autograd Function around the strategy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoinv.ops.inv.operation import DISPATCHER
from autoinv.ops.inv.rules import backward_of_inverse
from autoinv.planning.dispatch import key_of
from autoinv.strategy import LinAlgError, Run


class PlainInverse(torch.autograd.Function):
    """Reverse mode only: without ``setup_context``, ``jvp`` and ``vmap`` torch calls it in half the time."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, run: Run) -> Tensor:
        """Invert by the strategy that was chosen, as the plain lane does."""
        try:
            X: Tensor = run(A)
        except LinAlgError:
            raise
        except Exception as error:
            X = DISPATCHER.failed(key_of(A), A, None, error)
        ctx.save_for_backward(X)
        return X

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        """Return -X^H G X^H."""
        (X,) = ctx.saved_tensors
        return backward_of_inverse(X, G), None


# `Function.apply` first looks for functorch's wrappers, 2.7 us a call; the caller knows that there are none.
_apply: Any = super(torch.autograd.Function, PlainInverse).apply


def recorded_inverse(A: Tensor, run: Run) -> Tensor:
    """Return the inverse of a tensor, recorded for the backward pass; no transform may be active.

    Raises:
        torch.linalg.LinAlgError: when a matrix is singular.
    """
    X: Tensor = _apply(A, run)
    return X
