"""``closed_form``: the adjugate over the determinant, entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autoinv.ops.inv.strategies._cofactors import expansions_of_4x4, minors_of_3x3, minors_of_4x4
from autoinv.ops.inv.strategies._guard import SERIAL_NUMBERS, STEP, WIDE, Formula, Guarded
from autoinv.problem import Problem

_WIDEST = {1: 1, 2: 4, 3: 36, 4: 48}  # numbers a matrix in a formula's largest operation


class ClosedForm(Guarded):
    """Cofactors by products of planes; one plane holds the same entry of every matrix."""

    name = "closed_form"
    growth = 6.0  # Source: scripts/sweep_accuracy.py

    def supports(self, problem: Problem) -> bool:
        """Formulas up to n = 4."""
        return 1 <= problem.n <= 4 and problem.batch > 0

    def formula(self, problem: Problem) -> Formula:
        """Return the cofactor expansion for this n."""
        return _FORMULAS[problem.n](problem)

    def step(self, problem: Problem) -> int:
        """With several threads, too few for torch to open a team: calm, at little cost."""
        if problem.on_cpu and problem.threads > 1:
            return min(STEP, SERIAL_NUMBERS // _WIDEST[problem.n] - 1)
        return super().step(problem)


def _of_1x1(problem: Problem) -> Formula:
    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        return P, torch.ones_like(P), P[0]

    return formula


def _of_2x2(problem: Problem) -> Formula:
    order = torch.tensor([3, 1, 2, 0], device=problem.device)
    signs = torch.tensor([[1], [-1], [-1], [1]], dtype=_wide(problem.dtype), device=problem.device)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        a, b, c, d = P.unbind()
        return P, P.index_select(0, order).mul_(signs), (a * d).addcmul_(b, c, value=-1)

    return formula


def _of_3x3(problem: Problem) -> Formula:
    factors = minors_of_3x3(problem.device)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        adjugate = _minors(P, factors, 9)
        return P, adjugate, (P[:3] * adjugate[::3]).sum(0)

    return formula


def _of_4x4(problem: Problem) -> Formula:
    factors = minors_of_4x4(problem.device)
    entries, minors = expansions_of_4x4(problem.device)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        S = _minors(P, factors, 12)
        terms = P.index_select(0, entries).mul_(torch.cat((S, S.neg())).index_select(0, minors))
        adjugate = terms.view(3, 16, -1).sum(0)
        return P, adjugate, (P[:4] * adjugate[::4]).sum(0)

    return formula


_FORMULAS: dict[int, Callable[[Problem], Formula]] = {1: _of_1x1, 2: _of_2x2, 3: _of_3x3, 4: _of_4x4}


def _planes(A: torch.Tensor) -> torch.Tensor:
    """``(b, n, n)`` -> ``(n * n, b)`` in the wide dtype."""
    b, n, _ = A.shape
    P = torch.empty((n, n, b), dtype=_wide(A.dtype), device=A.device)
    return P.copy_(A.permute(1, 2, 0)).view(n * n, b)


def _minors(P: torch.Tensor, factors: torch.Tensor, count: int) -> torch.Tensor:
    a, b, c, d = P.index_select(0, factors).view(4, count, -1).unbind()
    return (a * b).addcmul_(c, d, value=-1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return WIDE.get(dtype, dtype)
