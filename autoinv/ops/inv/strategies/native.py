"""``native``: LU with partial pivoting by our own SIMD kernels, in the calling thread."""

from __future__ import annotations

from autoinv.ops.inv.strategies._kernels import bound, kernels, supported
from autoinv.problem import Problem
from autoinv.strategy import Run, Strategy


class Native(Strategy):
    """Many matrices side by side on one thread: its time does not depend on what else the machine does."""

    name = "native"
    limits = "real matrices up to 64 x 64 on the CPU, where the kernels were built"

    def supports(self, problem: Problem) -> bool:
        """Real dtypes on the CPU up to n = 64, where the extension was built."""
        return supported(problem)

    def bind(self, problem: Problem) -> Run:
        """Return the call of the serial kernel."""
        extension = kernels()
        return bound(problem, extension.inv, extension.inv_strided)
