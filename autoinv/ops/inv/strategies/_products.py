"""Matrix products inside a strategy: in the dtype given, whatever the surroundings ask for.

They are all in double precision, which no TF32 or bfloat16 setting touches.
"""

from __future__ import annotations

import torch

from autoinv.ops.inv.strategies._guard import Formula
from autoinv.problem import Problem


def without_autocast(problem: Problem, formula: Formula) -> Formula:
    """Return the formula with autocast off inside, which might make its products bfloat16 or half."""
    kind = problem.device.partition(":")[0]
    enabled = torch.is_autocast_enabled

    def run(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not enabled(kind):
            return formula(A)
        with torch.autocast(kind, enabled=False):
            return formula(A)

    return run
