"""``bmm``: Faddeev-LeVerrier, the adjugate as a polynomial of the matrix."""

from __future__ import annotations

import torch

from autoinv.ops.inv.strategies._guard import SERIAL_NUMBERS, WIDE, Formula, Guarded, without_autocast
from autoinv.problem import Problem


class Bmm(Guarded):
    """Powers of the matrix by ``torch.bmm``, its characteristic polynomial by their traces.

    Source: D. K. Faddeev and V. N. Faddeeva, Computational Methods of Linear Algebra, 1963, section 47.
    """

    name = "bmm"
    limits = "matrices from 2 x 2 to 4 x 4"
    growth = 2.0  # Source: scripts/sweep_accuracy.py; the polynomial's terms cancel more than cofactors do

    def supports(self, problem: Problem) -> bool:
        """n from 2 to 4; there is no product to make for 1."""
        return 2 <= problem.n <= 4 and problem.batch > 0

    def formula(self, problem: Problem) -> Formula:
        """Return the polynomial of degree n - 1."""
        n, wide = problem.n, WIDE.get(problem.dtype, problem.dtype)
        eye = torch.eye(n, dtype=wide, device=problem.device)

        def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            M = A.to(wide)
            product = M
            for k in range(1, n):
                B = product - eye * (_trace(product) / k)[:, None, None]
                product = torch.bmm(M, B)
            adjugate = B if n % 2 else -B
            return _planes(M), _planes(adjugate), _trace(product) / (n if n % 2 else -n)

        return without_autocast(problem, formula)

    def is_multithreaded(self, problem: Problem) -> bool:
        """On the CPU, where a step holds enough products of numbers."""
        return problem.on_cpu and problem.threads > 1 and problem.batch * problem.n**3 >= SERIAL_NUMBERS


def _trace(M: torch.Tensor) -> torch.Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)


def _planes(M: torch.Tensor) -> torch.Tensor:
    return M.flatten(1).resolve_conj().t()
