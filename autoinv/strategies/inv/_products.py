"""Matrix products inside a strategy: in the dtype's own precision, whatever the surroundings ask for."""

from __future__ import annotations

import torch

from autoinv.problem import Problem
from autoinv.strategies.inv._guard import Formula


def products_are_exact_enough(problem: Problem) -> bool:
    """Whether ``torch.bmm`` on these tiny matrices cannot be rounded to fewer bits by a setting.

    Off the CPU, TF32 and its like may be turned on between two calls for float32. On the CPU torch's own loop
    multiplies matrices this small, whatever ``torch.set_float32_matmul_precision`` says.
    """
    return problem.on_cpu or problem.dtype in (torch.float64, torch.complex128)


def full_precision(problem: Problem, formula: Formula) -> Formula:
    """Return the formula with autocast off inside, which would make its products bfloat16 or half."""
    kind = problem.device.partition(":")[0]
    enabled, off = torch.is_autocast_enabled, torch.autocast(kind, enabled=False)

    def run(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not enabled(kind):
            return formula(A)
        with off:
            return formula(A)

    return run
