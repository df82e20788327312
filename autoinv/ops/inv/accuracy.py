"""How good an inverse is: its residuals, and the rule by which one is rejected."""

from __future__ import annotations

import math

import torch

TIMES_REFERENCE = 4.0
"""A residual may be this many times the reference's own."""
ALWAYS_GOOD = 1.0
"""A residual up to this many n * eps is accepted whatever the reference's."""

_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def inverse_residual(A: torch.Tensor, X: torch.Tensor) -> tuple[float, float]:
    """Return the worst right and left residual of the inverses ``X`` of ``A``, ``(*, n, n)``, in n * eps.

    No matrices at all count as 0.
    """
    if A.numel() == 0:
        return 0.0, 0.0
    right, left = residuals(A, X)
    return float(right.amax()), float(left.amax())


def reject_reason(A: torch.Tensor, X: torch.Tensor, reference_X: torch.Tensor) -> str | None:
    """Say why ``X`` is no inverse of ``A`` as good as ``reference_X``; None when it is one.

    Matrices whose reference is not finite (overflow) are left out.
    """
    if (X.shape, X.dtype, X.device) != (reference_X.shape, reference_X.dtype, reference_X.device):
        return f"returned {tuple(X.shape)} {X.dtype} on {X.device}"
    if not X.is_contiguous():
        return "returned a tensor that is not contiguous"
    compared = reference_X.isfinite().all(-1).all(-1)
    A, X, reference_X = A[compared], X[compared], reference_X[compared]
    for side, residual, reference in zip(
        ("right", "left"), inverse_residual(A, X), inverse_residual(A, reference_X), strict=True
    ):
        limit = max(TIMES_REFERENCE * reference, ALWAYS_GOOD)
        if not residual <= limit:
            return f"{side} residual {residual:.3g} is over {limit:.3g}"
    return None


def residuals(A: torch.Tensor, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each matrix's right and left residual, ``(*, n, n)`` -> ``(*,)`` twice, in n * eps.

    They are |AX - I| and |XA - I| over |A| |X|, in the largest row sum, computed in double precision. A
    matrix that is not finite counts as 0; an inverse that is not finite, of one that is, as infinite.
    """
    n = A.shape[-1]
    unit = max(n, 1) * torch.finfo(A.dtype).eps
    known = A.isfinite().all(-1).all(-1)
    wide = _WIDE.get(A.dtype, A.dtype)
    a, x = A.to(wide), X.to(wide)
    eye = torch.eye(n, dtype=wide, device=A.device)
    # The norms apart: their product may overflow or vanish where the residual itself does neither.
    size = (_row_sum(a), _row_sum(x))
    return (
        _in_units(_row_sum(a @ x - eye), size, unit, known),
        _in_units(_row_sum(x @ a - eye), size, unit, known),
    )


def _in_units(
    error: torch.Tensor, size: tuple[torch.Tensor, torch.Tensor], unit: float, known: torch.Tensor
) -> torch.Tensor:
    residual = torch.nan_to_num(error / size[0] / size[1] / unit, nan=math.inf, posinf=math.inf)
    return torch.where(known, residual, 0.0)


def _row_sum(M: torch.Tensor) -> torch.Tensor:
    """``(*, n, n)`` -> ``(*,)``, the norm that the largest row sum of absolute values is; 0 where n is 0."""
    return M.abs().sum(-1).amax(-1) if M.shape[-1] else M.new_zeros(M.shape[:-2], dtype=M.real.dtype)
