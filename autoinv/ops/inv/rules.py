"""The derivatives of the inverse, the same for all strategies: backward -X^H G X^H, forward dX = -X dA X.

Source: M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008), 2.2.3; torch's convention for complex numbers (conjugate Wirtinger).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from autoinv import native
from autoinv.calls.state import is_overridden
from autoinv.operation import Operands, Rules

FUSED_MOST_N = 64
"""The largest matrices that the fused kernel takes."""

_CODES = {torch.float32: 0, torch.float64: 1}

_fused: Callable[..., None] | None = None
_is_fused_known = False


class InverseRules(Rules):
    """All derivatives are functions of the inverse itself."""

    def saved(self, operands: Operands, result: Tensor) -> Operands:
        """Return the inverse."""
        del operands
        return (result,)

    def backward(self, saved: Operands, G: Tensor, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """Return -X^H G X^H."""
        del wanted  # there is one operand
        return (backward_of_inverse(saved[0], G),)

    def jvp(self, saved: Operands, tangents: Sequence[Tensor | None]) -> Tensor:
        """Return -X dA X."""
        (X,), (dA,) = saved, tangents
        return torch.zeros_like(X) if dA is None else forward_of_inverse(X, dA)


def forward_of_inverse(X: Tensor, dA: Tensor) -> Tensor:
    """Return -X dA X for the inverse X and the tangent dA of the matrices, all ``(*, n, n)``."""
    return -(X @ dA @ X)


def backward_of_inverse(X: Tensor, G: Tensor) -> Tensor:
    """Return -X^H G X^H for the inverse X and the gradient G that arrives at it, all ``(*, n, n)``."""
    if (
        is_dynamo_compiling()
        or is_grad_enabled()  # a gradient of this gradient may be wanted
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or (_len_torch_function_stack() and is_overridden())
        or type(G) is not Tensor
        or type(X) is not Tensor
    ):
        return _in_full_precision(_differentiable, X, G)
    if X.is_cpu and G.is_cpu and X.dtype in _CODES and X.dtype is G.dtype and X.shape[-1] <= FUSED_MOST_N:
        try:
            return _fused_product(X, G)
        except (RuntimeError, ValueError):  # no memory of its own: a wrapper that outlived its transform
            pass
    return _in_full_precision(_two_products, X, G)


def _in_full_precision(product: Callable[[Tensor, Tensor], Tensor], X: Tensor, G: Tensor) -> Tensor:
    device = X.device.type
    if not torch.is_autocast_enabled(device):
        return product(X, G)
    # Autocast keeps `inv` in float32, but would round these products.
    with torch.autocast(device, enabled=False):
        return product(X, G)


def _differentiable(X: Tensor, G: Tensor) -> Tensor:
    return -(X.mH @ G @ X.mH)


def _two_products(X: Tensor, G: Tensor) -> Tensor:
    # One conjugate transpose for both, and torch.bmm itself: two thirds of the time of two `@` for 80 3x3.
    n = X.shape[-1]
    XH = X.mH.resolve_conj().reshape(-1, n, n)
    return torch.bmm(torch.bmm(XH, G.reshape(-1, n, n)), XH).neg_().view(X.shape)


def _fused_product(X: Tensor, G: Tensor) -> Tensor:
    kernel = _fused if _is_fused_known else _look_up()
    if kernel is None:
        return _two_products(X, G)
    X = X.contiguous()
    G = G.resolve_neg().contiguous()
    dst = torch.empty_like(X)
    n = X.shape[-1]
    kernel(X.data_ptr(), G.data_ptr(), dst.data_ptr(), _CODES[X.dtype], n, X.numel() // (n * n) if n else 0)
    return dst


def _look_up() -> Callable[..., None] | None:
    global _fused, _is_fused_known
    extension = native.load()
    _fused = extension.gradient if extension is not None else None
    _is_fused_known = True
    return _fused
