"""An operation in plain eager mode with a gradient wanted: a bare autograd Function around the strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoinv.errors import FROM_TORCH_OR_KERNELS
from autoinv.operation import Operands, Rules
from autoinv.planning.dispatch import Dispatcher, key_of
from autoinv.strategy import LinAlgError, Run


class Recorded(torch.autograd.Function):
    """Reverse mode only: without ``setup_context``, ``jvp`` and ``vmap`` torch calls it in half the time."""

    @staticmethod
    def forward(ctx: Any, dispatcher: Dispatcher, run: Run, *operands: Tensor) -> Tensor:
        """Compute by the strategy that was chosen, as the fast path does."""
        try:  # `run_or_fail`, written out: this path is timed (scripts/bench_gradient.py)
            result: Tensor = run(*operands)
        except LinAlgError:
            raise
        except FROM_TORCH_OR_KERNELS as error:
            result = dispatcher.failed(key_of(*operands), run, operands, None, error)
        ctx.rules = rules = dispatcher.operation.rules
        ctx.shapes = [x.shape for x in operands] if len(operands) > 1 else None
        ctx.save_for_backward(*rules.saved(operands, result))
        return result

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        """Return the operands' gradients."""
        wanted = ctx.needs_input_grad[2:]
        return (None, None, *operand_gradients(ctx.rules, ctx.saved_tensors, G, wanted, ctx.shapes))


def operand_gradients(
    rules: Rules, saved: Operands, G: Tensor, wanted: Sequence[bool], shapes: Sequence[torch.Size] | None
) -> Sequence[Tensor | None]:
    """Return the gradients by the rules, each summed to the shape of its operand where that was broadcast.

    ``shapes`` are None for a single operand, which is never broadcast.
    """
    gradients = rules.backward(saved, G, wanted)
    if shapes is None:
        return gradients
    return [
        g if g is None or g.shape == shape else g.sum_to_size(shape)
        for g, shape in zip(gradients, shapes, strict=True)
    ]


# `Function.apply` first looks for functorch's wrappers, 2.7 us a call; the caller knows that there are none.
_apply: Any = super(torch.autograd.Function, Recorded).apply


def recorded(dispatcher: Dispatcher, run: Run, operands: Operands) -> Tensor:
    """Return the result, recorded for the backward pass; no transform may be active.

    Raises:
        torch.linalg.LinAlgError: when there is no answer, say for a singular matrix.
    """
    result: Tensor = _apply(dispatcher, run, *operands)
    return result
