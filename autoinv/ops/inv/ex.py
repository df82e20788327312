"""`inv_ex`: the inverse and, for each matrix, whether it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, get_num_threads, is_grad_enabled, zeros_like
from torch._C import DisableTorchFunction, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_unary
from torch.utils import _pytree as pytree

from autoinv.calls.call import Replaced
from autoinv.calls.out import resize_and_copy
from autoinv.calls.state import is_in_device_context, is_ordinary, is_ordinary_type, wants_gradient
from autoinv.errors import FROM_TORCH_OR_KERNELS
from autoinv.ops.inv import CALL, inv, inv_as_torch
from autoinv.ops.inv.operation import INV
from autoinv.ops.inv.strategies._column_major import column_major
from autoinv.ops.inv.strategies._lu import answered_but_for_singular, batched_is_broken
from autoinv.ops.inv.strategies._lu import inv_ex as torch_linalg_inv_ex
from autoinv.planning.dispatch import key_of
from autoinv.problem import Problem
from autoinv.strategy import LinAlgError, Run


class InvEx(NamedTuple):
    """What `inv_ex` returns: the inverses ``(*, n, n)`` and int32 ``info`` ``(*)``, 0 where there is one."""

    inverse: Tensor
    info: Tensor


pytree._register_namedtuple(InvEx, serialized_type_name="autoinv.InvEx")  # so that torch.export can save it


def inv_ex(A: Tensor, *, check_errors: bool = False, out: Sequence[Tensor] | None = None) -> InvEx:
    """Return the inverse of each matrix and say which are singular, as ``torch.linalg.inv_ex`` does.

    Where no matrix is singular, the usual case, the strategy chosen for `inv` answers. The inverse is
    differentiable, the info is not.

    Args:
        A: ``(*, n, n)``, float32, float64, complex64 or complex128.
        check_errors: raise for a singular matrix instead of marking it.
        out: two tensors to write inverse and info into, by torch's rules for ``out=``.

    Returns:
        A named tuple ``(inverse, info)``: ``(*, n, n)``, contiguous, and int32 ``(*)``: 0, or the 1-based
        index of the zero pivot; what stands in ``inverse`` there is PyTorch's own.

    Raises:
        torch.linalg.LinAlgError: with ``check_errors``, when a matrix is singular.
        RuntimeError: for what ``torch.linalg.inv_ex`` refuses, in its words.

    Example:
        >>> import torch, autoinv
        >>> A = torch.stack([torch.eye(2), torch.zeros(2, 2)])
        >>> autoinv.inv_ex(A).info
        tensor([0, 1], dtype=torch.int32)
    """
    # The fast path, by the tests of `inv`'s, which see to what only looks like an ordinary tensor.
    if (
        type(A) is not Tensor
        or out is not None
        or check_errors is not False
        or is_dynamo_compiling()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or has_torch_function_unary(A)
        or peek_interpreter_stack() is not None
        or (A.requires_grad and is_grad_enabled())
    ):
        return _general(A, check_errors, out)
    try:
        if A.is_cpu and A.is_contiguous():
            key: tuple[object, ...] = (A.shape, A.dtype, get_num_threads(), "ex")
        else:
            key = (A.shape, A.dtype, A.device, get_num_threads(), A.stride(), "ex")
        run, no_errors = _ready[key]
    except (KeyError, RuntimeError, NotImplementedError):  # sparse, nested: a layout without strides
        return _general(A, False, None)
    try:
        return _made(InvEx, (run(A), zeros_like(no_errors)))
    except LinAlgError as error:
        return _with_singular(A, False, error)
    except FROM_TORCH_OR_KERNELS:  # a strategy failed: `inv` knows what to do
        return _general(A, False, None)


_made = tuple.__new__  # what a named tuple's own `__new__` calls, at 40 ns less

_Ready = tuple[Run, Tensor]
"""What runs for a problem, and its `info` where no matrix is singular, to be copied."""

# Problems on the CPU whose choice is final. They stand in the memo, to be forgotten with it.
_ready = cast("dict[tuple[object, ...], _Ready]", CALL.dispatcher.memo)


def _general(A: Tensor, check_errors: bool, out: Sequence[Tensor] | None) -> InvEx:
    """Answer for tensors in any state.

    Raises:
        Exception: whatever ``torch.linalg.inv_ex`` raises.
    """
    if is_dynamo_compiling():
        return _torch_inv_ex(A, check_errors, out)
    outs = out if isinstance(out, tuple | list) else ()
    if is_in_device_context(A, *outs):
        with DisableTorchFunction():
            return inv_ex(A, check_errors=check_errors, out=out)
    # PyTorch's own on a GPU: it does not wait for the device, as every `inv` must.
    if type(check_errors) is not bool or not is_ordinary(INV, A) or A.is_cuda:
        return _torch_inv_ex(A, check_errors, out)
    if out is not None:
        if not _fits_out(A, out):
            return _torch_inv_ex(A, check_errors, out)
        return _fill_out(inv_ex(A, check_errors=check_errors), out)
    try:
        inverse = inv(A)
    except LinAlgError as error:
        return _with_singular(A, check_errors, error)
    info = torch.zeros(A.shape[:-2], dtype=torch.int32, device=A.device)
    _remember(A, info)
    return InvEx(inverse, info)


def _with_singular(A: Tensor, check_errors: bool, error: BaseException) -> InvEx:
    """Answer for a batch in which LU called a matrix singular.

    Raises:
        torch.linalg.LinAlgError: with ``check_errors``.
    """
    answered = answered_but_for_singular(error)
    if answered is None or wants_gradient(A):
        return _torch_inv_ex(A, check_errors)
    inverse, info = answered
    if check_errors:
        torch._linalg_check_errors(info, "linalg.inv_ex", is_matrix=A.dim() == 2)
    return InvEx(inverse, info.view(A.shape[:-2]))


def _remember(A: Tensor, no_errors: Tensor) -> None:
    key, dispatcher = key_of(A), CALL.dispatcher
    generation = dispatcher.generation
    run = dispatcher.final_run(key)
    if run is not None:
        ready = (run, torch.zeros_like(no_errors))
        dispatcher.remember((*key, "ex"), cast("Run", ready), generation)


def _torch_inv_ex(A: Tensor, check_errors: bool, out: Sequence[Tensor] | None = None) -> InvEx:
    """Return PyTorch's own answer, contiguous; matrix by matrix where its call on the batch is broken.

    Raises:
        Exception: whatever ``torch.linalg.inv_ex`` raises.
    """
    if out is not None:
        return InvEx(*torch_linalg_inv_ex(A, check_errors=check_errors, out=out))
    if is_ordinary(INV, A) and batched_is_broken(Problem.of(INV.name, A)):
        return _one_by_one(A, check_errors)
    inverse, info = torch_linalg_inv_ex(A, check_errors=check_errors)
    return InvEx(inverse.contiguous(), info)


def _fits_out(A: Tensor, out: Sequence[Tensor]) -> bool:
    """Whether ``out`` can take an ordinary tensor's answer; if not, torch has an error for it."""
    if not isinstance(out, tuple | list) or len(out) != 2 or not all(map(is_ordinary_type, out)):
        return False
    inverse, info = out
    is_typed = inverse.dtype is A.dtype and info.dtype is torch.int32
    return is_typed and inverse.device == info.device == A.device and not wants_gradient(A, *out)


