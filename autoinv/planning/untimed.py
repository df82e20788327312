"""A problem that was not timed: how long its calls have taken, and when timing it is worth another try."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from autoinv.strategy import Run

PART_OF_CALLS = 0.01
"""All tries of one problem together may take this part of the time that its calls have taken."""
LEAST_TRY_S = 2e-3
"""No try is shorter, unless the budget is: the kernel and PyTorch's own call on a slice, and the saving."""

clock_s = time.perf_counter


class Untimed:
    """What the calls and the tries of one untimed problem have taken so far, in seconds, and why it is untimed."""

    __slots__ = ("calls_s", "tries_s", "why")

    def __init__(self) -> None:
        self.calls_s = 0.0
        self.tries_s = 0.0
        self.why = ""

    def allowed_s(self) -> float:
        """Return how long a try may take by now."""
        return PART_OF_CALLS * self.calls_s - self.tries_s

    def needed_s(self, budget_s: float) -> float:
        """Return how much time makes a try worthwhile: as much as all before together had, in vain."""
        return max(min(LEAST_TRY_S, budget_s), self.tries_s)

    def is_due(self, budget_s: float) -> bool:
        """Whether another try is worthwhile by now."""
        return self.allowed_s() >= self.needed_s(budget_s)

    def due_s(self, budget_s: float) -> float:
        """Return how long all calls must have taken until `is_due`; with a little more, as sums are rounded."""
        return 1.001 * (self.needed_s(budget_s) + self.tries_s) / PART_OF_CALLS


def provisional(run: Run, untimed: Untimed, due_s: float, ask_again: Callable[[Run], None]) -> Run:
    """Return ``run``, with its time added to ``untimed``; once all calls took ``due_s``, ``ask_again`` is called.

    It costs a call about a tenth: two looks at the clock and a frame.
    """
    clock = clock_s

    def timed(*operands: Tensor, out: Tensor | None = None) -> Tensor:
        began_s = clock()
        answer = run(*operands) if out is None else run(*operands, out=out)
        untimed.calls_s += clock() - began_s
        if untimed.calls_s >= due_s:
            ask_again(timed)
        return answer

    timed.is_provisional = True  # type: ignore[attr-defined]
    return timed
