"""The two products of the backward pass, by the fastest way there is for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from autoinv import native

MOST_N = 64
"""What the fused kernel takes."""

_CODES = {torch.float32: 0, torch.float64: 1}

_fused: Callable[..., None] | None = None
_looked = False


def backward_of_inverse(X: Tensor, G: Tensor) -> Tensor:
    """Return -X^H G X^H for the inverse X and the gradient G that arrives at it, both ``(*, n, n)``."""
    if (
        is_dynamo_compiling()
        or is_grad_enabled()  # a gradient of this gradient may be wanted
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or type(G) is not Tensor
        or type(X) is not Tensor
    ):
        return _product(X, G)
    if X.is_cpu and X.dtype in _CODES and X.dtype is G.dtype and X.shape[-1] <= MOST_N:
        try:
            return _fused_product(X, G)
        except (RuntimeError, ValueError):  # no memory of their own: a wrapper that outlived its transform
            pass
    return _product(X, G)


def _product(X: Tensor, G: Tensor) -> Tensor:
    if torch.is_autocast_enabled(X.device.type):
        # Autocast would round both products to its low precision; a solve is among what it keeps in float32.
        with torch.autocast(X.device.type, enabled=False):
            return -(X.mH @ G @ X.mH)
    return -(X.mH @ G @ X.mH)


def _fused_product(X: Tensor, G: Tensor) -> Tensor:
    kernel = _fused if _looked else _look()
    if kernel is None:
        return _product(X, G)
    if not X.is_contiguous():
        X = X.contiguous()
    if G.is_neg() or not G.is_contiguous():
        G = G.resolve_neg().contiguous()
    dst = torch.empty_like(X)
    n = X.shape[-1]
    kernel(X.data_ptr(), G.data_ptr(), dst.data_ptr(), _CODES[X.dtype], n, X.numel() // (n * n) if n else 0)
    return dst


def _look() -> Callable[..., None] | None:
    global _fused, _looked
    extension = native.load()
    _fused = extension.gradient if extension is not None else None
    _looked = True
    return _fused