def _fill_out(answer: InvEx, out: Sequence[Tensor]) -> InvEx:
    """Write the answer into ``out``, resized with torch's warning where its shape differs."""
    for value, target in zip(answer, out, strict=True):
        if target.shape == value.shape:
            target.copy_(value)
        else:
            resize_and_copy(value, target)
    return InvEx(*out)


def _one_by_one(A: Tensor, check_errors: bool) -> InvEx:
    answers = [torch_linalg_inv_ex(matrix) for matrix in A.reshape(-1, *A.shape[-2:])]
    inverse = torch.stack([each.inverse for each in answers]).view(A.shape)
    info = torch.stack([each.info for each in answers]).view(A.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "linalg.inv_ex", is_matrix=False)
    return InvEx(inverse.contiguous(), info)


_TorchInvEx: Any = torch.return_types.linalg_inv_ex  # type: ignore[attr-defined]


def _as_torch(A: Tensor, *, check_errors: bool = False, out: Sequence[Tensor] | None = None) -> Any:
    """Answer as ``torch.linalg.inv_ex`` itself: in its own named tuple, with its strides."""
    # The fast path, by the tests of `inv`'s.
    if (
        type(A) is not Tensor
        or out is not None
        or check_errors is not False
        or is_dynamo_compiling()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or has_torch_function_unary(A)
        or peek_interpreter_stack() is not None
        or (A.requires_grad and is_grad_enabled())
    ):
        return _general_as_torch(A, check_errors, out)
    try:
        if A.is_cpu and A.is_contiguous():
            key: tuple[object, ...] = (A.shape, A.dtype, get_num_threads(), "torch ex")
        else:
            key = (A.shape, A.dtype, A.device, get_num_threads(), A.stride(), "torch ex")
        run, no_errors = _ready[key]
    except (KeyError, RuntimeError, NotImplementedError):
        return _general_as_torch(A, False, None)
    try:
        return _TorchInvEx((run(A), zeros_like(no_errors)))
    except (LinAlgError, *FROM_TORCH_OR_KERNELS):
        return _general_as_torch(A, False, None)


def _general_as_torch(A: Tensor, check_errors: bool, out: Sequence[Tensor] | None) -> Any:
    if is_dynamo_compiling():
        return torch_linalg_inv_ex(A, check_errors=check_errors, out=out)
    if out is not None or check_errors is not False or not (is_ordinary(INV, A) and A.is_cpu):
        return _TorchInvEx(inv_ex(A, check_errors=check_errors, out=out))
    generation = CALL.dispatcher.generation
    try:
        inverse = inv_as_torch(A)
    except LinAlgError as error:
        inverse, info = _with_singular(A, False, error)
        return _TorchInvEx((column_major(inverse), info))
    info = torch.zeros(A.shape[:-2], dtype=torch.int32)
    key = key_of(A)
    run = CALL.dispatcher.memo.get((*key, "torch"))
    if run is not None:
        ready = (run, torch.zeros_like(info))
        CALL.dispatcher.remember((*key, "torch ex"), cast("Run", ready), generation)
    return _TorchInvEx((inverse, info))


CALL.replaces += (Replaced(torch.linalg, "inv_ex", ("A",), ("check_errors", "out"), _as_torch),)
