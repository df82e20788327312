"""``vmap``: PyTorch's own vectorisation of the call on one matrix."""

from __future__ import annotations

import torch

from autoinv.ops.inv.strategies._lu import batched_is_broken, inv, lu_is_multithreaded
from autoinv.problem import Problem
from autoinv.strategy import Run, Strategy


class Vmap(Strategy):
    """``torch.vmap(torch.linalg.inv)`` over the flattened batch."""

    name = "vmap"
    limits = "batches, where PyTorch's batched call is not broken"

    def supports(self, problem: Problem) -> bool:
        """Any batch that holds something, where torch's batched call, to which it comes down, is right."""
        some = len(problem.shape) > 2 and problem.batch > 0 and problem.n > 0
        return some and not batched_is_broken(problem)

    def bind(self, problem: Problem) -> Run:
        """Return the mapped call on the flattened batch."""
        shape, flat = problem.shape, (problem.batch, problem.n, problem.n)
        mapped = torch.vmap(inv)  # here, because torch 2.6 imports all of Dynamo for it

        def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            X = mapped(A.reshape(flat)).reshape(shape)
            return X.contiguous() if out is None else out.copy_(X)

        return run

    def is_multithreaded(self, problem: Problem) -> bool:
        """As ``batched`` does."""
        return lu_is_multithreaded(problem)
