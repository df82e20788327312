"""``torch.ops.autoinv.<operation>``: each as one operator, for compile, export, make_fx and fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autoinv.calls.answer import untimed_answer
from autoinv.calls.batching import with_leading_batch
from autoinv.calls.gradient import operand_gradients
from autoinv.planning.dispatch import Dispatcher

# Registered at import, so that an exported program finds it: 1 ms. `torch.library.register_fake` would cost
# 3 more, to look up this line; `torch.library.custom_op` 10 us a call, and Dynamo's import on the first.
# A fragment, as there may be another: that of an autoinv whose modules were dropped from `sys.modules`.
_LIBRARY = torch.library.Library("autoinv", "FRAGMENT")  # type: ignore[no-untyped-call]


def register(dispatcher: Dispatcher) -> Callable[..., Tensor]:
    """Register an operation as ``autoinv::<its name>``, and return the operator.

    Torch takes one registration a process. So an autoinv that is imported again uses the operator of the first, which
    graphs that were compiled before go on to call.
    """
    operation = dispatcher.operation
    name, rules = operation.name, operation.rules
    registered: Callable[..., Tensor] | None = getattr(
        getattr(torch.ops.autoinv, name, None), "default", None
    )
    if registered is not None:
        return registered
    arguments = ", ".join(f"Tensor {argument}" for argument in operation.operand_names)

    def run(*operands: Tensor) -> Tensor:
        result = untimed_answer(dispatcher, operands)
        if result.stride() == _dense_stride(result):
            return result
        return torch.empty(result.shape, dtype=result.dtype, device=result.device).copy_(result)

    def fake(*operands: Tensor) -> Tensor:
        result = operation.torch_call(*operands)  # with its checks and errors
        return result.new_empty(result.shape)

    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.shapes = [x.shape for x in inputs] if len(inputs) > 1 else None
        ctx.save_for_backward(*rules.saved(inputs, output))

    def backward(ctx: Any, G: Tensor) -> Any:
        wanted = ctx.needs_input_grad
        found = operand_gradients(rules, ctx.saved_tensors, G, wanted, ctx.shapes)
        return found[0] if len(found) == 1 else tuple(found)

    def vmap(info: Any, in_dims: tuple[int | None, ...], *operands: Tensor) -> tuple[Tensor, int]:
        del info
        result: Tensor = operator(*with_leading_batch(operation, operands, in_dims))
        return result, 0

    _LIBRARY.define(f"{name}({arguments}) -> Tensor")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]
    torch.library.register_autograd(f"autoinv::{name}", backward, setup_context=setup_context, lib=_LIBRARY)
    torch.library.register_vmap(f"autoinv::{name}", vmap, lib=_LIBRARY)
    operator: Callable[..., Tensor] = getattr(torch.ops.autoinv, name).default
    return operator


def _dense_stride(X: Tensor) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(X.shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
