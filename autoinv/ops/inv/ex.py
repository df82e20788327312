"""``torch.linalg.inv_ex`` itself, made contiguous, which `inv_ex` falls back to; its rules for ``out=``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from autoinv.calls.state import is_ordinary, is_ordinary_type, wants_gradient
from autoinv.ops.inv.strategies._lu import batched_is_broken
from autoinv.ops.inv.strategies._lu import inv_ex as torch_linalg_inv_ex
from autoinv.problem import Problem


class InvEx(NamedTuple):
    """What `inv_ex` returns: the inverses ``(*, n, n)`` and int32 ``info`` ``(*)``, 0 where there is one."""

    inverse: Tensor
    info: Tensor


def torch_inv_ex(A: Tensor, check_errors: bool, out: Sequence[Tensor] | None = None) -> InvEx:
    """Return PyTorch's own answer, contiguous; matrix by matrix where its call on the batch is broken.

    Raises:
        Exception: whatever ``torch.linalg.inv_ex`` raises.
    """
    if out is not None:
        return InvEx(*torch_linalg_inv_ex(A, check_errors=check_errors, out=out))
    if is_ordinary(A) and batched_is_broken(Problem.of("inv", A)):
        return _one_by_one(A, check_errors)
    inverse, info = torch_linalg_inv_ex(A, check_errors=check_errors)
    return InvEx(inverse.contiguous(), info)


def fits_out(A: Tensor, out: Sequence[Tensor]) -> bool:
    """Whether ``out`` can take an ordinary tensor's answer; if not, torch has an error for it."""
    if not isinstance(out, tuple | list) or len(out) != 2 or not all(map(is_ordinary_type, out)):
        return False
    inverse, info = out
    is_typed = inverse.dtype is A.dtype and info.dtype is torch.int32
    return is_typed and inverse.device == info.device == A.device and not wants_gradient(A, *out)


def fill_out(answer: InvEx, out: Sequence[Tensor]) -> InvEx:
    """Write the answer into ``out``, resized with torch's warning where its shape differs."""
    for value, target in zip(answer, out, strict=True):
        if target.shape == value.shape:
            target.copy_(value)
        else:  # calls that resize, and warn as every out= does; no info is negative
            torch.cat((value,), out=target) if value.dim() else torch.abs(value, out=target)
    return InvEx(*out)


def _one_by_one(A: Tensor, check_errors: bool) -> InvEx:
    answers = [torch_linalg_inv_ex(matrix) for matrix in A.reshape(-1, *A.shape[-2:])]
    inverse = torch.stack([each.inverse for each in answers]).view(A.shape)
    info = torch.stack([each.info for each in answers]).view(A.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "linalg.inv_ex", is_matrix=False)
    return InvEx(inverse.contiguous(), info)
