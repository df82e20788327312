"""What is right on a quiet machine: every strategy timed well, and the rules of choice written once more.

Nothing here asks the product which strategies are worth timing or how to choose: an audit that took
over its screening or its rules would share their faults. It asks a strategy only whether it supports
the problem and whether it opens a thread team.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import _bench
import torch

from autoinv.ops.inv.operation import INV
from autoinv.problem import Problem
from autoinv.store.decisions import Decision
from autoinv.tuning.operands import dense_stride
from autoinv.tuning.tuner import tune

CALM_FACTOR = 1.5
"""Of those that open no thread team the fastest is right, when it takes at most so many times the best."""
PLACE_FACTOR = 1.05
"""The reference is right unless what would replace it is faster by more than this."""
BAD_REGRET = 0.10
CLEARLY = 0.9
"""A calm strategy within this share of the factor should have been chosen whatever the noise."""
LOOKS = 3
HOPELESS_FACTOR = 10.0
"""So many times the best of three looks is hopelessly slow: no rule can choose it, no noise explains it."""
HOPELESS_LOOK_S = 0.02
"""A single first look of more than this is not repeated, when it is hopeless already."""
QUIET_ROUNDS = 15
SPINNER = """
import time
began, began_thread = time.perf_counter(), time.thread_time()
while time.perf_counter() - began < 0.05:
    pass
