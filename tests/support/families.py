"""Families of matrices that distinguish an accurate inverse from an inaccurate one, each ``(count, n, n)``."""

from __future__ import annotations

from collections.abc import Callable

import torch

Family = Callable[[int, int, torch.Generator], torch.Tensor]
"""``family(count, n, generator)`` in complex128, of which the real dtypes take the real part."""


def _gaussian(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(count, n, n, generator=generator, dtype=torch.complex128) * 2**0.5


def _orthogonal(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    # Real, so that the real part, taken later, is orthogonal too.
    return torch.linalg.qr(_gaussian(count, n, generator).real).Q.to(torch.complex128)


def _spectrum(condition: float, shape: str) -> Family:
    """Singular values from 1 to 1 / condition: evenly (in the logarithm), one small, or one large."""

    def family(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
        values = torch.logspace(0, 0, n, dtype=torch.float64)
        if shape == "even":
            values = condition ** -torch.linspace(0, 1, n, dtype=torch.float64)
        elif shape == "one small":
            values[-1] = 1 / condition if n > 1 else 1
        else:
            values[1:] = 1 / condition
        left, right = _orthogonal(count, n, generator), _orthogonal(count, n, generator)
        return left * values @ right

    return family


def _rows_graded(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    grades = 1e-12 ** torch.linspace(0, 1, n, dtype=torch.float64)
    return _gaussian(count, n, generator) * grades[:, None]


def _columns_graded(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    return _rows_graded(count, n, generator).mT


def _permutation(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    orders = torch.rand(count, n, generator=generator).argsort(-1)
    return torch.eye(n, dtype=torch.complex128)[orders]


def _scaled(factor: float) -> Family:
    return lambda count, n, generator: _gaussian(count, n, generator) * factor


def _mixed_scales(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    """One batch from 1e-30 to 1e30."""
    exponents = torch.linspace(-30, 30, count, dtype=torch.float64)
    return _gaussian(count, n, generator) * (10**exponents)[:, None, None]


def _zero_leading_minor(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    A = _gaussian(count, n, generator)
    if n > 1:
        A[:, 0, 0] = 0
    if n > 2:
        A[:, :2, :2] = 0
        A[:, 0, 1] = 1e-20
    return A


def _triangular(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    return _gaussian(count, n, generator).triu()


def _near_skew(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    A = _gaussian(count, n, generator)
    return A - A.mT + 1e-3 * torch.eye(n)


def _near_singular(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    """The last row is nearly the sum of the others."""
    A = _gaussian(count, n, generator)
    if n > 1:
        A[:, -1] = A[:, :-1].sum(1) + 1e-6 * A[:, -1]
    return A


def _near_rank_one(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    A = _gaussian(count, n, generator)
    return A[:, :, :1] * A[:, :1, :] + 1e-2 * _gaussian(count, n, generator)


def _non_symmetric(count: int, n: int, generator: torch.Generator) -> torch.Tensor:
    """Small integers far from symmetric, exact in every dtype."""
    A = torch.randint(-4, 5, (count, n, n), generator=generator).to(torch.complex128)
    return A.triu(1) * 2 + A.tril(-1) + 9 * torch.eye(n)


def spread(n: int, dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Return ``(count, n, n)`` matrices whose singular values are spread at random over three decades."""
    generator = torch.Generator().manual_seed(seed)
    values = 10 ** (-3 * torch.rand(count, 1, n, generator=generator, dtype=torch.float64))
    A = (_orthogonal(count, n, generator) * values) @ _orthogonal(count, n, generator)
    return A.to(dtype) if dtype.is_complex else A.real.contiguous().to(dtype)


FAMILIES: dict[str, Family] = {
    "gaussian": _gaussian,
    "orthogonal": _orthogonal,
    **{
        f"condition {condition:.0e}, {shape}": _spectrum(condition, shape)
        for condition in (1e3, 1e6, 1e10, 1e14)
        for shape in ("even", "one small", "one large")
    },
    "rows graded": _rows_graded,
    "columns graded": _columns_graded,
    "permutation": _permutation,
    **{f"scaled by {factor:.0e}": _scaled(factor) for factor in (1e-30, 1e-13, 1e-6, 0.1, 1e10, 1e30)},
    "mixed scales": _mixed_scales,
    "zero leading minor": _zero_leading_minor,
    "triangular": _triangular,
    "near skew": _near_skew,
    "near singular": _near_singular,
    "near rank one": _near_rank_one,
    "non-symmetric": _non_symmetric,
}


def matrices(name: str, n: int, dtype: torch.dtype, count: int = 200, seed: int = 0) -> torch.Tensor:
    """Return ``(count, n, n)`` matrices of one family, the same ones at every call."""
    A = FAMILIES[name](count, n, torch.Generator().manual_seed(seed))
    return A.to(dtype) if dtype.is_complex else A.real.contiguous().to(dtype)
