"""The inverse of batches of square matrices: `inv`, its fast path, its fast path into ``out=``, and `inv_as_torch`."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, get_num_threads, is_grad_enabled
from torch._C import (
    DisableTorchFunction,
    _increment_version,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import has_torch_function_unary

from autoinv.calls.call import Call, Replaced
from autoinv.calls.general import general
from autoinv.calls.gradient import recorded
from autoinv.calls.library_op import register
from autoinv.calls.out import into
from autoinv.calls.state import (
    TRACED_TYPES,
    is_in_device_context,
    is_ordinary_type,
    is_overridden,
    is_transformed,
)
from autoinv.errors import FROM_TORCH_OR_KERNELS
from autoinv.ops.inv.operation import INV
from autoinv.ops.inv.strategies._column_major import column_major, column_major_run
from autoinv.ops.inv.strategies._kernels import Kernel, address_call
from autoinv.ops.inv.strategies._lu import BROKEN_ABOVE_N, fall_back
from autoinv.ops.inv.strategies._lu import inv as torch_linalg_inv
from autoinv.planning.dispatch import Dispatcher, key_of
from autoinv.problem import Problem
from autoinv.strategy import LinAlgError, Run

_DISPATCHER = Dispatcher(INV)
_memo = _DISPATCHER.memo


def inv(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the inverse of each matrix of ``A``, as ``torch.linalg.inv`` does, by the fastest way known here.

    Args:
        A: ``(*, n, n)``, float32, float64, complex64 or complex128.
        out: where to write the result, by torch's rules for ``out=``; may be ``A`` itself.

    Returns:
        ``(*, n, n)``, contiguous, of A's dtype and device.

    Raises:
        torch.linalg.LinAlgError: when a matrix is singular; the text names the flat index of the first.
        RuntimeError: for what ``torch.linalg.inv`` refuses, in its words.

    Example:
        >>> import torch, autoinv
        >>> autoinv.inv(torch.tensor([[4.0, 7.0], [2.0, 6.0]]))
        tensor([[ 0.6000, -0.7000],
                [-0.2000,  0.4000]])
    """
    # The fast path. Each test stands for a state that looks like an ordinary tensor and is not; together with the
    # key and the look-up they cost about one torch.empty_like (scripts/bench_overhead.py), so none is a call of ours.
    if (
        type(A) is not Tensor
        or out is not None
        or is_dynamo_compiling()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or has_torch_function_unary(A)
        or peek_interpreter_stack() is not None
        or (A.requires_grad and is_grad_enabled())
    ):
        return general(CALL, A) if out is None else _into(A, out)
    try:
        if A.is_cpu and A.is_contiguous():
            key: tuple[object, ...] = (A.shape, A.dtype, get_num_threads())
        else:
            key = (A.shape, A.dtype, A.device, get_num_threads(), A.stride())
    except (RuntimeError, NotImplementedError):  # sparse, nested: a layout without strides
        return general(CALL, A)
    try:
        run = _memo[key]
    except KeyError:
        run = _DISPATCHER.miss(key, A)
    try:
        return run(A)
    except LinAlgError:
        raise
    except FROM_TORCH_OR_KERNELS as error:
        return _DISPATCHER.failed(key, run, (A,), None, error)


_Direct = tuple[Kernel, int, int, int, int, int]
"""A kernel that takes two addresses, its dtype's code, n and batch, and minus and plus the bytes of an operand.

A plain tuple: a named one takes 40 ns more to unpack.
"""

# Contiguous problems whose chosen strategy is such a kernel. They stand in the memo, to be forgotten with it.
_direct = cast("dict[tuple[object, ...], _Direct]", _memo)


def _into(A: Tensor, out: Tensor) -> Tensor:
    """Write the inverse of ``A`` into ``out`` and return it."""
    # Two plain contiguous CPU tensors, apart or the same: a path of its own that allocates nothing. Each test
    # is for a state that needs more care; torch's getters are the cost, 50 to 100 ns each. Only a view is negated.
    if (
        type(A) is not Tensor
        or type(out) is not Tensor
        or is_dynamo_compiling()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or has_torch_function_unary(A)
        or peek_interpreter_stack() is not None
        or ((A.requires_grad or out.requires_grad) and is_grad_enabled())
        or not A.is_cpu
        or not out.is_cpu
        or not A.is_contiguous()
        or not out.is_contiguous()
        or (A._is_view() and A.is_neg())
        or (out._is_view() and out.is_neg())
    ):
        return into(CALL, (A,), out)
    try:
        out._version  # noqa: B018 (an inference tensor has none, and saying so is its cheapest test)
    except RuntimeError:
        return into(CALL, (A,), out)
    shape, dtype = A.shape, A.dtype
    direct = _direct.get((shape, dtype, get_num_threads(), "out"))
    if direct is None:
        return _into_and_remember(A, out)
    if out.shape != shape or out.dtype is not dtype:
        return into(CALL, (A,), out)
    kernel, code, n, batch, below, above = direct
    source = A.data_ptr()
    target = out.data_ptr()
    if below < source - target < above and source != target:  # they overlap
        return into(CALL, (A,), out)
    _increment_version((out,))
    try:
        left = kernel(source, target, code, n, batch)
    except ValueError:  # no memory behind one of them
        return into(CALL, (A,), out)
    if left is not None:
        fall_back(A, out, left)
    return out


