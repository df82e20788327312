"""The inverse of batches of square matrices: `inv` and `inv_ex`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, get_num_threads, is_grad_enabled
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_unary

from autoinv.calls.general import general
from autoinv.calls.out import into
from autoinv.calls.state import is_ordinary
from autoinv.ops.inv.ex import InvEx, fill_out, fits_out, torch_inv_ex
from autoinv.ops.inv.operation import DISPATCHER
from autoinv.strategy import LinAlgError

_memo = DISPATCHER.memo


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
    # The plain lane. Each test stands for a state that looks like an ordinary tensor and is not; together with the
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
        return general(A) if out is None else into(A, out)
    try:
        if A.is_cpu and A.is_contiguous():
            key: tuple[object, ...] = (A.shape, A.dtype, get_num_threads())
        else:
            key = (A.shape, A.dtype, A.device, get_num_threads(), A.stride())
    except (RuntimeError, NotImplementedError):  # sparse, nested: a layout without strides
        return general(A)
    try:
        run = _memo[key]
    except KeyError:
        run = DISPATCHER.miss(key, A)
    try:
        return run(A)
    except LinAlgError:
        raise
    except Exception as error:
        return DISPATCHER.failed(key, A, None, error)


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
    if not is_ordinary(A):
        return torch_inv_ex(A, check_errors, out)
    if out is not None:
        if not fits_out(A, out):
            return torch_inv_ex(A, check_errors, out)
        return fill_out(inv_ex(A, check_errors=check_errors), out)
    try:
        inverse = inv(A)
    except LinAlgError:
        return torch_inv_ex(A, check_errors)
    return InvEx(inverse, torch.zeros(A.shape[:-2], dtype=torch.int32, device=A.device))
