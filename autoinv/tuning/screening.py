"""The first look at the candidates of a problem: on a slice of it, where even a slow one costs little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from autoinv.operation import Operands, Operation
from autoinv.problem import Problem
from autoinv.strategy import Strategy
from autoinv.tuning.operands import dense_strides, random_operands, sliced
from autoinv.tuning.timing import TOO_SLOW, Call, Stopwatch

PART_OF_BUDGET = 0.5
"""How much of the budget the screening may take: the rest is for timing what it left."""
EXPENSIVE_PART = 0.05
"""A call on the slice that takes no larger part of what is left of the budget is always made twice."""
CHEAP_S = 3e-4
"""A call that takes no longer is timed however slow: a few rounds cost a millisecond, and users want to see it."""


@dataclass
class Screened:
    """The candidates of one tuning: seconds per call on the slice, and why the others are out."""

    operation: Operation
    problem: Problem
    stopwatch: Stopwatch
    deadline_s: float
    candidates: list[Strategy] = field(default_factory=list)
    slice_s: dict[str, float] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the table into candidates and those that do not support the problem."""
        self.sliced = sliced(self.operation, self.problem)
        self.elements = self.operation.batch(self.problem)
        self.sliced_elements = self.operation.batch(self.sliced)
        self.reference = self.operation.reference(self.problem)
        for strategy in self.operation.table:
            if strategy.supports(self.problem):
                self.candidates.append(strategy)
            else:
                self.rejected[strategy.name] = "does not support this problem"

    @property
    def left_s(self) -> float:
        """Seconds until the budget is spent."""
        return self.deadline_s - self.stopwatch.wall_s()

    @property
    def single_threaded(self) -> frozenset[str]:
        """The names of the candidates that open no thread team for this problem."""
        return frozenset(s.name for s in self.candidates if not s.is_multithreaded(self.problem))

    @property
    def expected_s(self) -> dict[str, float]:
        """About how long a call on the whole problem takes, the most promising first."""
        growth = self.elements / max(self.sliced_elements, 1)
        known = [s.name for s in self.candidates if s.name in self.slice_s]
        return {name: growth * self.slice_s[name] for name in sorted(known, key=self.slice_s.__getitem__)}

    @property
    def part(self) -> str:
        """The slice in words."""
        return f"{self.sliced_elements} of {self.elements} matrices"

    def reject(self, name: str, reason: str) -> None:
        """Take a candidate out, and keep the reason."""
        self.rejected[name] = reason
        self.slice_s.pop(name, None)
        self.candidates = [s for s in self.candidates if s.name != name]


def screen(operation: Operation, problem: Problem, stopwatch: Stopwatch, deadline_s: float) -> Screened:
    """Run every candidate on a slice: out goes what raises, is inaccurate, or is far too slow."""
    state = Screened(operation, problem, stopwatch, deadline_s)
    if state.left_s <= 0:
        return state
    half_time_s = deadline_s - PART_OF_BUDGET * state.left_s
    operands = random_operands(state.sliced, dense_strides(state.sliced))
    results: dict[str, torch.Tensor] = {}
    # Single-threaded ones first: on a busy machine one call that wakes a thread team may take all the time there is.
    for strategy in sorted(state.candidates, key=lambda s: s.is_multithreaded(problem)):
        if stopwatch.wall_s() >= half_time_s:
            break
        _try(state, strategy, operands, results)
    _reject_inaccurate(state, operands, results)
    _reject_too_slow(state)
    return state


def _try(state: Screened, strategy: Strategy, operands: Operands, results: dict[str, torch.Tensor]) -> None:
    """Run a candidate on the slice, once or twice, and keep its result."""
    try:
        run = strategy.bind(state.sliced)

        def call() -> None:
            results[strategy.name] = run(*operands)

        first_s = state.stopwatch.seconds(call, 1)
        best_s = min(state.slice_s.values(), default=first_s)
        # Once more, as the first call pays for warming up and may have been interrupted; not where it is expensive.
        again = first_s < state.left_s and first_s <= max(
            2 * TOO_SLOW * best_s, EXPENSIVE_PART * state.left_s
        )
        state.slice_s[strategy.name] = min(first_s, state.stopwatch.seconds(call, 1)) if again else first_s
    except Exception as error:  # a candidate may fail in any way; the others still answer
        state.reject(strategy.name, raised(error))


def _reject_inaccurate(state: Screened, operands: Operands, results: dict[str, torch.Tensor]) -> None:
    """Reject those whose result is worse than the reference's; without time for the reference, none is."""
    expected = results.get(state.reference.name)
    if expected is None:
        return
    for name in list(state.slice_s):
        reason = state.operation.reject_reason(operands, results[name], expected)
        if reason and name != state.reference.name:
            state.reject(name, reason)


def _reject_too_slow(state: Screened) -> None:
    """Reject those whose least possible time on the whole is far above another's most."""
    expected_s = state.expected_s
    most_s = min(expected_s.values(), default=0.0)
    for strategy in list(state.candidates):
        if strategy is state.reference or strategy.name not in expected_s:
            continue
        slow = strategy.may_be_slow(state.problem)
        least_s = expected_s[strategy.name] if slow else state.slice_s[strategy.name]
        if least_s > max(TOO_SLOW * most_s, CHEAP_S):
            state.reject(
                strategy.name, f"screened out, {least_s / most_s:.0f} times the fastest on {state.part}"
            )


def raised(error: Exception) -> str:
    """Return the reason that an exception is."""
    first_line = str(error).partition("\n")[0]
    return f"raised {type(error).__name__}: {first_line}"[:200]


def bound(run: Callable[..., torch.Tensor], operands: Operands) -> Call:
    """Return a call without arguments, as cheap as the number of operands allows."""
    if len(operands) == 1:
        (only,) = operands
        return lambda: run(only)
    return lambda: run(*operands)
