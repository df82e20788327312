"""Tuning one problem: candidates -> screened and checked on a slice -> timed -> a decision."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from autoinv.choice import choose
from autoinv.decisions import Decision
from autoinv.measure import HOPELESS, QUIET_SHARE, Call, CudaStopwatch, Race, Stopwatch, race
from autoinv.operation import Operands, Operation, Strides
from autoinv.problem import Problem
from autoinv.strategies.base import Strategy
from autoinv.synthetic import dense_stride

MOST_ROUNDS = 24
SCREENING_SHARE = 0.5
"""How much of the budget the screening may take: the rest is for timing what it left."""

StopwatchFor = Callable[[str], Stopwatch]


def stopwatch_for(device: str) -> Stopwatch:
    """Return the clocks for problems on this device."""
    return CudaStopwatch(device) if device.startswith("cuda") else Stopwatch()


@dataclass
class _Field:
    """The candidates of one tuning, and what became of those that are out."""

    operation: Operation
    problem: Problem
    stopwatch: Stopwatch
    deadline_s: float
    candidates: list[Strategy] = field(default_factory=list)
    slice_s: dict[str, float] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)

    def reject(self, strategy: Strategy, reason: str) -> None:
        self.rejected[strategy.name] = reason
        self.candidates.remove(strategy)

    @property
    def left_s(self) -> float:
        return self.deadline_s - self.stopwatch.wall_s()

    def growth(self, sliced: Problem) -> float:
        return self.problem.batch / max(sliced.batch, 1)


def tune(
    operation: Operation,
    problem: Problem,
    strides: Strides,
    budget_s: float,
    stopwatch: Stopwatch | None = None,
    tunings: int = 1,
) -> Decision | None:
    """Time the candidates within the budget and decide; None when not even the reference was timed.

    Raises nothing of a candidate's: one that raises is rejected, and the decision says why.
    """
    stopwatch = stopwatch or stopwatch_for(problem.device)
    began_s, began_thread_s = stopwatch.wall_s(), stopwatch.thread_s()
    entrants = _Field(operation, problem, stopwatch, began_s + budget_s)
    for strategy in operation.table:
        if strategy.supports(problem):
            entrants.candidates.append(strategy)
        else:
            entrants.rejected[strategy.name] = "does not support this problem"
    with _undisturbed(problem):
        sliced = operation.sliced(problem)
        _screen(entrants, sliced)
        result = _time(entrants, sliced, strides)
    share = stopwatch.share(stopwatch.wall_s() - began_s, stopwatch.thread_s() - began_thread_s)
    if not any(result.rounds.values()):
        return None
    contended = share < QUIET_SHARE
    reference = operation.reference(problem).name
    chosen, seconds = choose(result.rounds, reference, _calm(entrants), contended)
    for strategy in entrants.candidates:
        if strategy.name not in seconds:
            entrants.rejected.setdefault(strategy.name, "not timed, the budget ran out")
    return Decision(
        problem=problem,
        strategy=chosen,
        seconds=seconds,
        rejected=entrants.rejected,
        complete=result.complete,
        contended=contended,
        rounds=result.count,
        tunings=tunings,
        created=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


@contextmanager
def _undisturbed(problem: Problem) -> Iterator[None]:
    """Take the caller's modes off for this thread: gradients, autocast, a default device."""
    with torch.no_grad(), torch.autocast(problem.device.partition(":")[0], enabled=False):
        yield


def _calm(entrants: _Field) -> frozenset[str]:
    return frozenset(s.name for s in entrants.candidates if not s.opens_team(entrants.problem))


def _screen(entrants: _Field, sliced: Problem) -> None:
    """Run every candidate on a slice: out goes what raises, is inaccurate, or is hopelessly slow."""
    operands = entrants.operation.operands(sliced, [dense_stride(s, sliced.layout) for s in sliced.shapes])
    expected = entrants.operation.reference(sliced).bind(sliced)(*operands)
    half_time_s = entrants.stopwatch.wall_s() + SCREENING_SHARE * entrants.left_s
    for strategy in list(entrants.candidates):
        if entrants.stopwatch.wall_s() >= half_time_s:
            break
        try:
            run = strategy.bind(sliced)
            reason = entrants.operation.reject_reason(operands, run(*operands), expected)
            entrants.slice_s[strategy.name] = entrants.stopwatch.seconds(_bound(run, operands), 1)
        except Exception as error:  # a candidate may fail in any way; the others still answer
            reason = _raised(error)
        if reason:
            entrants.slice_s.pop(strategy.name, None)
            entrants.reject(strategy, reason)
    _drop_hopeless(entrants, sliced)


def _drop_hopeless(entrants: _Field, sliced: Problem) -> None:
    """Reject those whose least possible time on the whole is far above another's most."""
    if not entrants.slice_s:
        return
    growth = entrants.growth(sliced)
    most_s = min(entrants.slice_s.values()) * growth
    for strategy in list(entrants.candidates):
        least_s = entrants.slice_s.get(strategy.name, 0.0)
        if strategy.may_be_slow(entrants.problem):
            least_s *= growth
        keep = strategy is entrants.operation.reference(entrants.problem)
        if not keep and least_s > HOPELESS * most_s:
            where = f"{sliced.batch} of {entrants.problem.batch} matrices"
            entrants.reject(strategy, f"screened out, {least_s / most_s:.0f} times the fastest on {where}")


def _raised(error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return f"raised {type(error).__name__}: {first_line}"[:200]


def _bound(run: Callable[..., torch.Tensor], operands: Operands) -> Call:
    if len(operands) == 1:
        (only,) = operands
        return lambda: run(only)
    return lambda: run(*operands)


def _time(entrants: _Field, sliced: Problem, strides: Strides) -> Race:
    """Time the survivors on the whole problem, the most promising first."""
    order = sorted(
        (s for s in entrants.candidates if s.name in entrants.slice_s), key=lambda s: entrants.slice_s[s.name]
    )
    calls: dict[str, Call] = {}
    first_s: dict[str, float] = {}
    growth = entrants.growth(sliced)
    expected_s = {s.name: growth * entrants.slice_s[s.name] for s in order}
    if not order or entrants.left_s <= min(expected_s.values()):
        return Race({name: [seconds] for name, seconds in expected_s.items()})  # the slices are all we have
    operands = entrants.operation.operands(entrants.problem, strides)
    for strategy in order:
        if entrants.left_s <= 0:
            break
        try:
            call = _bound(strategy.bind(entrants.problem), operands)
            first_s[strategy.name] = entrants.stopwatch.seconds(call, 1)
            calls[strategy.name] = call
        except Exception as error:  # as in the screening
            entrants.reject(strategy, _raised(error))
    if not calls:
        return Race({name: [seconds] for name, seconds in expected_s.items()})
    result = race(calls, first_s, entrants.stopwatch, deadline_s=entrants.deadline_s, most_rounds=MOST_ROUNDS)
    if not any(result.rounds.values()):  # no time for a single round: the first calls are all we have
        result.rounds = {name: [seconds] for name, seconds in first_s.items()}
    result.complete = result.complete and len(calls) == len(order)
    return result