print((time.thread_time() - began_thread) / (time.perf_counter() - began))
"""
QUIET_SHARE = 0.9
QUIET_TRIES = 5
"""Timings of a problem that began or ended beside something else are made again, so often in all."""


@dataclass(frozen=True)
class Quiet:
    """One problem's quiet times, the right choice by the rules, and those that open no thread team.

    ``looks_s`` is the one look at every strategy, and ``seconds`` leaves out the hopelessly slow; ``share`` is what
    part of the processor spinning processes got, before and after, one for each thread: under 0.9 it was not quiet.
    """

    seconds: dict[str, float]
    looks_s: dict[str, float]
    calm: frozenset[str]
    reference: str
    share: float

    @property
    def right(self) -> str:
        best = min(self.seconds, key=self.seconds.__getitem__)
        calm = [
            n for n, s in self.seconds.items() if n in self.calm and s <= CALM_FACTOR * self.seconds[best]
        ]
        leader = best if best in self.calm or not calm else min(calm, key=self.seconds.__getitem__)
        place_s = self.seconds.get(self.reference, math.inf)  # missing: hopelessly slow
        keeps = place_s <= PLACE_FACTOR * self.seconds[leader]
        less_calm = leader in self.calm and self.reference not in self.calm
        return self.reference if keeps and not less_calm else leader

    @property
    def has_calm(self) -> bool:
        """Whether one that opens no thread team is within the factor of the best."""
        return self._nearest_calm_s <= CALM_FACTOR * min(self.seconds.values())

    @property
    def _nearest_calm_s(self) -> float:
        return min((s for n, s in self.seconds.items() if n in self.calm), default=math.inf)

    def regret(self, chosen: str) -> float:
        """Return the chosen one's time over the right one's, minus 1; by the one look for a hopelessly slow one.

        At the edge of the calm rule (a factor of 1.5, give or take what CLEARLY gives `is_restless`) the calm one
        is as right as the other: no two measurements agree on which side of it a problem lies.
        """
        chosen_s = self.seconds.get(chosen, self.looks_s[chosen])
        at_the_edge = chosen in self.calm and chosen_s <= CALM_FACTOR / CLEARLY * min(self.seconds.values())
        right_s = self._nearest_calm_s if at_the_edge else self.seconds[self.right]
        return max(0.0, chosen_s / right_s - 1)

    def is_restless(self, chosen: str) -> bool:
        """Whether a team was chosen where a calm strategy was clearly near enough to the best."""
        clearly_near = self._nearest_calm_s <= CLEARLY * CALM_FACTOR * min(self.seconds.values())
        return clearly_near and chosen not in self.calm


def problem(shape: tuple[int, ...], dtype: torch.dtype) -> Problem:
    return Problem("inv", (shape,), dtype, "cpu", torch.get_num_threads())


def operand(p: Problem) -> torch.Tensor:
    return INV.operands(p, [dense_stride(p.shape, p.layout)])[0]


def tuning(p: Problem, again: Decision | None = None) -> Decision:
    """Tune cold, or put an earlier decision to the test, within the usual budget."""
    made = tune(INV, p, [dense_stride(p.shape, p.layout)], 0.1, again=again)
    assert made is not None, f"0.1 s were not enough to time anything of {p.key}"
    return made


def settled(p: Problem, decision: Decision) -> Decision:
    """Tune again as later processes do: until the decision needs it no more."""
    while not decision.settled:
        decision = tuning(p, again=decision)
    return decision


def quiet(p: Problem) -> Quiet:
    """Time every strategy that supports the problem, but for those that one look shows hopelessly slow."""
    A = operand(p)
    runs = {s.name: s.bind(p) for s in INV.table if s.supports(p)}
    looks: dict[str, float] = {}
    for name, run in runs.items():
        looks[name] = _look_s(run, A, min(looks.values(), default=math.inf))
    best_s = min(looks.values())
    calls = {n: (lambda run=run: run(A)) for n, run in runs.items() if looks[n] <= HOPELESS_FACTOR * best_s}
    times, share = _quiet_rounds(calls)
    # The quartile, because what else runs can only slow a round down.
    seconds = {n: statistics.quantiles(values, n=4)[0] for n, values in times.items()}
    calm = frozenset(n for n in runs if not INV.strategy(n).opens_team(p))
    return Quiet(seconds, looks, calm, INV.reference(p).name, share)


def _quiet_rounds(calls: dict[str, _bench.Call]) -> tuple[dict[str, list[float]], float]:
    """Return the rounds of the quietest try, and what share of the processor was to be had beside it."""
    best: tuple[dict[str, list[float]], float] = ({}, -1.0)
    for _ in range(QUIET_TRIES):
        before = _spin_share()
        times = _bench.interleaved(calls, QUIET_ROUNDS, 4e-3)
        share = min(before, _spin_share())
        if share > best[1]:
            best = times, share
        if share >= QUIET_SHARE:
            break
    return best


def _spin_share() -> float:
    """Return the least share that one of as many spinners as there are threads got: a team needs every core."""
    command = [sys.executable, "-S", "-c", SPINNER]
    spinners = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(torch.get_num_threads())
    ]
    return min(float(spinner.communicate()[0]) for spinner in spinners)


def _look_s(run, A: torch.Tensor, best_s: float) -> float:
    looked: list[float] = []
    while len(looked) < LOOKS:
        began = time.perf_counter()
        run(A)
        looked.append(time.perf_counter() - began)
        if looked[0] > max(HOPELESS_LOOK_S, HOPELESS_FACTOR * best_s):
            break
    return min(looked)


def tell_bad(now: Quiet, decisions: list[Decision]) -> None:
    """Print, for each bad choice, what its decision says of the right strategy."""
    for d in decisions:
        if now.regret(d.strategy) > BAD_REGRET:
            took = f"{d.seconds[now.right] * 1e6:.3g} us" if now.right in d.seconds else ""
            said = d.rejected.get(now.right, took)
            own = f"{d.seconds[d.strategy] * 1e6:.3g} us" if d.strategy in d.seconds else "not timed"
            print(
                f"    {d.strategy} ({own}) in place of {now.right} ({said}; quiet "
                f"{now.seconds[now.right] * 1e6:.3g} us), {d.rounds} rounds, "
                f"{'contended' if d.contended else 'not contended'}, {'' if d.complete else 'in'}complete"
            )


def flip_rate(chosen: list[str]) -> float:
    """Return the share of choices other than the most frequent one."""
    return 1 - chosen.count(statistics.mode(chosen)) / len(chosen)
