"""``torch.ops.autoinv.inv``: the inverse as one operator, for compile, export, make_fx and fake tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoinv.calls.answer import untimed_answer
from autoinv.ops.inv.rules import backward_of_inverse
from autoinv.ops.inv.strategies._lu import inv as torch_linalg_inv

# Registered at import, so that an exported program finds it: 1 ms. `torch.library.register_fake` would cost
# 3 more, to look up this line; `torch.library.custom_op` 10 us a call, and Dynamo's import on the first.
_LIBRARY = torch.library.Library("autoinv", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("inv(Tensor A) -> Tensor")  # type: ignore[no-untyped-call]


def _run(A: Tensor) -> Tensor:
    X = untimed_answer(A)
    if X.stride() == _dense_stride(X):
        return X
    return torch.empty(X.shape, dtype=X.dtype, device=X.device).copy_(X)


def _dense_stride(X: Tensor) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(X.shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _fake(A: Tensor) -> Tensor:
    torch_linalg_inv(A)  # for its checks and errors
    return A.new_empty(A.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    del inputs
    ctx.save_for_backward(output)


def _backward(ctx: Any, G: Tensor) -> Tensor:
    (X,) = ctx.saved_tensors
    return backward_of_inverse(X, G)


def _vmap(info: Any, in_dims: tuple[int], A: Tensor) -> tuple[Tensor, int]:
    del info
    return INV_OP(A.movedim(in_dims[0], 0)), 0


_LIBRARY.impl("inv", _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_LIBRARY.impl("inv", _fake, "Meta")  # type: ignore[no-untyped-call]
torch.library.register_autograd("autoinv::inv", _backward, setup_context=_setup_context, lib=_LIBRARY)
torch.library.register_vmap("autoinv::inv", _vmap, lib=_LIBRARY)

INV_OP = torch.ops.autoinv.inv.default
