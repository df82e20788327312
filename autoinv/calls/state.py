"""What state a tensor and this thread are in: which path a call takes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import (
    _disabled_torch_function_impl,
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import get_dynamic_layer_stack_depth
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import has_torch_function
from torch.utils._device import DeviceContext

from autoinv.operation import Operation

# torch has no public way to ask what modes and transforms are active; these private ones stand since 2.1.

TRACED_TYPES: tuple[type, ...] = (FakeTensor, FunctionalTensor)
"""Stand-ins that torch itself makes while it traces; to the user they are ordinary tensors."""


def is_ordinary_type(A: object) -> bool:
    """Whether this is a tensor of torch's own, not of a subclass; a parameter is one."""
    return type(A) is Tensor or type(A) is Parameter


def is_transformed() -> bool:
    """Whether forward AD or a transform of ``torch.func`` is active."""
    return get_dynamic_layer_stack_depth() > 0 or forward_ad._current_level >= 0


# Dynamo enters transforms for real while it traces: let it ask, and take the answer for a constant. What
# `torch.compiler.assume_constant_result` sets, without importing Dynamo for it. Left to itself, torch 2.13's takes
# `peek_interpreter_stack() is not None` for always true, and 2.6's breaks the graph.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Whether Dynamo, ``torch.jit.trace`` or a dispatch mode (fake tensors, ``make_fx``, export) looks on."""
    return (
        is_dynamo_compiling()
        or bool(_len_torch_dispatch_stack())
        or torch._C._get_tracing_state() is not None
    )


def is_overridden() -> bool:
    """Whether a function mode is active that is to see torch's own call.

    ``torch.device`` contexts leave inputs alone; and tracers push function modes of their own beside a dispatch mode.
    """
    is_traced = _len_torch_dispatch_stack() > 0
    for i in range(_len_torch_function_stack()):
        kind = type(_get_function_stack_at(i))
        if kind is not DeviceContext and not (is_traced and kind.__module__.startswith("torch.")):
            return True
    return False


def is_in_device_context(*operands: Tensor) -> bool:
    """Whether nothing but a ``torch.device`` context, or a default device, makes torch look for overrides.

    With ``torch._C.DisableTorchFunction`` such a call is an ordinary one.
    """
    for x in operands:
        if type(x) is not Tensor and type(x) is not Parameter:
            return False
    depth = _len_torch_function_stack()
    if depth == 1:  # the usual one, at half the price
        return type(_get_function_stack_at(0)) is DeviceContext and has_torch_function(operands)
    kinds = {type(_get_function_stack_at(i)) for i in range(depth)}
    return kinds == {DeviceContext} and has_torch_function(operands)


def overrides(A: Tensor) -> bool:
    """Whether the type of a tensor has torch's functions do something else, by ``__torch_function__``."""
    kind = type(A)
    return kind is not Tensor and kind.__torch_function__ is not _disabled_torch_function_impl


def is_ordinary(operation: Operation, *operands: object) -> bool:
    """Whether a strategy may answer for these and be timed for it: values are all that matters here.

    A gradient may be wanted. Everything else that is not plain is for PyTorch.
    """
    for x in operands:
        if (type(x) is not Tensor and type(x) is not Parameter) or x.is_nested:
            return False
    if is_traced() or is_transformed() or is_overridden():
        return False
    return operation.takes(*operands)  # type: ignore[arg-type]  # they are tensors


def resolved(A: Tensor) -> Tensor:
    """Return ``A`` itself, or a copy with its lazy conjugation or negation carried out."""
    return A.resolve_conj().resolve_neg() if A.is_conj() or A.is_neg() else A


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether reverse mode would record what is done to one of these tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
