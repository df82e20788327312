"""``bmm``: Faddeev-LeVerrier, the adjugate as a polynomial of the matrix."""

from __future__ import annotations

import torch

from autoinv.problem import Problem
from autoinv.strategies.base import Run, Strategy
from autoinv.strategies.inv._guard import guarded
from autoinv.strategies.inv._products import full_precision, products_are_exact_enough

GROWTH = 16.0
"""Largest a^(n-1) / c that is kept.

Source: scripts/sweep_accuracy.py.
"""


class Bmm(Strategy):
    """Powers of the matrix by ``torch.bmm``, its characteristic polynomial by their traces.

    Source: D. K. Faddeev and V. N. Faddeeva, Computational Methods of Linear Algebra, 1963, section 47.
    """

    name = "bmm"

    def supports(self, problem: Problem) -> bool:
        """Formulas from n = 2 to 4, where products keep the dtype's precision."""
        return 2 <= problem.n <= 4 and problem.batch > 0 and products_are_exact_enough(problem)

    def bind(self, problem: Problem) -> Run:
        """Return the guarded polynomial of degree n - 1."""
        n = problem.n
        eye = torch.eye(n, dtype=problem.dtype, device=problem.device)

        def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            B, AB = eye, A
            for k in range(1, n):
                B = AB - eye * (_trace(AB) / k)[:, None, None]
                AB = torch.bmm(A, B) if k + 1 < n else AB
            determinant = (A * B.mT).sum((-2, -1)) / n
            return (A, B, determinant) if n % 2 else (A, -B, -determinant)

        return guarded(problem, full_precision(problem, formula), GROWTH)

    def opens_team(self, problem: Problem) -> bool:
        """On the CPU torch shares the smallest batch of products among its threads."""
        return problem.on_cpu and problem.threads > 1


def _trace(M: torch.Tensor) -> torch.Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)
