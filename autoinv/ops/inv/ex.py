"""`inv_ex`: the inverse and, for each matrix, whether it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autoinv.calls.out import resize_and_copy
from autoinv.calls.state import is_ordinary, is_ordinary_type, wants_gradient
from autoinv.ops.inv import inv
from autoinv.ops.inv.operation import INV
from autoinv.ops.inv.strategies._lu import batched_is_broken
from autoinv.ops.inv.strategies._lu import inv_ex as torch_linalg_inv_ex
from autoinv.problem import Problem
from autoinv.strategy import LinAlgError


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
    if not is_ordinary(INV, A):
        return _torch_inv_ex(A, check_errors, out)
    if out is not None:
        if not _fits_out(A, out):
            return _torch_inv_ex(A, check_errors, out)
        return _fill_out(inv_ex(A, check_errors=check_errors), out)
    try:
        inverse = inv(A)
    except LinAlgError:
        return _torch_inv_ex(A, check_errors)
    return InvEx(inverse, torch.zeros(A.shape[:-2], dtype=torch.int32, device=A.device))


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
