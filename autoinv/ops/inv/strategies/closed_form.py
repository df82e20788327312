"""``closed_form``: the adjugate over the determinant, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch

from autoinv.ops.inv.strategies._guard import SERIAL_NUMBERS, STEP, WIDE, Formula, Guarded
from autoinv.problem import Problem

_PAIRS = tuple(combinations(range(4), 2))
_WIDEST = {1: 1, 2: 4, 3: 36, 4: 48}  # numbers a matrix in a formula's largest operation


class ClosedForm(Guarded):
    """Cofactors by products of planes; one plane holds the same entry of every matrix."""

    name = "closed_form"
    limits = "matrices up to 4 x 4"
    growth = 6.0  # Source: scripts/sweep_accuracy.py

    def supports(self, problem: Problem) -> bool:
        """Formulas up to n = 4."""
        return 1 <= problem.n <= 4 and problem.batch > 0

    def formula(self, problem: Problem) -> Formula:
        """Return the cofactor expansion for this n."""
        return _FORMULAS[problem.n](problem)

    def step(self, problem: Problem) -> int:
        """With several threads, too few for torch to open a team, at little cost."""
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
    factors = _minors_of_3x3(problem.device)

    def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        P = _planes(A)
        adjugate = _minors(P, factors, 9)
        return P, adjugate, (P[:3] * adjugate[::3]).sum(0)

    return formula


def _of_4x4(problem: Problem) -> Formula:
    factors = _minors_of_4x4(problem.device)
    entries, minors = _expansions_of_4x4(problem.device)

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


def _minors_of_3x3(device: str) -> torch.Tensor:
    """Return the flat indices ``(4 * 9,)`` of the factors of ``l * r - s * t``, the adjugate's entries."""
    factors: list[list[int]] = [[], [], [], []]
    for j in range(3):
        for i in range(3):
            down, below = 3 * ((i + 1) % 3), 3 * ((i + 2) % 3)
            right, beyond = (j + 1) % 3, (j + 2) % 3
            _append(factors, down + right, below + beyond, down + beyond, below + right)
    return _table(factors, device)


def _minors_of_4x4(device: str) -> torch.Tensor:
    """Return the flat indices ``(4 * 12,)`` of the factors of the minors of rows 0, 1, then of rows 2, 3."""
    factors: list[list[int]] = [[], [], [], []]
    for upper in (0, 8):
        for p, q in _PAIRS:
            _append(factors, upper + p, upper + 4 + q, upper + q, upper + 4 + p)
    return _table(factors, device)


def _expansions_of_4x4(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what makes up the adjugate of a 4x4: flat indices ``(3 * 16,)`` of entries and of minors.

    Its entry (j, i), the cofactor (i, j), is the sum of three products of an entry of the row beside i with a
    minor of the other two rows (Laplace). The minors are those of ``_minors_of_4x4``, then their negatives.
    """
    entries: list[list[int]] = [[], [], []]
    minors: list[list[int]] = [[], [], []]
    for j in range(4):
        for i in range(4):
            for term, k in enumerate(k for k in range(4) if k != j):
                p, q = (c for c in range(4) if c not in (j, k))
                beside = i ^ 1
                columns = (j, k, p, q) if i in (0, 2) else (k, j, p, q)
                odd = sum(x > y for x, y in combinations(columns, 2)) % 2
                entries[term].append(4 * beside + k)
                minors[term].append(_PAIRS.index((p, q)) + (6 if i < 2 else 0) + 12 * odd)
    return _table(entries, device), _table(minors, device)


def _append(factors: list[list[int]], *indices: int) -> None:
    for factor, index in zip(factors, indices, strict=True):
        factor.append(index)


def _table(rows: list[list[int]], device: str) -> torch.Tensor:
    return torch.tensor(rows, device=device).flatten()
