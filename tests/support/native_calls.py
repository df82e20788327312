"""Calls the C++ binding on tensors, for its own tests, with every instruction set that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from autoinv import native

EXTENSION = native.load()
CODES = {torch.float32: 0, torch.float64: 1}

needs_extension = pytest.mark.skipif(
    EXTENSION is None, reason=f"no native kernels in this install: {native.why_missing()}"
)
by_dtype = pytest.mark.parametrize("dtype", CODES, ids=str)


@pytest.fixture(params=EXTENSION.isas() if EXTENSION else ["none"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn; afterwards the one that was in use."""
    before = EXTENSION.isa()
    EXTENSION.use_isa(request.param)
    yield request.param
    EXTENSION.use_isa(before)


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def call_inv(A: torch.Tensor, X: torch.Tensor, threads: int | None = None) -> list[int]:
    """Invert contiguous ``(batch, n, n)`` into ``X``; return the indices that need fallback, none as an empty list."""
    arguments = (A.data_ptr(), X.data_ptr(), CODES[A.dtype], A.shape[-1], A.shape[0])
    if threads is None:
        return EXTENSION.inv(*arguments) or []
    return EXTENSION.inv_parallel(*arguments, threads) or []


def call_strided(A: torch.Tensor, X: torch.Tensor, threads: int | None = None) -> list[int]:
    arguments = (A.data_ptr(), X.data_ptr(), CODES[A.dtype], tuple(A.shape), A.stride())
    if threads is None:
        return EXTENSION.inv_strided(*arguments) or []
    return EXTENSION.inv_parallel_strided(*arguments, threads) or []


def residuals(A: torch.Tensor, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return right and left residuals of ``(batch, n, n)`` in units of n eps, computed in a wider type."""
    wide = np.float64 if A.dtype == torch.float32 else np.longdouble
    a, x, identity = A.numpy().astype(wide), X.numpy().astype(wide), np.eye(A.shape[-1], dtype=wide)
    scale = _norm(a) * _norm(x) * A.shape[-1] * torch.finfo(A.dtype).eps
    right, left = _norm(a @ x - identity) / scale, _norm(x @ a - identity) / scale
    return torch.from_numpy(right.astype(np.float64)), torch.from_numpy(left.astype(np.float64))


def _norm(A: np.ndarray) -> np.ndarray:
    return (A * A).sum((-2, -1)) ** 0.5


def bound(reference: float) -> float:
    """At most four times torch's residual, or under 1 n eps."""
    return max(4 * reference, 1.0)
