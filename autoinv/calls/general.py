"""The general path of any operation: whatever is not plain tensors with no gradient wanted."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, is_grad_enabled
from torch._C import DisableTorchFunction, _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from autoinv.calls.answer import answer, run_or_fail, torchs_own
from autoinv.calls.call import Call
from autoinv.calls.gradient import recorded
from autoinv.calls.sharded import is_sharded, sharded_answer
from autoinv.calls.state import (
    TRACED_TYPES,
    is_in_device_context,
    is_ordinary_type,
    is_overridden,
    is_transformed,
    resolved,
    wants_gradient,
)
from autoinv.calls.transforms import transformed
from autoinv.operation import Operands
from autoinv.planning.dispatch import key_of


def general(call: Call, *operands: Tensor) -> Tensor:
    """Answer for tensors in any state.

    Raises:
        Exception: whatever PyTorch's own call raises.
    """
    if is_dynamo_compiling():
        return _compiled(call, operands)
    if _len_torch_function_stack() and is_in_device_context(*operands):
        with DisableTorchFunction():
            return call.function(*operands)
    # The usual state here, ordinary tensors whose gradient is wanted, goes first by the fast path's tests.
    if (
        forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or (_len_torch_function_stack() and is_overridden())
        or peek_interpreter_stack() is not None
    ):
        return _unusual(call, operands)
    is_recorded = False
    for x in operands:
        if (type(x) is not Tensor and type(x) is not Parameter) or x.is_neg():
            return _unusual(call, operands)
        is_recorded = is_recorded or x.requires_grad
    try:
        key = key_of(*operands)
    except (RuntimeError, NotImplementedError):  # sparse, nested: a layout without strides
        return call.operation.torch_call(*operands)
    dispatcher = call.dispatcher
    run = dispatcher.memo.get(key)
    if run is None:
        return _missed(call, operands)
    if is_recorded and is_grad_enabled():
        return recorded(dispatcher, run, operands)
    return run_or_fail(dispatcher, run, operands)


def _missed(call: Call, operands: Operands) -> Tensor:
    if torch._C._get_tracing_state() is not None or not call.operation.takes(*operands):
        return call.operation.torch_answer(*operands)
    if not wants_gradient(*operands):
        return answer(call.dispatcher, operands)
    with torch.no_grad():
        run = call.dispatcher.miss(key_of(*operands), *[x.detach() for x in operands])
    return recorded(call.dispatcher, run, operands)


def _unusual(call: Call, operands: Operands) -> Tensor:
    if not all(map(is_ordinary_type, operands)):
        return _foreign(call, operands)
    if torch._C._get_tracing_state() is not None:
        return call.operation.torch_answer(*operands)  # torch.jit.trace compares two traces line by line
    is_strided = all(x.layout is torch.strided and not x.is_nested for x in operands)
    if not is_strided or is_overridden():
        return torchs_own(call.operation, operands)
    if is_transformed():
        return transformed(call, operands)
    if _len_torch_dispatch_stack():
        return call.library_op(*operands)
    return general(call, *map(resolved, operands))


def _compiled(call: Call, operands: Operands) -> Tensor:
    """Return what Dynamo shall put into its graph."""
    if not all(map(is_ordinary_type, operands)):
        return call.operation.torch_call(*operands)
    # The op has no rule for forward AD, nor for transforms of its gradient; torch's own call has.
    return torchs_own(call.operation, operands) if is_transformed() else call.library_op(*operands)


def _foreign(call: Call, operands: Operands) -> Tensor:
    """Leave a subclass to its own rules, and what is no tensor to torch's own error."""
    if is_sharded(call, operands):
        return sharded_answer(call, *operands)
    if all(isinstance(x, TRACED_TYPES) or is_ordinary_type(x) for x in operands):
        return call.library_op(*operands)
    fx = sys.modules.get("torch.fx")
    if fx is not None and any(isinstance(x, fx.Proxy) for x in operands):
        # symbolic_trace: one call of ours in the graph
        result: Tensor = torch.overrides.handle_torch_function(call.function, operands, *operands)
        return result
    return call.operation.torch_call(*operands)
