"""``inv(A, out=B)``: torch's rules for ``out=``."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, get_num_threads, is_grad_enabled, is_inference_mode_enabled
from torch._C import _increment_version, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_unary

from autoinv.calls.answer import answer
from autoinv.calls.state import is_ordinary, is_ordinary_type, resolved, wants_gradient
from autoinv.ops.inv.operation import DISPATCHER
from autoinv.ops.inv.strategies._kernels import Kernel, address_call
from autoinv.ops.inv.strategies._lu import inv as torch_linalg_inv
from autoinv.ops.inv.strategies._lu import repair
from autoinv.planning.dispatch import key_of
from autoinv.strategy import LinAlgError, Run

_Direct = tuple[Kernel, int, int, int, int, int]
"""A kernel that takes two addresses, its dtype's code, n and batch, and minus and plus the bytes of an operand.

A plain tuple: a named one takes 40 ns more to unpack.
"""

# Contiguous problems whose chosen strategy is such a kernel. They stand in the memo, to be forgotten with it.
_direct = cast("dict[tuple[object, ...], _Direct]", DISPATCHER.memo)


def into(A: Tensor, out: Tensor) -> Tensor:
    """Write the inverse of ``A`` into ``out`` and return it.

    Raises:
        Exception: whatever ``torch.linalg.inv(A, out=out)`` raises.
    """
    # Two plain contiguous CPU tensors, apart or the same: a lane of its own that allocates nothing. Each test
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
        return _into_any(A, out)
    try:
        out._version  # noqa: B018 (an inference tensor has none, and saying so is its cheapest test)
    except RuntimeError:
        return _into_any(A, out)
    shape, dtype = A.shape, A.dtype
    direct = _direct.get((shape, dtype, get_num_threads(), "out"))
    if direct is None or out.shape != shape or out.dtype is not dtype:
        return _into_any(A, out)
    kernel, code, n, batch, below, above = direct
    source = A.data_ptr()
    target = out.data_ptr()
    if below < source - target < above and source != target:  # they overlap
        return _into_any(A, out)
    _increment_version((out,))
    try:
        doubtful = kernel(source, target, code, n, batch)
    except ValueError:  # no memory behind one of them
        return _into_any(A, out)
    if doubtful is not None:
        repair(A, out, doubtful)
    return out


def _into_any(A: Tensor, out: Tensor) -> Tensor:
    if (
        not is_ordinary(A)
        or not is_ordinary_type(out)
        or out.dtype is not A.dtype
        or out.device != A.device
        or out.layout is not torch.strided
        or wants_gradient(A, out)
        or (out.is_inference() and not is_inference_mode_enabled())
    ):
        return torch_linalg_inv(A, out=out)  # its answer or, mostly, its error
    A = resolved(A)
    if out.shape != A.shape:
        return torch.cat((answer(A),), out=out)  # resizes, and warns as every out= does
    is_direct = out.is_contiguous() and not (out.is_neg() or out.is_conj()) and _is_apart_or_same(A, out)
    return _write(A, out) if is_direct else out.copy_(answer(A))


def _is_apart_or_same(A: Tensor, out: Tensor) -> bool:
    """Whether a contiguous ``out`` shares no byte with ``A``, or is the very same matrices."""
    source, target = A.data_ptr(), out.data_ptr()
    if source == target:
        return A.is_contiguous()
    extent = 1 + sum((size - 1) * step for size, step in zip(A.shape, A.stride(), strict=True))
    return source + extent * A.itemsize <= target or target + out.nbytes <= source


def _write(A: Tensor, out: Tensor) -> Tensor:
    key = key_of(A)
    run = DISPATCHER.memo.get(key) or DISPATCHER.miss(key, A)
    _increment_version((out,))
    try:
        run(A, out)
    except LinAlgError:
        raise
    except Exception as error:
        return DISPATCHER.failed(key, A, out, error)
    is_final = DISPATCHER.memo.get(key) is run  # else it serves once, and the next call plans again
    if is_final and A.shape[-1] > 1 and A.is_contiguous():
        _remember(key, run, A)
    return out


def _remember(key: tuple[object, ...], run: Run, A: Tensor) -> None:
    call = address_call(run)
    if call is not None:
        direct_key = (*key, "out")
        _direct[direct_key] = (*call, -A.nbytes, A.nbytes)
