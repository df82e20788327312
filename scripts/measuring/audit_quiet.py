"""What is right on a quiet machine: every strategy timed well, and the rules of choice written once more.

Nothing here asks the product which strategies are worth timing or how to choose: an audit that took
over its screening or its rules would share their faults. It asks a strategy only whether it supports
the problem and whether it is multithreaded there.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import torch

from autoinv.operation import Operands
from autoinv.ops.inv.operation import INV
from autoinv.problem import Problem
from autoinv.store.decisions import Decision
from autoinv.strategy import Run
from autoinv.tuning.operands import dense_strides, random_operands
from autoinv.tuning.tuner import tune
from measuring import bench

BUDGET_S = 0.1
SINGLE_THREADED_WITHIN = 1.5
SINGLE_THREADED_WITHIN_S = 2e-3
"""The fastest single-threaded strategy is right when it takes at most so many times the best, and so much longer."""
PLACE_FACTOR = 1.05
"""The reference is right unless what would replace it is faster by more than this."""
BAD_REGRET = 0.10
CLEARLY = 0.9
"""A single-threaded strategy within this part of the factor should have been chosen whatever the noise."""
FIRST_CALLS = 3
TOO_SLOW_FACTOR = 10.0
"""So many times the best of the first calls is too slow: no rule can choose it, no noise explains it."""
TOO_SLOW_CALL_S = 0.02
"""A first call of more than this is not repeated, when it is too slow already."""
ROUNDS = 15
SPINNER = """
import time
began, began_thread = time.perf_counter(), time.thread_time()
while time.perf_counter() - began < 0.05:
    pass
