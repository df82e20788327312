"""``inv(A, out=B)``: torch's rules for ``out=``."""

from __future__ import annotations

import torch
from torch import Tensor, get_num_threads, is_grad_enabled
from torch._C import _increment_version, _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from autoinv.ops._inv_answer import answer
from autoinv.ops._inv_operation import DISPATCHER
from autoinv.ops._inv_state import is_ordinary, is_ordinary_type, resolved, wants_gradient
from autoinv.strategies.base import LinAlgError
from autoinv.strategies.inv._lu import inv as torch_linalg_inv

_memo = DISPATCHER.memo


def into(A: Tensor, out: Tensor) -> Tensor:
    """Write the inverse of ``A`` into ``out`` and return it.

    Raises:
        Exception: whatever ``torch.linalg.inv(A, out=out)`` raises.
    """
    # Two plain contiguous CPU tensors, apart or the same: a lane of its own that allocates nothing. Each test stands
    # for a state that needs more care; torch's own getters are the cost, 50 to 100 ns each.
    if (
        type(A) is not Tensor
        or type(out) is not Tensor
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or peek_interpreter_stack() is not None
        or (is_grad_enabled() and (A.requires_grad or out.requires_grad))
    ):
        return _into_any(A, out)
    shape, dtype = A.shape, A.dtype
    key = (shape, dtype, get_num_threads())
    run = _memo.get(key)
    if (
        run is None
        or out.shape != shape
        or out.dtype is not dtype
        or not A.is_cpu
        or not out.is_cpu
        or not A.is_contiguous()
        or not out.is_contiguous()
        or A.is_neg()
        or out.is_neg()
        or dtype.is_complex
        or 0 < abs(A.data_ptr() - out.data_ptr()) < A.nbytes
    ):
        return _into_any(A, out)
    _increment_version((out,))  # first: it refuses an inference tensor, in torch's words
    try:
        run(A, out)
    except LinAlgError:
        raise
    except Exception as error:
        return DISPATCHER.failed(key, A, out, error)
    return out


def _into_any(A: Tensor, out: Tensor) -> Tensor:
    if (
        not is_ordinary(A)
        or not is_ordinary_type(out)
        or out.dtype is not A.dtype
        or out.device != A.device
        or out.layout is not torch.strided
        or wants_gradient(A, out)
    ):
        return torch_linalg_inv(A, out=out)  # its answer or, mostly, its error
    X = answer(resolved(A))
    if out.shape != X.shape:
        torch._resize_output_(out, X.shape, X.device)  # warns as every out= does
    return out.copy_(X)
