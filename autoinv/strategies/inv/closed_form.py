"""``closed_form``: the adjugate over the determinant, entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autoinv.problem import Problem
from autoinv.strategies.base import Run, Strategy
from autoinv.strategies.inv._cofactors import expansions_of_4x4, minors_of_3x3, minors_of_4x4
from autoinv.strategies.inv._guard import Formula, guarded

GROWTH = 16.0
"""Largest a^(n-1) / c that is kept.

Source: scripts/sweep_accuracy.py.
"""

TEAM_ABOVE_NUMBERS = 32768
"""Numbers in one elementwise operation from which torch shares it among threads.

Source: at::internal::GRAIN_SIZE, aten/src/ATen/TensorIterator.h
"""


class ClosedForm(Strategy):
    """Cofactors by products of planes; one plane holds the same entry of every matrix."""

    name = "closed_form"

    def supports(self, problem: Problem) -> bool:
        """Formulas up to n = 4."""
        return 1 <= problem.n <= 4 and problem.batch > 0

    def bind(self, problem: Problem) -> Run:
        """Return the guarded formula for this n, its tables on the problem's device."""
        return guarded(problem, _FORMULAS[problem.n](problem), GROWTH)

    def opens_team(self, problem: Problem) -> bool:
        """On the CPU, where the largest gather of planes is long enough."""
        gathered = problem.batch * {1: 1, 2: 4, 3: 36, 4: 48}[problem.n]
        return problem.on_cpu and problem.threads > 1 and gathered >= TEAM_ABOVE_NUMBERS


def _of_1x1(problem: Problem) -> Formula:
    del problem
    return lambda A: (A, torch.ones_like(A), A[:, 0, 0])


def _of_2x2(problem: Problem) -> Formula:
    order = torch.tensor([3, 1, 2, 0], device=problem.device)
    signs = torch.tensor([[1], [-1], [-1], [1]], dtype=problem.dtype, device=problem.device)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        a, b, c, d = P.unbind()
        return _matrices(P), _matrices(P.index_select(0, order).mul_(signs)), (a * d).addcmul_(b, c, value=-1)

    return formula


def _of_3x3(problem: Problem) -> Formula:
    factors = minors_of_3x3(problem.device)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        C = _minors(P, factors, 9)
        return _matrices(P), _matrices(C).mT, (P[:3] * C[:3]).sum(0)

    return formula


def _of_4x4(problem: Problem) -> Formula:
    factors = minors_of_4x4(problem.device)
    entries, minors = expansions_of_4x4(problem.device)
    batch = problem.batch

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        S = _minors(P, factors, 12)
        signed = torch.cat((S, S.neg()))
        C = (P.index_select(0, entries) * signed.index_select(0, minors)).view(3, 16, batch).sum(0)
        return _matrices(P), _matrices(C).mT, (P[:4] * C[:4]).sum(0)

    return formula


_FORMULAS: dict[int, Callable[[Problem], Formula]] = {1: _of_1x1, 2: _of_2x2, 3: _of_3x3, 4: _of_4x4}


def _planes(A: torch.Tensor) -> torch.Tensor:
    """``(b, n, n)`` -> ``(n * n, b)``, contiguous."""
    return A.flatten(1).t().contiguous()


def _matrices(P: torch.Tensor) -> torch.Tensor:
    """``(n * n, b)`` -> ``(b, n, n)``, a view."""
    n = {1: 1, 4: 2, 9: 3, 16: 4}[len(P)]
    return P.view(n, n, -1).permute(2, 0, 1)


def _minors(P: torch.Tensor, factors: torch.Tensor, count: int) -> torch.Tensor:
    a, b, c, d = P.index_select(0, factors).view(4, count, -1).unbind()
    return (a * b).addcmul_(c, d, value=-1)
