"""``batched``: PyTorch's own call, the reference."""

from __future__ import annotations

import torch

from autoinv.ops.inv.strategies._column_major import offers_column_major
from autoinv.ops.inv.strategies._lu import batched_is_broken, inv, inv_into, lu_is_multithreaded
from autoinv.problem import Problem
from autoinv.strategy import Run, Strategy


class Batched(Strategy):
    """``torch.linalg.inv``, its column-major matrices copied into contiguous ones."""

    name = "batched"
    limits = "all, where PyTorch's batched call is not broken"

    def supports(self, problem: Problem) -> bool:
        """Everything but what torch itself gets wrong."""
        return not batched_is_broken(problem)

    def bind(self, problem: Problem) -> Run:
        """Return the call; nothing about it depends on the problem."""
        del problem
        return _run

    def is_multithreaded(self, problem: Problem) -> bool:
        """On the CPU any batch, and a large matrix."""
        return lu_is_multithreaded(problem)


def _run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    # Not inv(A.mT).mT, contiguous for free: it swaps the left and the right residual.
    return inv(A).contiguous() if out is None else inv_into(A, out)


offers_column_major(_run, lambda: inv)
