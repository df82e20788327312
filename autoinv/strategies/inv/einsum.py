"""``einsum``: the adjugate by contraction with the Levi-Civita symbol."""

from __future__ import annotations

import torch

from autoinv.problem import Problem
from autoinv.strategies.base import Run, Strategy
from autoinv.strategies.inv._guard import Formula, guarded
from autoinv.strategies.inv._products import full_precision, products_are_exact_enough

GROWTH = 16.0
"""Largest a^(n-1) / c that is kept.

Source: scripts/sweep_accuracy.py.
"""


class Einsum(Strategy):
    """``adj(A)_ji = e_ip.. e_jr.. A_pr .. / (n - 1)!`` by ``torch.einsum``."""

    name = "einsum"

    def supports(self, problem: Problem) -> bool:
        """n = 2 and 3, where products keep the dtype's precision."""
        return problem.n in (2, 3) and problem.batch > 0 and products_are_exact_enough(problem)

    def bind(self, problem: Problem) -> Run:
        """Return the guarded contraction, the symbol on the problem's device."""
        formula = _of_2x2(problem) if problem.n == 2 else _of_3x3(problem)
        return guarded(problem, full_precision(problem, formula), GROWTH)

    def opens_team(self, problem: Problem) -> bool:
        """It comes down to ``torch.bmm``."""
        return problem.on_cpu and problem.threads > 1


def _of_2x2(problem: Problem) -> Formula:
    symbol = _levi_civita(problem)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        e = symbol.expand(
            len(A), 2, 2
        )  # so that each matrix is a product of its own, not part of a large one
        adjugate = torch.einsum("bip,bpr,bjr->bji", e, A, e)
        return A, adjugate, torch.einsum("bj,bj->b", A[:, 0], adjugate[:, :, 0])

    return formula


def _of_3x3(problem: Problem) -> Formula:
    symbol = _levi_civita(problem)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        e = symbol.expand(len(A), 3, 3, 3)
        rows = torch.einsum("bipq,bpr->biqr", e, A)
        columns = torch.einsum("bjrs,bqs->bjqr", e, A)
        adjugate = torch.einsum("biqr,bjqr->bji", rows, columns).mul_(0.5)
        return A, adjugate, torch.einsum("bj,bj->b", A[:, 0], adjugate[:, :, 0])

    return formula


def _levi_civita(problem: Problem) -> torch.Tensor:
    """Return the symbol e_ij or e_ijk, +1 for even permutations, -1 for odd ones, else 0."""
    if problem.n == 2:
        values = [[0, 1], [-1, 0]]
        return torch.tensor(values, dtype=problem.dtype, device=problem.device)
    symbol = torch.zeros(3, 3, 3, dtype=problem.dtype, device=problem.device)
    for i in range(3):
        symbol[i, (i + 1) % 3, (i + 2) % 3] = 1
        symbol[i, (i + 2) % 3, (i + 1) % 3] = -1
    return symbol
