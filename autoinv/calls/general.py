"""The general lane of `inv`: whatever is not a plain tensor with no gradient wanted."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from autoinv.calls.answer import answer, torchs_own
from autoinv.calls.gradient import recorded_inverse
from autoinv.calls.library_op import INV_OP
from autoinv.calls.state import TRACED_TYPES, is_ordinary_type, is_overridden, is_transformed, resolved
from autoinv.calls.transforms import transformed_inverse
from autoinv.ops.inv.operation import DISPATCHER, torch_inv
from autoinv.ops.inv.strategies._lu import inv as torch_linalg_inv
from autoinv.planning.dispatch import key_of

_memo = DISPATCHER.memo


def general(A: Tensor) -> Tensor:
    """Answer for a tensor in any state.

    Raises:
        Exception: whatever ``torch.linalg.inv`` raises.
    """
    if is_dynamo_compiling():
        return _compiled(A)
    # The usual state here, an ordinary tensor whose gradient is wanted, goes first by the plain lane's tests.
    if (
        (type(A) is not Tensor and type(A) is not Parameter)
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or (_len_torch_function_stack() and is_overridden())
        or peek_interpreter_stack() is not None
        or A.is_neg()
    ):
        return _unusual(A)
    try:
        run = _memo.get(key_of(A))
    except (RuntimeError, NotImplementedError):  # sparse, nested: a layout without strides
        return torch_linalg_inv(A)
    if run is None:
        return _missed(A)
    return recorded_inverse(A, run) if A.requires_grad and is_grad_enabled() else answer(A)


def _missed(A: Tensor) -> Tensor:
    if torch._C._get_tracing_state() is not None or not DISPATCHER.takes(A):
        return torch_inv(A)
    if not (A.requires_grad and is_grad_enabled()):
        return answer(A)
    with torch.no_grad():
        run = DISPATCHER.miss(key_of(A), A.detach())
    return recorded_inverse(A, run)


def _unusual(A: Tensor) -> Tensor:
    if not is_ordinary_type(A):
        return _foreign(A)
    if torch._C._get_tracing_state() is not None:
        return torch_inv(A)  # as the plain lane does: torch.jit.trace compares two traces line by line
    if A.layout is not torch.strided or A.is_nested or (is_overridden() and not _len_torch_dispatch_stack()):
        return torchs_own(A)  # tracers push function modes of their own; any other is to see torch's call
    if is_transformed():
        return transformed_inverse(A)
    if _len_torch_dispatch_stack():
        return INV_OP(A)
    return general(resolved(A))


def _compiled(A: Tensor) -> Tensor:
    """Return what Dynamo shall put into its graph."""
    if not is_ordinary_type(A):
        return torch_linalg_inv(A)
    # The op has no rule for forward AD, nor for transforms of its gradient; torch's own call has.
    return torchs_own(A) if is_transformed() else INV_OP(A)


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
