"""The guard: a closed formula's result is kept where it is as good as LU's, and done again by LU elsewhere.

With a = max |A_ij|, c = max |adj(A)_ij| and d = |det A|, the adjugate is wrong by a few eps * a^(n-1) and
the determinant by a few eps * a^n. Divided through, that is a right and a left residual of a few
eps * a^(n-1) / c, whatever the condition number: this growth is what the guard bounds. Single precision is
computed in double, where the growth does no harm. Besides, the determinant has to stand clear of what LU may
round away, so that LU would surely not call the matrix singular, and the powers clear of overflow and
underflow. NaN is not positive, so it needs no test of its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch

from autoinv.ops.inv.strategies._lu import lu_inverses
from autoinv.problem import Problem
from autoinv.strategy import Run, Strategy

WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
"""The dtype to compute in, where that is another one."""

Formula = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Takes ``(b, n, n)``; returns its entries and its adjugate's ``(n * n, b)``, and its determinants ``(b,)``.

All are in the wide dtype; the n * n entries stand row by row.
"""

Trust = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes what a formula returns.

Its margin ``(b,)`` is positive where the inverse is as good as LU's, and NaN or not positive elsewhere.
"""

CLEAR_OF_ROUNDING = 64.0
"""How many n * eps * a^n the determinant must exceed; LU finds a zero pivot where it lost a few of them."""

STEP = 4096
"""Matrices at a time on the CPU: what they need stays in the cache of one core."""

SERIAL_NUMBERS = 32768
"""Numbers in one operation, or multiplications in one bmm, from which torch shares it among threads.

Source: at::internal::GRAIN_SIZE, aten/src/ATen/TensorIterator.h.
"""


class Guarded(Strategy):
    """A closed formula under the guard."""

    growth: ClassVar[float]
    """Largest a^(n-1) / c that is kept in double precision."""

    @abstractmethod
    def formula(self, problem: Problem) -> Formula:
        """Return the formula for this problem's n, with what is constant on its device."""

    def step(self, problem: Problem) -> int:
        """How many matrices to take at a time."""
        return STEP if problem.on_cpu else problem.batch

    def bind(self, problem: Problem) -> Run:
        """Return the formula where it is as good as LU, and LU elsewhere."""
        return _guarded(problem, self.formula(problem), trust_of(problem, self.growth), self.step(problem))


def _guarded(problem: Problem, formula: Formula, trust: Trust, step: int) -> Run:
    shape, n, batch = problem.shape, problem.n, problem.batch

    def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        M = A.reshape(batch, n, n)
        X = torch.empty(shape, dtype=A.dtype, device=A.device) if out is None else out
        Y = X.view(batch, n, n)
        if batch <= step:
            fill(M, M, Y, 0)
        else:
            for first in range(0, batch, step):
                fill(M, M[first : first + step], Y[first : first + step], first)
        return X

    def fill(every: torch.Tensor, M: torch.Tensor, X: torch.Tensor, first: int) -> None:
        entries, adjugate, determinant = formula(M)
        margin = trust(entries, adjugate, determinant)
        inverse = (adjugate / determinant).view(n, n, -1).permute(2, 0, 1)
        if margin.amin().item() > 0:
            X.copy_(inverse)
            return
        rejected = (margin > 0).logical_not_().nonzero().squeeze(1)
        by_lu = lu_inverses(every, rejected + first, is_matrix=len(shape) == 2)
        X.copy_(inverse)  # only now: X may be M
        X.index_copy_(0, rejected, by_lu)

    return run


def trust_of(problem: Problem, growth: float) -> Trust:
    """Return the test for matrices of this problem, which keeps a^(n-1) / c up to ``growth``."""
    n, is_complex, limits = problem.n, problem.dtype.is_complex, torch.finfo(problem.dtype)
    wide = torch.finfo(WIDE.get(problem.dtype, problem.dtype))
    # The n-th power of a * scale overflows before any sum of n! products of n entries does.
    scale = (2 * math.factorial(n)) ** (1 / n)
    rounding = CLEAR_OF_ROUNDING * n * limits.eps / scale**n
    largest_ratio = growth * scale ** (n - 1)
    smallest = max(
        16 * wide.tiny / wide.eps,  # so that no product that matters underflows
        math.factorial(n) * (4 / (CLEAR_OF_ROUNDING * n * limits.eps * limits.max)) ** n,  # nor X overflows
    )
    threshold = torch.tensor(smallest, dtype=torch.float64, device=problem.device)
    scale *= math.sqrt(2) if is_complex else 1  # a at least, c at most the largest modulus
    is_growth_harmless = n <= 2 or wide.eps < limits.eps

    def trust(entries: torch.Tensor, adjugate: torch.Tensor, determinant: torch.Tensor) -> torch.Tensor:
        a = _largest(entries).mul_(scale)
        power = torch.ones_like(a) if n == 1 else a
        for _ in range(n - 2):
            power = power * a
        clear = determinant.abs().sub_(torch.addcmul(threshold, power, a, value=rounding))
        if is_growth_harmless:
            return clear
        return torch.minimum(clear, _largest(adjugate).mul_(largest_ratio).sub_(power))

    return trust


def _largest(P: torch.Tensor) -> torch.Tensor:
    """``(n * n, b)`` -> ``(b,)``, the largest absolute value of an entry, or of a real or imaginary part."""
    if P.is_complex():
        return torch.view_as_real(P).abs().amax(0).amax(1)
    return P.abs().amax(0)


def without_autocast(problem: Problem, formula: Formula) -> Formula:
    """Return the formula with autocast off inside, which might make its products bfloat16 or half.

    They are all in double precision, which no TF32 or bfloat16 setting touches.
    """
    kind = problem.device.partition(":")[0]
    enabled = torch.is_autocast_enabled

    def run(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not enabled(kind):
            return formula(A)
        with torch.autocast(kind, enabled=False):
            return formula(A)

    return run
