"""The general lane of `inv`: whatever is not a plain tensor with no gradient wanted."""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.compiler import is_dynamo_compiling

from autoinv.ops._inv_answer import answer
from autoinv.ops._inv_gradient import plain_inverse, transformed_inverse
from autoinv.ops._inv_op import INV_OP
from autoinv.ops._inv_operation import DISPATCHER, torch_inv
from autoinv.ops._inv_out import into
from autoinv.ops._inv_state import (
    TRACED_TYPES,
    is_ordinary_type,
    is_overridden,
    is_transformed,
    resolved,
    wants_gradient,
)
from autoinv.strategies.inv._lu import inv as torch_linalg_inv


def general(A: Tensor, out: Tensor | None) -> Tensor:
    """Answer for a tensor in any state, into ``out`` when that is given.

    Raises:
        Exception: whatever ``torch.linalg.inv`` raises.
    """
    if is_dynamo_compiling():
        return _compiled(A, out)
    if out is not None:
        return into(A, out)
    if not is_ordinary_type(A):
        return _foreign(A)
    if torch._C._get_tracing_state() is not None:
        return torch_inv(A)  # as the plain lane does: torch.jit.trace compares two traces line by line
    if A.layout is not torch.strided or A.is_nested:
        return _torchs_own(A)
    if is_transformed():
        return _torchs_own(A) if _is_functionalized() else transformed_inverse(A)
    if _len_torch_dispatch_stack():
        return INV_OP(A)
    if is_overridden():
        return _torchs_own(A)
    if not DISPATCHER.takes(A):
        return torch_inv(A)
    A = resolved(A)
    return plain_inverse(A) if wants_gradient(A) else answer(A)


def _compiled(A: Tensor, out: Tensor | None) -> Tensor:
    """Return what Dynamo shall put into its graph."""
    if out is not None:
        return torch_linalg_inv(A, out=out)
    if not is_ordinary_type(A):
        return torch_linalg_inv(A)
    # The op has no rule for forward AD, nor for transforms of its gradient; torch's own call has.
    return _torchs_own(A) if is_transformed() else INV_OP(A)


def _foreign(A: object) -> Tensor:
    """Leave a subclass to its own rules, and what is no tensor to torch's own error."""
    if isinstance(A, TRACED_TYPES):
        return INV_OP(A)
    fx = sys.modules.get("torch.fx")
    if fx is not None and isinstance(A, fx.Proxy):  # symbolic_trace: one call of ours in the graph
        from autoinv.ops.inv import inv

        X: Tensor = torch.overrides.handle_torch_function(inv, (A,), A)
        return X
    return torch_linalg_inv(A)


def _torchs_own(A: Tensor) -> Tensor:
    """Return PyTorch's own answer, contiguous as any, without a look at the sizes that a trace would record."""
    return torch_linalg_inv(A).contiguous()


def _is_functionalized() -> bool:
    """Whether ``torch.func.functionalize`` is active, for which torch has no rule of autograd Functions."""
    return any(level.key() == TransformType.Functionalize for level in get_interpreter_stack() or ())
