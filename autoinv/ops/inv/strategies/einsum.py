"""``einsum``: the adjugate by contraction with the Levi-Civita symbol."""

from __future__ import annotations

import torch

from autoinv.ops.inv.strategies._guard import WIDE, Formula, Guarded, without_autocast
from autoinv.problem import Problem


class Einsum(Guarded):
    """``adj(A)_ji = e_ip.. e_jr.. A_pr .. / (n - 1)!`` by ``torch.einsum``."""

    name = "einsum"
    limits = "2 x 2 and 3 x 3 matrices"
    growth = 5.0  # Source: scripts/sweep_accuracy.py

    def supports(self, problem: Problem) -> bool:
        """n = 2 and 3."""
        return problem.n in (2, 3) and problem.batch > 0

    def formula(self, problem: Problem) -> Formula:
        """Return the contraction for this n."""
        n, wide = problem.n, WIDE.get(problem.dtype, problem.dtype)
        adjugate_of = _adjugate_of_2x2 if n == 2 else _adjugate_of_3x3
        symbol = _levi_civita(n, wide, problem.device)

        def formula(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            M = A.to(wide).resolve_conj()
            adjugate = adjugate_of(M, symbol)
            determinant = torch.einsum("bj,bj->b", M[:, 0], adjugate[:, :, 0])
            return M.flatten(1).t(), adjugate.flatten(1).t(), determinant

        return without_autocast(problem, formula)

    def is_multithreaded(self, problem: Problem) -> bool:
        """It comes down to ``torch.bmm``."""
        return problem.on_cpu and problem.threads > 1


def _adjugate_of_2x2(M: torch.Tensor, symbol: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ip,bpr,jr->bji", symbol, M, symbol)


def _adjugate_of_3x3(M: torch.Tensor, symbol: torch.Tensor) -> torch.Tensor:
    rows = torch.einsum("ipq,bpr->biqr", symbol, M)
    columns = torch.einsum("jrs,bqs->bjqr", symbol, M)
    return torch.einsum("biqr,bjqr->bji", rows, columns).mul_(0.5)


def _levi_civita(n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return the symbol e_ij or e_ijk: +1 for even permutations, -1 for odd ones, else 0."""
    if n == 2:
        return torch.tensor([[0, 1], [-1, 0]], dtype=dtype, device=device)
    symbol = torch.zeros(3, 3, 3, dtype=dtype, device=device)
    for i in range(3):
        symbol[i, (i + 1) % 3, (i + 2) % 3] = 1
        symbol[i, (i + 2) % 3, (i + 1) % 3] = -1
    return symbol
