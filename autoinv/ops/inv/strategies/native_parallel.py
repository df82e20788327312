"""``native_parallel``: the native kernels in chunks, shared between the caller and a small pool of threads."""

from __future__ import annotations

from autoinv.ops.inv.strategies._kernels import bound, kernels, supported
from autoinv.problem import Problem
from autoinv.strategy import Run, Strategy

LEAST_WORK = 1 << 17
"""Sum of n^3 over the batch from which sharing can pay: about 50 us of work, twice a thread's wake-up."""


class NativeParallel(Strategy):
    """Chunks from a counter: the caller works too, and waits only for chunks that were begun."""

    name = "native_parallel"
    limits = "what native supports, with more than one thread and a batch large enough to share"

    def supports(self, problem: Problem) -> bool:
        """What native supports, where there are threads and work to share."""
        return problem.threads > 1 and problem.batch * problem.n**3 >= LEAST_WORK and supported(problem)

    def bind(self, problem: Problem) -> Run:
        """Return the call of the kernel on the pool, with as many threads as the problem has."""
        extension = kernels()
        return bound(problem, extension.inv_parallel, extension.inv_parallel_strided, problem.threads)

    def is_multithreaded(self, problem: Problem) -> bool:
        """Yes: a helper that is descheduled inside a chunk delays the call, if only by that chunk."""
        del problem
        return True
