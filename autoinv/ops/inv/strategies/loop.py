"""``loop``: one call a matrix. The reference where PyTorch's batched call is broken."""

from __future__ import annotations

import torch

from autoinv.ops.inv.strategies._lu import MULTITHREADED_ABOVE_N, inv, inv_ex, inv_into, raise_if_singular
from autoinv.problem import Problem
from autoinv.strategy import Run, Strategy


class Loop(Strategy):
    """``torch.linalg.inv_ex`` for each matrix, into one output; the infos are checked once, at the end."""

    name = "loop"
    limits = "matrices and batches that are not empty"

    def supports(self, problem: Problem) -> bool:
        """Any batch that holds something."""
        return problem.batch > 0 and problem.n > 0

    def bind(self, problem: Problem) -> Run:
        """Return the loop over a batch, or the plain call for a single matrix."""
        if len(problem.shape) == 2:
            return _one
        shape, batch, n = problem.shape, problem.batch, problem.n

        def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            # A column-major output, as 1x1 are, is solved in place: it must not be A.
            X = torch.empty(shape, dtype=A.dtype, device=A.device) if out is None or n == 1 else out
            info = torch.empty(batch, dtype=torch.int32, device=A.device)
            matrices = A.reshape(batch, n, n).unbind()
            for a, x, i in zip(matrices, X.view(batch, n, n).unbind(), info.unbind(), strict=True):
                inv_ex(a, out=(x, i))
            raise_if_singular(info, is_matrix=False)
            return X if out is None or X is out else out.copy_(X)

        return run

    def is_multithreaded(self, problem: Problem) -> bool:
        """Only the library's own threads within one large matrix."""
        return problem.on_cpu and problem.threads > 1 and problem.n > MULTITHREADED_ABOVE_N

    def may_be_slow(self, problem: Problem) -> bool:
        """A Python iteration a matrix."""
        return problem.batch > 1


def _one(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return inv(A).contiguous() if out is None else inv_into(A, out)
