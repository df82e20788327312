"""``flat``: several batch dimensions as one."""

from __future__ import annotations

import torch

from autoinv.ops.inv.strategies._lu import batched_is_broken, inv, inv_into, lu_is_multithreaded
from autoinv.problem import Problem
from autoinv.strategy import Run, Strategy


class Flat(Strategy):
    """Flatten the batch dimensions, one ``torch.linalg.inv``, restore them."""

    name = "flat"
    limits = "two or more batch dimensions, where PyTorch's batched call is not broken"

    def supports(self, problem: Problem) -> bool:
        """Two or more batch dimensions that hold something, where torch's batched call is right."""
        several = len(problem.shape) > 3 and problem.batch > 0 and problem.n > 0
        return several and not batched_is_broken(problem)

    def bind(self, problem: Problem) -> Run:
        """Return the call on the flattened batch."""
        shape, flat = problem.shape, (problem.batch, problem.n, problem.n)

        def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            if out is None:
                return inv(A.reshape(flat)).contiguous().view(shape)
            inv_into(A.reshape(flat), out.view(flat))
            return out

        return run

    def is_multithreaded(self, problem: Problem) -> bool:
        """As ``batched`` does."""
        return lu_is_multithreaded(problem)
