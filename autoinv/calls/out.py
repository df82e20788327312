"""Torch's rules for ``out=``, for any operation."""

from __future__ import annotations

import torch
from torch import Tensor, is_inference_mode_enabled
from torch._C import DisableTorchFunction, _increment_version
from torch.compiler import is_dynamo_compiling

from autoinv.calls.answer import answer
from autoinv.calls.call import Call
from autoinv.calls.state import is_in_device_context, is_ordinary, is_ordinary_type, resolved, wants_gradient
from autoinv.errors import FROM_TORCH_OR_KERNELS
from autoinv.operation import Operands, Operation
from autoinv.planning.dispatch import Dispatcher, key_of
from autoinv.strategy import LinAlgError


def into(call: Call, operands: Operands, out: Tensor) -> Tensor:
    """Write the answer into ``out`` and return it.

    Raises:
        Exception: whatever PyTorch's own call raises with ``out=``.
    """
    operation = call.operation
    if not is_dynamo_compiling() and is_in_device_context(*operands, out):
        with DisableTorchFunction():
            return call.function(*operands, out=out)
    if (
        not is_ordinary(operation, *operands)
        or not is_ordinary_type(out)
        or out.dtype is not operands[0].dtype
        or out.device != operands[0].device
        or out.layout is not torch.strided
        or wants_gradient(*operands, out)
        or (out.is_inference() and not is_inference_mode_enabled())
    ):
        return operation.torch_call(*operands, out=out)  # its answer or, mostly, its error
    operands = tuple(map(resolved, operands))
    if out.shape != operation.result_shape(*[x.shape for x in operands]):
        return resize_and_copy(answer(call.dispatcher, operands), out)
    is_plain = out.is_contiguous() and not (out.is_neg() or out.is_conj())
    if is_plain and all(_may_write(operation, x, out) for x in operands):
        return _write(call.dispatcher, operands, out)
    return out.copy_(answer(call.dispatcher, operands))


def resize_and_copy(value: Tensor, out: Tensor) -> Tensor:
    """Copy into an ``out`` of another shape by a call that resizes it, and warns, as every ``out=`` of torch does."""
    return torch.cat((value,), out=out) if value.dim() else torch.mul(value, 1, out=out)


def _may_write(operation: Operation, A: Tensor, out: Tensor) -> bool:
    """Whether a contiguous ``out`` shares no byte with ``A``, or is the very same elements and may be."""
    source, target = A.data_ptr(), out.data_ptr()
    if source == target and A.shape == out.shape:
        return operation.works_in_place and A.is_contiguous()
    extent = 1 + sum((size - 1) * step for size, step in zip(A.shape, A.stride(), strict=True))
    return source + extent * A.itemsize <= target or target + out.nbytes <= source


def _write(dispatcher: Dispatcher, operands: Operands, out: Tensor) -> Tensor:
    key = key_of(*operands)
    run = dispatcher.memo.get(key) or dispatcher.miss(key, *operands)
    _increment_version((out,))
    try:
        return run(*operands, out=out)
    except LinAlgError:
        raise
    except FROM_TORCH_OR_KERNELS as error:
        return dispatcher.failed(key, run, operands, out, error)
