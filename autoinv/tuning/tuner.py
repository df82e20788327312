"""Tuning one problem: candidates -> screened and checked on a slice -> timed -> a decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autoinv.errors import FROM_TORCH_OR_KERNELS, is_out_of_memory
from autoinv.operation import Operation, Strides
from autoinv.problem import Problem
from autoinv.store.checks import timestamp
from autoinv.store.decisions import Decision
from autoinv.tuning.choice import choose, holds
from autoinv.tuning.screening import (
    OutOfMemoryError,
    Screened,
    bound,
    filling_s,
    made,
    raised,
    reject_expensive,
    screen,
)
from autoinv.tuning.timing import (
    UNCONTENDED_CPU_SHARE,
    Call,
    CandidateError,
    CudaStopwatch,
    Race,
    Stopwatch,
    race,
)

MOST_ROUNDS = 24


def stopwatch_for(device: str) -> Stopwatch:
    """Return the clocks for problems on this device."""
    return CudaStopwatch(device) if device.startswith("cuda") else Stopwatch()


class NothingTimedError(Exception):
    """Nothing could be timed; the text says why."""


def tune(
    operation: Operation,
    problem: Problem,
    strides: Strides,
    budget_s: float,
    stopwatch: Stopwatch | None = None,
    again: Decision | None = None,
) -> Decision:
    """Time the candidates within the budget and decide.

    ``again`` is the decision that this tuning puts to the test: it stands unless it is clearly beaten.

    Raises:
        NothingTimedError: when nothing could be timed, or memory ran out. Of a candidate's errors none: one that
            raises is rejected, and the decision says why.
    """
    stopwatch = stopwatch or stopwatch_for(problem.device)
    try:
        with _plain_state(problem):
            screened = screen(operation, problem, stopwatch, stopwatch.wall_s() + budget_s)
            result, elements = _time(screened, strides)
    except OutOfMemoryError:
        raise NothingTimedError("memory ran out while tuning") from None
    except FROM_TORCH_OR_KERNELS as error:
        if is_out_of_memory(error):
            raise NothingTimedError("memory ran out while tuning") from None
        raise
    if not screened.is_whole and not screened.is_reference_seen:
        raise NothingTimedError(
            "PyTorch's own call, which wakes threads, cannot be timed in a forked process"
        )
    if not any(result.rounds.values()):
        raise NothingTimedError("the budget was too short to time anything")
    growth = screened.elements / elements
    chosen, seconds = choose(result.rounds, screened.reference.name, screened.single_threaded, growth)
    if again is not None and holds(again.strategy, chosen, seconds, screened.single_threaded):
        chosen = again.strategy
    if elements < screened.elements:
        seconds = {}  # good enough to choose by, not to be shown as a measurement
    for name in screened.known():
        if name not in seconds:
            screened.rejected.setdefault(name, screened.seen_only(name))
    for strategy in screened.candidates:
        if strategy.name not in seconds:
            screened.rejected.setdefault(strategy.name, "not timed, the budget ran out")
    return Decision(
        problem=problem,
        strategy=chosen,
        seconds=seconds,
        rejected=screened.rejected,
        complete=result.complete and screened.is_whole,
        contended=screened.share.overall() < UNCONTENDED_CPU_SHARE,
        rounds=result.count,
        tunings=again.tunings + 1 if again else 1,
        created=timestamp(),
    )


@contextmanager
def _plain_state(problem: Problem) -> Iterator[None]:
    """Take the caller's gradients and autocast off for this thread, so that they are not timed too."""
    is_recording = torch.is_grad_enabled()
    try:
        with torch.no_grad(), torch.autocast(problem.device.partition(":")[0], enabled=False):
            yield
    finally:
        torch._C._set_grad_enabled(is_recording)  # an exception may have come between two steps of no_grad


def _time(screened: Screened, strides: Strides) -> tuple[Race, int]:
    """Time the survivors on the whole problem, or else on the largest slice; return how many elements that has."""
    reject_expensive(screened)
    names = screened.known()
    if not names:
        return Race({}), screened.elements
    # The two most promising, or none: one alone would win whatever it took, and first calls on much memory take long.
    promising = names[:2]
    whole_s = sum(screened.most_s(name, screened.elements) for name in promising)
    is_small = screened.seen[-1].elements == screened.elements  # the slice was the whole
    if is_small or screened.left_s > filling_s(screened.problem) + whole_s:
        operands = made(screened.problem, strides)
        calls, first_s = {}, {}
        for name in names:
            # Only what fits: the answer of this first call comes on top, and is to be all that does.
            if screened.left_s > screened.most_s(name, screened.elements):
                call = _call(screened, name, screened.problem, operands)
                if call is not None:
                    calls[name], first_s[name] = call
        if calls and (is_small or set(promising) <= set(calls)):
            result = _race(screened, calls, first_s)
            if not any(result.rounds.values()):  # no time for a single round: the first calls are all we have
                result.rounds = {name: [seconds] for name, seconds in first_s.items()}
            result.complete = result.complete and {s.name for s in screened.candidates} <= set(calls)
            return result, screened.elements
    return _time_slice(screened)


def _time_slice(screened: Screened) -> tuple[Race, int]:
    """Time what was seen on the largest slice there some more, as far as the budget goes."""
    part = next(s for s in reversed(screened.seen) if s.seconds)
    here = {s.name: s for s in screened.candidates if s.name in part.seconds}
    calls = {name: bound(here[name].bind(part.problem), part.operands) for name in here}
    seen_s = {name: part.seconds[name] for name in here}
    result = _race(screened, calls, seen_s)
    if not all(result.rounds.get(name) for name in calls):
        result = Race({name: [seen_s[name]] for name in calls})
    result.complete = False
    return result, part.elements


def _race(screened: Screened, calls: dict[str, Call], estimates_s: dict[str, float]) -> Race:
    """Time these calls against each other, and again without one that raises."""
    while calls:
        try:
            return race(
                calls,
                estimates_s,
                screened.share,
                deadline_s=screened.deadline_s,
                most_rounds=MOST_ROUNDS,
            )
        except CandidateError as failed:
            if is_out_of_memory(failed.error):
                raise OutOfMemoryError from failed
            screened.reject(failed.name, raised(failed.error))
            calls.pop(failed.name)
    return Race({})


def _call(
    screened: Screened, name: str, problem: Problem, operands: tuple[torch.Tensor, ...]
) -> tuple[Call, float] | None:
    """Return a candidate's call on the whole, and what its first one took; None when it raised."""
    strategy = next(s for s in screened.candidates if s.name == name)
    try:
        call = bound(strategy.bind(problem), operands)
        return call, screened.share.seconds(name, call, 1)
    except FROM_TORCH_OR_KERNELS as error:  # it answered on the slice, and may still fail on the whole
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        screened.reject(name, raised(error))
        return None
