"""The guard: a closed formula's result is kept where it is as good as LU's, and done again by LU elsewhere.

With a = max |A_ij|, c = max |adj(A)_ij| and d = |det A|, the adjugate is wrong by a few eps * a^(n-1) and
the determinant by a few eps * a^n. Divided through, that is a right and a left residual of a few
eps * a^(n-1) / c, whatever the condition number: this growth is what the guard bounds. Besides, the
determinant has to stand clear of its own rounding, so that the matrix is surely not singular, and the powers
clear of overflow and underflow. Comparisons with NaN are false, so it needs no test of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from autoinv.problem import Problem
from autoinv.strategies.base import Run
from autoinv.strategies.inv._lu import repair

Formula = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Takes ``(b, n, n)``; returns it, in the layout worked on, its adjugate, and the determinants ``(b,)``."""

CLEAR_OF_ROUNDING = 64.0
"""How many n * eps * a^n the determinant must exceed: far over what a sum of n! products can lose."""


def guarded(problem: Problem, formula: Formula, growth: float) -> Run:
    """Return the strategy's function: ``formula`` where a^(n-1) / c is under ``growth``, LU elsewhere."""
    shape, matrices = problem.shape, (problem.batch, problem.n, problem.n)
    trust = _trust(problem.n, torch.finfo(problem.dtype), growth)

    def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        entries, adjugate, determinant = formula(A.reshape(matrices))
        trusted = trust(entries, adjugate, determinant)
        divisor = determinant[:, None, None]
        X = torch.empty(shape, dtype=A.dtype, device=A.device) if out is None else out
        if trusted.all():
            torch.div(adjugate, divisor, out=X.view(matrices))
            return X
        repaired = torch.empty(matrices, dtype=A.dtype, device=A.device)  # apart from out, which may be A
        torch.div(adjugate, divisor, out=repaired)
        repair(A, repaired.view(shape), trusted.logical_not_().nonzero().squeeze(1))
        return X.copy_(repaired.view(shape))

    return run


def _trust(
    n: int, limits: torch.finfo, growth: float
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the test of ``(b, n, n)`` matrices, their adjugates and their determinants."""
    # The n-th power of a * scale overflows before any sum of n! products of n entries does.
    scale = (2 * math.factorial(n)) ** (1 / n)
    rounding = CLEAR_OF_ROUNDING * n * limits.eps / scale**n
    underflow = 16 * limits.tiny / limits.eps
    share = scale ** (n - 1) * growth

    def trust(entries: torch.Tensor, adjugate: torch.Tensor, determinant: torch.Tensor) -> torch.Tensor:
        a = _largest(entries).mul_(scale)
        power = a.pow(n - 1)
        clear = determinant.abs() > (power * a).mul_(rounding).clamp_(min=underflow)
        return clear if n <= 2 else clear.logical_and_(_largest(adjugate).mul_(share) > power)

    return trust


def _largest(M: torch.Tensor) -> torch.Tensor:
    return M.abs().amax((-2, -1))
