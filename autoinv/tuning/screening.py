"""The first look at the candidates of a problem: on a slice of it, where even a slow one costs little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from autoinv.operation import Operands, Operation
from autoinv.problem import Problem
from autoinv.strategy import Strategy
from autoinv.tuning.operands import dense_stride
from autoinv.tuning.timing import HOPELESS, Call, Stopwatch

SHARE_OF_BUDGET = 0.5
"""How much of the budget the screening may take: the rest is for timing what it left."""
DEAR_SHARE = 0.05
"""A call on the slice that takes no more of what is left of the budget is always made twice."""
CHEAP_S = 3e-4
"""A call that takes no longer is timed however hopeless: a few rounds cost a millisecond, and people want to see it."""


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
        self.sliced = self.operation.sliced(self.problem)
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
    def calm(self) -> frozenset[str]:
        """The names of the candidates that open no thread team."""
        return frozenset(s.name for s in self.candidates if not s.opens_team(self.problem))

    @property
    def expected_s(self) -> dict[str, float]:
        """About how long a call on the whole problem takes, the most promising first."""
        growth = self.problem.batch / max(self.sliced.batch, 1)
        known = [s.name for s in self.candidates if s.name in self.slice_s]
        return {name: growth * self.slice_s[name] for name in sorted(known, key=self.slice_s.__getitem__)}

    def reject(self, name: str, reason: str) -> None:
        """Take a candidate out, and keep the reason."""
        self.rejected[name] = reason
        self.slice_s.pop(name, None)
        self.candidates = [s for s in self.candidates if s.name != name]


def screen(operation: Operation, problem: Problem, stopwatch: Stopwatch, deadline_s: float) -> Screened:
    """Run every candidate on a slice: out goes what raises, is inaccurate, or is hopelessly slow."""
    field_ = Screened(operation, problem, stopwatch, deadline_s)
    if field_.left_s <= 0:
        return field_
    half_time_s = deadline_s - SHARE_OF_BUDGET * field_.left_s
    strides = [dense_stride(shape, problem.layout) for shape in field_.sliced.shapes]
    operands = operation.operands(field_.sliced, strides)
    results: dict[str, torch.Tensor] = {}
    # The calm ones first: on a busy machine a single call that wakes a thread team may take all the time there is.
    for strategy in sorted(field_.candidates, key=lambda s: s.opens_team(problem)):
        if stopwatch.wall_s() >= half_time_s:
            break
        _try(field_, strategy, operands, results)
    _reject_inaccurate(field_, operands, results)
    _drop_hopeless(field_)
    return field_


def _try(field_: Screened, strategy: Strategy, operands: Operands, results: dict[str, torch.Tensor]) -> None:
    """Run a candidate on the slice, once or twice, and keep its result."""
    try:
        run = strategy.bind(field_.sliced)

        def call() -> None:
            results[strategy.name] = run(*operands)

        first_s = field_.stopwatch.seconds(call, 1)
        best_s = min(field_.slice_s.values(), default=first_s)
        # Once more, because the first call pays for warming up and may have been interrupted; not where it is dear.
        again = first_s < field_.left_s and first_s <= max(2 * HOPELESS * best_s, DEAR_SHARE * field_.left_s)
        field_.slice_s[strategy.name] = min(first_s, field_.stopwatch.seconds(call, 1)) if again else first_s
    except Exception as error:  # a candidate may fail in any way; the others still answer
        field_.reject(strategy.name, raised(error))


def _reject_inaccurate(field_: Screened, operands: Operands, results: dict[str, torch.Tensor]) -> None:
    """Reject those whose result is worse than the reference's; without time for the reference, none is."""
    expected = results.get(field_.reference.name)
    if expected is None:
        return
    for name in list(field_.slice_s):
        reason = field_.operation.reject_reason(operands, results[name], expected)
        if reason and name != field_.reference.name:
            field_.reject(name, reason)


def _drop_hopeless(field_: Screened) -> None:
    """Reject those whose least possible time on the whole is far above another's most."""
    expected_s = field_.expected_s
    most_s = min(expected_s.values(), default=0.0)
    for strategy in list(field_.candidates):
        if strategy is field_.reference or strategy.name not in expected_s:
            continue
        slow = strategy.may_be_slow(field_.problem)
        least_s = expected_s[strategy.name] if slow else field_.slice_s[strategy.name]
        if least_s > max(HOPELESS * most_s, CHEAP_S):
            where = f"{field_.sliced.batch} of {field_.problem.batch} matrices"
            field_.reject(strategy.name, f"screened out, {least_s / most_s:.0f} times the fastest on {where}")


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
