"""What shall run for a problem: pinned or agreed, else remembered, neighbour, tuned, reference."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from autoinv import environment, fork, lazy, settings
from autoinv.errors import logger
from autoinv.operation import Operation, Strides
from autoinv.planning import events
from autoinv.planning.overrides import pinned
from autoinv.planning.plan import Plan as Plan
from autoinv.problem import Problem
from autoinv.store import decisions
from autoinv.store.decisions import Decision, DecisionsFile
from autoinv.strategy import Strategy

SAVING_S = 5e-3
"""What saving a decision takes of the budget, at most a quarter: an fsync is a few ms."""
NEIGHBOUR_TUNINGS = 2
"""A bucket of batch sizes that was tuned this often in one process serves its other sizes, quiet or not."""


class Planner:
    """Plans the problems of one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._tuned: set[Problem] = set()
        self._served: set[Problem] = set()
        self._buckets: Counter[tuple[object, ...]] = Counter()

    def forget(self, is_meant: Callable[[Problem], bool] = lambda problem: True) -> None:
        """Forget what this process tuned and served of the problems picked, so that they may be tuned anew."""
        for problem in [p for p in self._tuned.copy() if is_meant(p)]:
            self._tuned.discard(problem)
            self._buckets.pop(_bucket(problem), None)
        for problem in [p for p in self._served.copy() if is_meant(p)]:
            self._served.discard(problem)

    def is_pinned(self, problem: Problem) -> bool:
        """Whether a pin names this very problem; the strategy setting names none."""
        plan = pinned(self.operation, problem)
        return plan is not None and plan.source == "pin" and plan.strategy.name != settings.current().strategy

    def known(self, problem: Problem) -> Plan:
        """Return what would run without timing anything: what ``explain`` says."""
        if settings.current().mode == "off":
            return self._fallback(problem)
        pin = pinned(self.operation, problem)
        if pin:
            return pin if pin.decision else replace(pin, decision=self.file(problem).get(problem))
        return self._remembered(problem) or self._neighbour(problem) or self._fallback(problem)

    def plan(self, problem: Problem, strides: Strides, started_s: float) -> Plan:
        """Return what shall run; tunes within what is left of the budget since ``started_s``."""
        served_before = problem in self._served
        plan = self._plan(problem, strides, started_s)
        if events.wanted() and (plan.final or (plan.decision and not served_before)):
            events.tell(problem, plan, time.perf_counter() - started_s)
        return plan

    def _plan(self, problem: Problem, strides: Strides, started_s: float) -> Plan:
        mode = settings.current().mode
        plan = self._fallback(problem) if mode == "off" else pinned(self.operation, problem)
        if plan:
            return plan
        may_tune = mode == "tune"
        plan = self._remembered(problem)
        if plan and plan.decision and may_tune and not plan.decision.settled and problem not in self._tuned:
            if problem not in self._served:  # serves at once; the next call tunes again
                self._served.add(problem)
                return Plan(plan.strategy, plan.source, plan.why, plan.decision, final=False)
            again = self._tune(problem, strides, started_s, again=plan.decision)
            return again if again.decision else replace(plan, final=again.final)
        plan = plan or self._neighbour(problem)
        if plan:
            return plan
        return self._tune(problem, strides, started_s) if may_tune else self._fallback(problem)

    def file(self, problem: Problem) -> DecisionsFile:
        """Return the decisions of this problem's environment."""
        return decisions.opened(settings.cache_dir(), environment.of(problem.device))

    def warm(self, problem: Problem, strides: Strides, started_s: float, budget_s: float) -> Plan:
        """Return the plan by this problem's own settled decision, tuning it when there is none; no neighbours.

        Where it could not be tuned there is no decision, and ``why`` says why.
        """
        stored = self._remembered(problem)
        if stored and stored.decision and stored.decision.settled:
            if events.wanted():
                events.tell(problem, stored, time.perf_counter() - started_s)
            return stored
        plan = self._tune(
            problem, strides, started_s, again=stored.decision if stored else None, budget_s=budget_s
        )
        if events.wanted() and plan.decision:
            events.tell(problem, plan, time.perf_counter() - started_s)
        return plan

    def _remembered(self, problem: Problem) -> Plan | None:
        decision = self.file(problem).get(problem)
        strategy = self._usable(decision, problem)
        if decision is None or strategy is None:
            return None
        here = problem in self._tuned
        return Plan(
            strategy, "tuned" if here else "file", "tuned in this process" if here else "remembered", decision
        )

    def _neighbour(self, problem: Problem) -> Plan | None:
        worn = self._buckets[_bucket(problem)] >= NEIGHBOUR_TUNINGS
        for decision in self.file(problem).neighbours(problem):
            strategy = self._usable(decision, problem)
            good = worn or (decision.complete and not decision.contended)
            if good and strategy:
                return Plan(strategy, "neighbour", f"as decided for {decision.problem.key}", decision)
        return None

    def _usable(self, decision: Decision | None, problem: Problem) -> Strategy | None:
        """Return a decision's strategy, where there is one and it supports this very problem."""
        strategy = self.operation.strategy(decision.strategy) if decision else None
        return strategy if strategy and strategy.supports(problem) else None

    def _fallback(
        self, problem: Problem, why: str = "nothing is known of it yet", final: bool = True
    ) -> Plan:
        mode = settings.current().mode
        if mode != "tune":
            why = "mode is off" if mode == "off" else "nothing is known of it and mode is cached"
        return Plan(self.operation.reference(problem), "reference", why, final=final)

    def _tune(
        self,
        problem: Problem,
        strides: Strides,
        started_s: float,
        again: Decision | None = None,
        budget_s: float | None = None,
    ) -> Plan:
        with lazy.importing:  # here, because a process which only remembers need not spend these 4 ms
            from autoinv.tuning.tuner import stopwatch_for, tune

        stopwatch = stopwatch_for(problem.device)
        ends_s = started_s + (settings.current().budget if budget_s is None else budget_s)
        left_s = ends_s - stopwatch.wall_s()
        if left_s <= 0:
            return self._fallback(problem, "the budget allows no timing")
        is_asked_for = budget_s is not None  # by a person, who waits; a call of a program does not
        if not _one_tuning.acquire(left_s if is_asked_for else 0):
            return self._fallback(problem, "another thread is tuning", final=False)
        file = self.file(problem)
        try:
            for_timing_s = left_s - min(SAVING_S, left_s / 4)
            # A decision that cannot be used, say of a strategy that is gone, is put to the test as well.
            decision = tune(
                self.operation, problem, strides, for_timing_s, stopwatch, again or file.get(problem)
            )
        finally:
            _one_tuning.release()
        if decision is None:
            return self._fallback(problem, "the budget was too short to time anything")
        self._tuned.add(problem)
        self._buckets[_bucket(problem)] += 1
        file.put(decision, max(0.0, ends_s - stopwatch.wall_s()))
        first = file.get(problem)
        if first and self._usable(first, problem):
            decision = first  # another process may have decided meanwhile: then its decision stands
        strategy = self._usable(decision, problem) or self.operation.reference(problem)
        plan = Plan(strategy, "tuned", "tuned in this process", decision, fresh=True)
        logger.info(
            "tuned %s: %s in %.1f ms", problem.key, decision.strategy, 1e3 * (stopwatch.wall_s() - started_s)
        )
        return plan


def _bucket(problem: Problem) -> tuple[object, ...]:
    matrices = tuple(shape[-2:] for shape in problem.shapes)
    return (
        matrices,
        problem.dtype,
        problem.device,
        problem.threads,
        problem.layout,
        problem.batch.bit_length(),
    )


_one_tuning = fork.Lock()
"""Held while timing: two tunings at once would measure each other. No call of a program waits for it."""
