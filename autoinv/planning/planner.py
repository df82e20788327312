"""What shall run for a problem: an ordered list of sources, each of which has a plan for it or none."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

from autoinv import environment, fork, lazy, settings
from autoinv.errors import logger, warn_once
from autoinv.operation import Operation, Strides
from autoinv.planning import agreement, events
from autoinv.planning.plan import Plan
from autoinv.problem import Problem
from autoinv.store import decisions, pins
from autoinv.store.decisions import Decision, DecisionsFile
from autoinv.store.neighbours import bucket_of
from autoinv.strategy import Strategy

SAVING_S = 5e-3
"""What saving a decision takes of the budget, at most a quarter: an fsync is a few ms."""
NEIGHBOUR_TUNINGS = 2
"""A bucket of batch sizes that was tuned this often in one process serves its other sizes, contended or not."""

_one_tuning = fork.lock()
"""Held while timing: two tunings at once would measure each other. No call of a program waits for it."""


class _Budget(NamedTuple):
    """When a tuning began, how long it may take, and whether the user asked for it and waits."""

    started_s: float
    seconds: float
    is_asked_for: bool = False


class Planner:
    """Plans the problems of one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._tuned_here: set[Problem] = set()
        self._served: set[Problem] = set()
        self._tunings: Counter[Hashable] = Counter()
        """How many tunings each bucket of batch sizes had in this process."""

    def forget(self, is_meant: Callable[[Problem], bool] = lambda problem: True) -> None:
        """Forget what this process tuned and served of the problems picked, so that they may be tuned anew."""
        for problem in [p for p in self._tuned_here.copy() if is_meant(p)]:
            self._tuned_here.discard(problem)
            self._tunings.pop(self._bucket(problem), None)
        for problem in [p for p in self._served.copy() if is_meant(p)]:
            self._served.discard(problem)

    def file(self, problem: Problem) -> DecisionsFile:
        """Return the decisions of this problem's environment."""
        return decisions.opened(settings.cache_dir(), environment.of(problem.device))

    def is_pinned(self, problem: Problem) -> bool:
        """Whether a pin decides about this very problem; the strategy setting is none, and counts for more."""
        if self._named_by_setting(problem) is not None:
            return False
        plan = _first((self._agreement, self._pin), problem)
        return plan is not None and plan.source == "pin"

    def known(self, problem: Problem) -> Plan:
        """Return what would run without timing anything: what ``explain`` says."""
        sources = (self._setting, self._agreement, self._pin, self._stored, self._neighbour)
        plan = _first(sources, problem) or self._default(problem)
        is_bare_pin = plan.source == "pin" and plan.decision is None
        return replace(plan, decision=self.file(problem).get(problem)) if is_bare_pin else plan

    def plan(self, problem: Problem, strides: Strides, started_s: float) -> Plan:
        """Return what shall run; tunes within what is left of the budget since ``started_s``."""
        served_before = problem in self._served
        budget = _Budget(started_s, settings.current().budget)

        def tuned_again(problem: Problem) -> Plan | None:
            return self._tuned_again(problem, strides, budget)

        def tuned(problem: Problem) -> Plan | None:
            return self._tune(problem, strides, budget) if settings.current().mode == "tune" else None

        # In this order: what the user chose, what the ranks agreed on, what is known, what can be timed.
        sources = (
            self._setting,
            self._agreement,
            self._pin,
            tuned_again,
            self._stored,
            self._neighbour,
            tuned,
        )
        plan = _first(sources, problem) or self._default(problem)
        if plan.final or (plan.decision and not served_before):
            self._notify(problem, plan, started_s)
        return plan

    def warm(self, problem: Problem, strides: Strides, started_s: float, budget_s: float) -> Plan:
        """Return the plan by this problem's own final decision, tuning it when there is none; no neighbours.

        Where it could not be tuned there is no decision, and ``why`` says why.
        """
        plan = self._stored(problem)
        if plan is None or plan.decision is None or not plan.decision.final:
            again = plan.decision if plan else None
            plan = self._tune(problem, strides, _Budget(started_s, budget_s, is_asked_for=True), again)
        if plan.decision:
            self._notify(problem, plan, started_s)
        return plan

    # The sources, each a function from a problem to a plan or None.

    def _setting(self, problem: Problem) -> Plan | None:
        """Mode off, or the strategy that the setting names."""
        return self._default(problem) if settings.current().mode == "off" else self._named_by_setting(problem)

    def _named_by_setting(self, problem: Problem) -> Plan | None:
        """The strategy that the setting names, where this operation has it; others may have it."""
        name = settings.current().strategy
        strategy = self.operation.strategy(name) if name else None
        if strategy is None or not strategy.supports(problem):
            return None
        return Plan(strategy, "pin", "pinned by the strategy setting (AUTOINV_STRATEGY or configure)")

    def _agreement(self, problem: Problem) -> Plan | None:
        """What rank 0 pinned or decided; as it stands, since a rank that tuned it again would choose alone."""
        pinned = self._named(problem, agreement.pin_of(problem), "rank 0's pins")
        if pinned:
            return pinned
        own = agreement.decision_of(problem)
        agreed = [own] if own else agreement.neighbours_of(problem, self._core_dims(problem))
        for decision in agreed:
            strategy = self._usable(decision, problem)
            if strategy:
                why = "as rank 0 decided" if own else f"as rank 0 decided for {decision.problem.key}"
                return Plan(strategy, "sync", why, decision)
        return None

    def _pin(self, problem: Problem) -> Plan | None:
        """The user's pin."""
        return self._named(problem, pins.opened_pins(settings.cache_dir()).get(problem), pins.FILE_NAME)

    def _stored(self, problem: Problem) -> Plan | None:
        """The decision in the file for exactly this problem."""
        decision = self.file(problem).get(problem)
        strategy = self._usable(decision, problem)
        if strategy is None:
            return None
        here = problem in self._tuned_here
        why = "tuned in this process" if here else "remembered"
        return Plan(strategy, "tuned" if here else "file", why, decision)

    def _neighbour(self, problem: Problem) -> Plan | None:
        """A decision for about as many of the same matrices; contended ones once the bucket was tuned often enough."""
        any_will_do = self._tunings[self._bucket(problem)] >= NEIGHBOUR_TUNINGS
        for decision in self.file(problem).neighbours(problem, self._core_dims(problem)):
            strategy = self._usable(decision, problem)
            if strategy and (any_will_do or decision.conclusive):
                return Plan(strategy, "neighbour", f"as decided for {decision.problem.key}", decision)
        return None

    def _tuned_again(self, problem: Problem, strides: Strides, budget: _Budget) -> Plan | None:
        """A stored decision that is not final: it serves at once, and the next call tunes it again."""
        if settings.current().mode != "tune" or problem in self._tuned_here:
            return None
        plan = self._stored(problem)
        if plan is None or plan.decision is None or plan.decision.final:
            return None
        if problem not in self._served:
            self._served.add(problem)
            return replace(plan, final=False)
        again = self._tune(problem, strides, budget, plan.decision)
        return again if again.decision else replace(plan, final=again.final)

    def _default(self, problem: Problem, why: str = "nothing is known of it yet", final: bool = True) -> Plan:
        """PyTorch's own way, which serves where no source has a plan; ``why`` says why none has."""
        mode = settings.current().mode
        if mode != "tune":
            why = "mode is off" if mode == "off" else "nothing is known of it and mode is cached"
        return Plan(self.operation.reference(problem), "reference", why, final=final)

    def _tune(
        self, problem: Problem, strides: Strides, budget: _Budget, again: Decision | None = None
    ) -> Plan:
        """Time the candidates, or say in the default plan why that was not possible."""
        with lazy.importing:  # here, because a process which only remembers need not spend these 4 ms
            from autoinv.tuning.tuner import stopwatch_for, tune

        stopwatch = stopwatch_for(problem.device)
        ends_s = budget.started_s + budget.seconds
        left_s = ends_s - stopwatch.wall_s()
        if left_s <= 0:
            return self._default(problem, "the budget allows no timing")
        file = self.file(problem)
        # The user waits for another thread's tuning; a call of a program does not.
        wait_s = min(left_s, threading.TIMEOUT_MAX) if budget.is_asked_for else 0.0
        if not _one_tuning.acquire(timeout=wait_s):
            return self._default(problem, "another thread is tuning", final=False)
        try:
            for_timing_s = left_s - min(SAVING_S, left_s / 4)
            # A decision that cannot be used, say of a strategy that is gone, is put to the test as well.
            decision = tune(
                self.operation, problem, strides, for_timing_s, stopwatch, again or file.get(problem)
            )
        finally:
            _one_tuning.release()
        if decision is None:
            return self._default(problem, "the budget was too short to time anything")
        self._tuned_here.add(problem)
        self._tunings[self._bucket(problem)] += 1
        file.put(decision, max(0.0, ends_s - stopwatch.wall_s()))
        kept = file.get(problem)
        if kept and self._usable(kept, problem):
            decision = kept  # another process may have decided meanwhile: then its decision stands
        strategy = self._usable(decision, problem) or self.operation.reference(problem)
        spent_ms = 1e3 * (stopwatch.wall_s() - budget.started_s)
        logger.info("tuned %s: %s in %.1f ms", problem.key, decision.strategy, spent_ms)
        return Plan(strategy, "tuned", "tuned in this process", decision, fresh=True)

    def _named(self, problem: Problem, name: str | None, where: str) -> Plan | None:
        strategy = self.operation.strategy(name) if name else None
        if strategy and strategy.supports(problem):
            return Plan(strategy, "pin", f"pinned by {where}")
        if name and not strategy:
            warn_once(
                f"unknown strategy {name}",
                f"{where} names {name!r}, which is no strategy of {self.operation.name}",
                f"It is ignored; name one of {', '.join(self.operation.names())}.",
            )
        return None

    def _usable(self, decision: Decision | None, problem: Problem) -> Strategy | None:
        """Return a decision's strategy, where there is one and it supports this very problem."""
        strategy = self.operation.strategy(decision.strategy) if decision else None
        return strategy if strategy and strategy.supports(problem) else None

    def _core_dims(self, problem: Problem) -> tuple[int, ...]:
        return self.operation.core_dims(problem.shapes)

    def _bucket(self, problem: Problem) -> Hashable:
        return bucket_of(problem.key, self._core_dims(problem))

    def _notify(self, problem: Problem, plan: Plan, started_s: float) -> None:
        if events.wanted():
            events.notify(problem, plan, time.perf_counter() - started_s)


def _first(sources: Iterable[Callable[[Problem], Plan | None]], problem: Problem) -> Plan | None:
    """Return the plan of the first source that has one."""
    return next((plan for source in sources if (plan := source(problem)) is not None), None)