print((time.thread_time() - began_thread) / (time.perf_counter() - began))
"""
UNCONTENDED_CPU_SHARE = 0.9
TRIES = 5
"""Timings of a problem that began or ended beside something else are made again, so often in all."""


@dataclass(frozen=True)
class QuietTimes:
    """One problem's times on an otherwise idle machine, and by them the right choice.

    ``first_s`` holds the best first call of every strategy, and ``seconds`` leaves out those that are too slow;
    ``cpu_share`` is what part of the processor spinning processes got, before and after, one for each thread: under
    0.9 something else ran.
    """

    seconds: dict[str, float]
    first_s: dict[str, float]
    single_threaded: frozenset[str]
    reference: str
    cpu_share: float

    @property
    def right(self) -> str:
        """The strategy that the rules choose."""
        best_s = min(self.seconds.values())
        best = min(self.seconds, key=self.seconds.__getitem__)
        near = [n for n, s in self.seconds.items() if n in self.single_threaded and s <= _near_s(best_s)]
        leader = best if best in self.single_threaded or not near else min(near, key=self.seconds.__getitem__)
        place_s = self.seconds.get(self.reference, math.inf)  # missing: too slow
        keeps = place_s <= PLACE_FACTOR * self.seconds[leader]
        only_leader_is = leader in self.single_threaded and self.reference not in self.single_threaded
        return self.reference if keeps and not only_leader_is else leader

    @property
    def is_single_threaded_near(self) -> bool:
        """Whether a single-threaded strategy is within the factor of the best."""
        return self._single_threaded_s <= _near_s(min(self.seconds.values()))

    @property
    def _single_threaded_s(self) -> float:
        return min((s for n, s in self.seconds.items() if n in self.single_threaded), default=math.inf)

    def regret(self, chosen: str) -> float:
        """Return the chosen one's time over the right one's, minus 1; by the first calls where it is too slow.

        At the edge of the rule (a factor of 1.5, give or take what CLEARLY gives `is_needlessly_multithreaded`)
        the single-threaded one is as right as the other: no two measurements agree on which side of it a problem
        lies.
        """
        chosen_s = self.seconds.get(chosen, self.first_s[chosen])
        edge_s = _near_s(min(self.seconds.values())) / CLEARLY
        is_at_the_edge = chosen in self.single_threaded and chosen_s <= edge_s
        right_s = self._single_threaded_s if is_at_the_edge else self.seconds[self.right]
        return max(0.0, chosen_s / right_s - 1)

    def is_needlessly_multithreaded(self, chosen: str) -> bool:
        """Whether a multithreaded strategy was chosen where a single-threaded one was clearly near the best."""
        clearly_near_s = CLEARLY * _near_s(min(self.seconds.values()))
        return self._single_threaded_s <= clearly_near_s and chosen not in self.single_threaded


def _near_s(best_s: float) -> float:
    return min(SINGLE_THREADED_WITHIN * best_s, best_s + SINGLE_THREADED_WITHIN_S)


def problem_of(shape: tuple[int, ...], dtype: torch.dtype) -> Problem:
    return Problem(INV.name, (shape,), dtype, "cpu", torch.get_num_threads())


def operands_of(p: Problem) -> Operands:
    return random_operands(p, dense_strides(p))


def tune_once(p: Problem, again: Decision | None = None) -> Decision:
    """Tune cold, or put an earlier decision to the test, within the usual budget."""
    return tune(INV, p, dense_strides(p), BUDGET_S, again=again)


def tune_until_final(p: Problem, decision: Decision) -> Decision:
    """Tune again as later processes do: until the decision needs it no more."""
    while not decision.final:
        decision = tune_once(p, again=decision)
    return decision


def time_every_strategy(p: Problem) -> QuietTimes:
    """Time every strategy that supports the problem, but for those that the first calls show too slow."""
    operands = operands_of(p)
    runs = {s.name: s.bind(p) for s in INV.table if s.supports(p)}
    first_s: dict[str, float] = {}
    for name, run in runs.items():
        first_s[name] = _first_call_s(run, operands, min(first_s.values(), default=math.inf))
    best_s = min(first_s.values())
    calls: dict[str, bench.Call] = {
        n: (lambda run=run: run(*operands))
        for n, run in runs.items()
        if first_s[n] <= TOO_SLOW_FACTOR * best_s
    }
    times, cpu_share = _uncontended_rounds(calls)
    # The quartile, because what else runs can only slow a round down.
    seconds = {n: statistics.quantiles(values, n=4)[0] for n, values in times.items()}
    single_threaded = frozenset(s.name for s in INV.table if s.name in runs and not s.is_multithreaded(p))
    return QuietTimes(seconds, first_s, single_threaded, INV.reference(p).name, cpu_share)


def _uncontended_rounds(calls: dict[str, bench.Call]) -> tuple[dict[str, list[float]], float]:
    """Return the rounds of the least contended try, and what share of the processor was to be had beside it."""
    best: tuple[dict[str, list[float]], float] = ({}, -1.0)
    for _ in range(TRIES):
        before = _spinners_share()
        times = bench.interleaved(calls, ROUNDS, 4e-3)
        cpu_share = min(before, _spinners_share())
        if cpu_share > best[1]:
            best = times, cpu_share
        if cpu_share >= UNCONTENDED_CPU_SHARE:
            break
    return best


def _spinners_share() -> float:
    """Return the least share that one of as many spinners as there are threads got: a team needs every core."""
    command = [sys.executable, "-S", "-c", SPINNER]
    spinners = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(torch.get_num_threads())
    ]
    return min(float(spinner.communicate()[0]) for spinner in spinners)


def _first_call_s(run: Run, operands: Operands, best_s: float) -> float:
    """Return the best of a few first calls; only one is made where it is too slow."""
    spent_s: list[float] = []
    while len(spent_s) < FIRST_CALLS:
        began = time.perf_counter()
        run(*operands)
        spent_s.append(time.perf_counter() - began)
        if spent_s[0] > max(TOO_SLOW_CALL_S, TOO_SLOW_FACTOR * best_s):
            break
    return min(spent_s)


def report_bad(now: QuietTimes, decisions: list[Decision]) -> None:
    """Print, for each bad choice, what its decision holds about the right strategy."""
    for d in decisions:
        if now.regret(d.strategy) > BAD_REGRET:
            took = f"{d.seconds[now.right] * 1e6:.3g} us" if now.right in d.seconds else ""
            found = d.rejected.get(now.right, took)
            own = f"{d.seconds[d.strategy] * 1e6:.3g} us" if d.strategy in d.seconds else "not timed"
            print(
                f"    {d.strategy} ({own}) in place of {now.right} ({found}; uncontended "
                f"{now.seconds[now.right] * 1e6:.3g} us), {d.rounds} rounds, "
                f"{'contended' if d.contended else 'not contended'}, {'' if d.complete else 'in'}complete"
            )


def flip_rate(chosen: list[str]) -> float:
    """Return the part of the choices that are other than the most frequent one."""
    return 1 - chosen.count(statistics.mode(chosen)) / len(chosen)