def _into_and_remember(A: Tensor, out: Tensor) -> Tensor:
    generation = _DISPATCHER.generation
    result = into(CALL, (A,), out)
    key = (A.shape, A.dtype, get_num_threads())
    run = _DISPATCHER.final_run(key)
    call = address_call(run) if run is not None and A.shape[-1] > 1 else None
    if call is not None:
        direct = (*call, -A.nbytes, A.nbytes)
        _DISPATCHER.remember((*key, "out"), cast("Run", direct), generation)
    return result


def inv_as_torch(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return what `inv` does, bit for bit, with the strides of ``torch.linalg.inv``'s result: column-major matrices.

    This is what programs get whose torch is patched.

    Args:
        A: ``(*, n, n)``, float32, float64, complex64 or complex128.
        out: where to write the result, by torch's rules for ``out=``; may be ``A`` itself.

    Returns:
        ``(*, n, n)`` of A's dtype and device: matrices column-major, the batch contiguous.

    Raises:
        torch.linalg.LinAlgError: when a matrix is singular; the text names the flat index of the first.
        RuntimeError: for what ``torch.linalg.inv`` refuses, in its words.

    Example:
        >>> import torch
        >>> from autoinv.ops.inv import inv_as_torch
        >>> inv_as_torch(torch.eye(3)).stride()
        (1, 3)
    """
    # The fast path, by the same tests as that of `inv`.
    if (
        type(A) is not Tensor
        or out is not None
        or is_dynamo_compiling()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or has_torch_function_unary(A)
        or peek_interpreter_stack() is not None
        or (A.requires_grad and is_grad_enabled())
    ):
        return _general_as_torch(A) if out is None else _into_as_torch(A, out)
    try:
        if A.is_cpu and A.is_contiguous():
            key: tuple[object, ...] = (A.shape, A.dtype, get_num_threads(), "torch")
        else:
            key = (A.shape, A.dtype, A.device, get_num_threads(), A.stride(), "torch")
    except (RuntimeError, NotImplementedError):  # sparse, nested: a layout without strides
        return torch_linalg_inv(A)
    try:
        run = _memo[key]
    except KeyError:
        run = _missed_as_torch(A)
    try:
        return run(A)
    except LinAlgError:
        raise
    except FROM_TORCH_OR_KERNELS as error:
        return _failed_as_torch(A, error)


def _missed_as_torch(A: Tensor) -> Run:
    """Return what runs for a plain tensor, by the choice that was or is made for `inv`."""
    if torch._C._get_tracing_state() is not None:
        return (
            torch_linalg_inv  # a trace holds torch's own call, and would record the sizes that are looked at
        )
    key = key_of(A)
    generation = _DISPATCHER.generation
    run = _memo.get(key) or _DISPATCHER.miss(key, A)
    if run == INV.torch_answer:
        if not INV.takes(A):
            return torch_linalg_inv
        problem = Problem.of(INV.name, A)
        made = column_major_run(INV.reference(problem).bind(problem))
    else:
        made = column_major_run(run)
    if _DISPATCHER.final_run(key) is run:
        _DISPATCHER.remember((*key, "torch"), made, generation)
    return made


def _failed_as_torch(A: Tensor, error: Exception) -> Tensor:
    key = key_of(A)
    _memo.pop((*key, "torch"), None)
    return column_major(_DISPATCHER.failed(key, _memo.get(key), (A,), None, error))


def _plain_as_torch(A: Tensor) -> Tensor:
    run = _memo.get((*key_of(A), "torch")) or _missed_as_torch(A.detach())
    try:
        return run(A)
    except LinAlgError:
        raise
    except FROM_TORCH_OR_KERNELS as error:
        return _failed_as_torch(A, error)


def _general_as_torch(A: Tensor) -> Tensor:
    """Answer for a tensor in any state with torch's strides.

    Raises:
        Exception: whatever PyTorch's own call raises.
    """
    if is_dynamo_compiling():
        if not is_ordinary_type(A) or is_transformed():
            return torch_linalg_inv(A)
        return column_major(CALL.library_op(A))
    if is_in_device_context(A):
        with DisableTorchFunction():
            return inv_as_torch(A)
    if (type(A) is Tensor or type(A) is Parameter) and not (
        forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or peek_interpreter_stack() is not None
    ):
        if torch._C._get_tracing_state() is not None or not INV.takes(A):
            return torch_linalg_inv(A)
        if A.requires_grad and is_grad_enabled():
            return recorded(_DISPATCHER, _plain_as_torch, (A,))
        return _plain_as_torch(A)
    if (
        not (is_ordinary_type(A) or isinstance(A, TRACED_TYPES))
        or A.layout is not torch.strided
        or not A.numel()
        or is_overridden()
        or torch._C._get_tracing_state() is not None
    ):
        return torch_linalg_inv(A)
    return column_major(general(CALL, A))


def _into_as_torch(A: Tensor, out: Tensor) -> Tensor:
    """Write the inverse of ``A`` into ``out`` and return it; one of another shape gets torch's strides."""
    is_resized = isinstance(A, Tensor) and isinstance(out, Tensor) and out.shape != A.shape
    if is_resized and A.shape[-1:] <= (BROKEN_ABOVE_N,):
        return torch_linalg_inv(A, out=out)
    return _into(A, out)


CALL = Call(
    inv,
    _DISPATCHER,
    register(_DISPATCHER),
    replaces=(
        Replaced(torch.linalg, "inv", ("A",), function=inv_as_torch),
        Replaced(torch, "inverse", ("input",), function=inv_as_torch),
        Replaced(torch.Tensor, "inverse", ("self",), options=(), function=inv_as_torch),
    ),  # and torch.linalg.inv_ex, in `autoinv.ops.inv.ex`, which is made of this
)
