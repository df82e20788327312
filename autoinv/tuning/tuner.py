"""Tuning one problem: candidates -> screened and checked on a slice -> timed -> a decision."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autoinv.operation import Operation, Strides
from autoinv.problem import Problem
from autoinv.store.decisions import Decision
from autoinv.tuning.choice import choose, holds
from autoinv.tuning.operands import random_operands
from autoinv.tuning.screening import Screened, bound, raised, screen
from autoinv.tuning.timing import UNCONTENDED_CPU_SHARE, Call, CudaStopwatch, Race, Stopwatch, race

MOST_ROUNDS = 24
FILLED_BYTES_A_S = 2e9
"""How fast operands are made, at least."""


def stopwatch_for(device: str) -> Stopwatch:
    """Return the clocks for problems on this device."""
    return CudaStopwatch(device) if device.startswith("cuda") else Stopwatch()


def tune(
    operation: Operation,
    problem: Problem,
    strides: Strides,
    budget_s: float,
    stopwatch: Stopwatch | None = None,
    again: Decision | None = None,
) -> Decision | None:
    """Time the candidates within the budget and decide; None when nothing at all could be timed.

    ``again`` is the decision that this tuning puts to the test: it stands unless it is clearly beaten.

    Raises nothing of a candidate's: one that raises is rejected, and the decision says why.
    """
    stopwatch = stopwatch or stopwatch_for(problem.device)
    began_s, began_thread_s = stopwatch.wall_s(), stopwatch.thread_s()
    with _plain_state(problem):
        screened = screen(operation, problem, stopwatch, began_s + budget_s)
        result = _time(screened, strides)
    cpu_share = stopwatch.cpu_share(stopwatch.wall_s() - began_s, stopwatch.thread_s() - began_thread_s)
    if not any(result.rounds.values()):
        return None
    contended = cpu_share < UNCONTENDED_CPU_SHARE
    chosen, seconds = choose(result.rounds, screened.reference.name, screened.single_threaded, cpu_share)
    if again is not None and holds(again.strategy, chosen, seconds, screened.single_threaded):
        chosen = again.strategy
    if result.estimated:  # good enough to choose by, not to be shown as a measurement
        screened.rejected |= {
            s: f"only seen on {screened.part}: {screened.slice_s[s] * 1e6:.3g} us" for s in seconds
        }
        seconds = {}
    for strategy in screened.candidates:
        if strategy.name not in seconds:
            screened.rejected.setdefault(strategy.name, "not timed, the budget ran out")
    return Decision(
        problem=problem,
        strategy=chosen,
        seconds=seconds,
        rejected=screened.rejected,
        complete=result.complete,
        contended=contended,
        rounds=result.count,
        tunings=again.tunings + 1 if again else 1,
        created=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


@contextmanager
def _plain_state(problem: Problem) -> Iterator[None]:
    """Take the caller's gradients and autocast off for this thread, so that they are not timed too."""
    with torch.no_grad(), torch.autocast(problem.device.partition(":")[0], enabled=False):
        yield


def _time(screened: Screened, strides: Strides) -> Race:
    """Time the survivors on the whole problem, the most promising first."""
    expected_s = screened.expected_s
    slices_only = Race({name: [seconds] for name, seconds in expected_s.items()}, estimated=True)
    filling_s = screened.problem.numel * screened.problem.dtype.itemsize / FILLED_BYTES_A_S
    if not expected_s or screened.left_s <= filling_s + min(expected_s.values()):
        return slices_only
    operands = random_operands(screened.problem, strides)
    calls: dict[str, Call] = {}
    first_s: dict[str, float] = {}
    for strategy in sorted(screened.candidates, key=lambda s: expected_s.get(s.name, 0.0)):
        # Only what fits: the answer of this first call comes on top, and is to be all that does.
        if strategy.name not in expected_s or screened.left_s <= expected_s[strategy.name]:
            continue
        try:
            call = bound(strategy.bind(screened.problem), operands)
            first_s[strategy.name] = screened.stopwatch.seconds(call, 1)
            calls[strategy.name] = call
        except Exception as error:  # it answered on the slice, and may still fail on the whole
            screened.reject(strategy.name, raised(error))
    if not calls:
        return slices_only
    result = race(calls, first_s, screened.stopwatch, deadline_s=screened.deadline_s, most_rounds=MOST_ROUNDS)
    if not any(result.rounds.values()):  # no time for a single round: the first calls are all we have
        result.rounds = {name: [seconds] for name, seconds in first_s.items()}
    result.complete = result.complete and len(calls) == len(screened.candidates)
    return result
