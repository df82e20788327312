"""What shall run for a problem: an ordered list of sources, each of which has a plan for it or none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

from autoinv import environment, fork, lazy, settings
from autoinv.errors import warn_once
from autoinv.operation import Operation, Strides
from autoinv.planning import agreement, events
from autoinv.planning.plan import Plan
from autoinv.planning.untimed import Untimed
from autoinv.problem import Problem, Shape
from autoinv.store import decisions, pins
from autoinv.store.checks import timestamp
from autoinv.store.decisions import Decision, DecisionsFile
from autoinv.store.neighbours import bucket_of
from autoinv.strategy import Strategy

SAVING_S = 5e-3
"""What saving a decision takes of the budget, at most a quarter: an fsync is a few ms."""
NEIGHBOUR_TUNINGS = 2
"""A bucket of batch sizes that was tuned this often in one process serves its other sizes, contended or not."""


_tuning = fork.Turn()
"""One tuning at a time in a process: two at once would measure each other. No call of a program waits for it."""


class _VainError(Exception):
    """A tuning timed nothing: why, and how many seconds it took."""

    def __init__(self, why: str, spent_s: float) -> None:
        super().__init__(why)
        self.why, self.spent_s = why, spent_s


class Planner:
    """Plans the problems of one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._start()

    def _start(self) -> None:
        self._tuned_here: set[Problem] = set()
        self._served: set[Problem] = set()
        self._tunings: Counter[Hashable] = Counter()
        """How many tunings each bucket of batch sizes had in this process."""
        self._untimed: dict[Problem, Untimed] = {}
        """What the calls and tries took of the problems that are not timed yet."""
        self._shapes_to_tune: set[tuple[Shape, ...]] = set()
        """Those whose decisions the user forgot; no neighbour serves them."""

    def forget(
        self, is_meant: Callable[[Problem], bool] | None = None, shapes: tuple[Shape, ...] | None = None
    ) -> None:
        """Forget what this process tuned and served of the problems picked, or of all, so that they are tuned anew.

        Those of these ``shapes`` then have no neighbours: they are tuned themselves.
        """
        if is_meant is None:
            self._start()
            return
        for problem in [p for p in self._tuned_here.copy() if is_meant(p)]:
            self._tuned_here.discard(problem)
            self._tunings.pop(self._bucket(problem), None)
        for problem in [p for p in self._served.copy() if is_meant(p)]:
            self._served.discard(problem)
        for problem in [p for p in self._untimed.copy() if is_meant(p)]:
            self._untimed.pop(problem, None)
        if shapes is not None:
            self._shapes_to_tune.add(shapes)

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

    def plan(self, problem: Problem, strides: Strides) -> Plan:
        """Return what shall run; tunes within the budget where that is allowed and worthwhile."""

        def tuned_again(problem: Problem) -> Plan | None:
            return self._tuned_again(problem, strides)

        def tuned(problem: Problem) -> Plan | None:
            return self._tuned(problem, strides)

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
        return _first(sources, problem) or self._default(problem)

    def warm(self, problem: Problem, strides: Strides, budget_s: float) -> Plan:
        """Return the plan by this problem's own final decision, tuning it when there is none; no neighbours.

        Where it could not be tuned there is no decision, and ``why`` says why.
        """
        started_s = time.perf_counter()
        plan = self._stored(problem)
        again = plan.decision if plan else None
        if plan is None or again is None or not again.final:
            try:  # the user waits for another thread's tuning; a call of a program does not
                plan = self._tune(problem, strides, budget_s, again, wait_s=budget_s)
            except _VainError as nothing:
                return replace(self._default(problem), why=nothing.why)
        self.notify(problem, plan, time.perf_counter() - started_s)
        return plan

    def failed(self, problem: Problem, strategy: Strategy, reason: str) -> None:
        """Write into the decision that this strategy raised, and that PyTorch's own call answers from now on."""
        file = self.file(problem)
        kept = file.get(problem)
        reference = self.operation.reference(problem).name
        changed = Decision(
            problem,
            reference,
            {name: s for name, s in kept.seconds.items() if name != strategy.name} if kept else {},
            {**(kept.rejected if kept else {}), strategy.name: reason},
            complete=kept.complete if kept else False,
            contended=kept.contended if kept else False,
            rounds=kept.rounds if kept else 0,
            tunings=kept.tunings + 1 if kept else 1,
            created=timestamp(),
        )
        self._tuned_here.add(problem)
        file.put(changed, SAVING_S)

    def notify(self, problem: Problem, plan: Plan, spent_s: float) -> None:
        """Tell listeners and the log of a plan; of a default that goes on serving only the log."""
        events.log(problem, plan, self.operation.reference(problem).name, spent_s)
        is_new = plan.untimed is None or not plan.untimed.calls_s
        if is_new and events.wanted():
            events.notify(problem, plan, spent_s)

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
        """A decision for about as many of the same matrices.

        Complete, and uncontended or for a strategy whose time depends little on how busy the machine was; any that
        there is once the bucket was tuned often enough.
        """
        if problem.shapes in self._shapes_to_tune:
            return None
        any_will_do = self._tunings[self._bucket(problem)] >= NEIGHBOUR_TUNINGS
        for decision in self.file(problem).neighbours(problem, self._core_dims(problem)):
            strategy = self._usable(decision, problem)
            if strategy and (any_will_do or _serves_neighbours(decision, strategy)):
                return Plan(strategy, "neighbour", f"as decided for {decision.problem.key}", decision)
        return None

    def _tuned_again(self, problem: Problem, strides: Strides) -> Plan | None:
        """A stored decision that is not final: it serves at once, and the next call tunes it again."""
        if settings.current().mode != "tune" or problem in self._tuned_here:
            return None
        plan = self._stored(problem)
        if plan is None or plan.decision is None or plan.decision.final:
            return None
        if not self.file(problem).can_be_saved():
            return None  # every process would tune it again, for ever
        if problem not in self._served:
            self._served.add(problem)
            return replace(plan, final=False)
        try:
            return self._tune(problem, strides, settings.current().budget, plan.decision)
        except _VainError:
            return plan

    def _tuned(self, problem: Problem, strides: Strides) -> Plan | None:
        """What is timed now: within the budget at first, later within a part of the time that the calls took."""
        budget_s = settings.current().budget
        if settings.current().mode != "tune" or budget_s <= 0:
            return None
        untimed = self._untimed.get(problem)
        if untimed is not None:
            if not untimed.is_due(budget_s):
                return self._default(problem)
            budget_s = min(budget_s, untimed.allowed_s())
        try:
            return self._tune(problem, strides, budget_s)
        except _VainError as nothing:
            untimed = self._untimed.setdefault(problem, Untimed())
            untimed.tries_s += nothing.spent_s
            untimed.why = nothing.why
            return self._default(problem)

    def _default(self, problem: Problem) -> Plan:
        """The operation's default, which serves what was not timed; PyTorch's own call where the mode is off."""
        now = settings.current()
        if now.mode == "off":
            return Plan(self.operation.reference(problem), "reference", "mode is off")
        strategy = self.operation.default(problem)
        if now.mode == "cached":
            with lazy.importing:
                from autoinv.store import exchange  # 1 ms, which other modes do not spend
            exchange.warn_if_elsewhere(self.file(problem))
            return Plan(strategy, "default", "the default, as nothing is known of it and mode is cached")
        if now.budget <= 0:
            return Plan(strategy, "default", "the default, as a budget of 0 allows no timing")
        untimed = self._untimed.get(problem)
        why = untimed.why if untimed else "nothing is known of it yet"
        return Plan(strategy, "default", f"the default, as {why}", final=False, untimed=untimed)

    def _tune(
        self,
        problem: Problem,
        strides: Strides,
        budget_s: float,
        again: Decision | None = None,
        wait_s: float = 0.0,
    ) -> Plan:
        """Time the candidates and return the plan by what was decided.

        Raises:
            _VainError: when nothing was, with the reason.
        """
        # Here, because a process which only remembers need not spend these 4 ms. The budget's clock starts when they
        # are spent and the kernels are loaded: on a busy machine both take longer than many a budget.
        with lazy.importing:
            from autoinv.tuning.tuner import NothingTimedError, stopwatch_for, tune
        self.operation.default(problem)
        stopwatch = stopwatch_for(problem.device)
        began_s = stopwatch.wall_s()
        ends_s = began_s + budget_s
        file = self.file(problem)

        def timed() -> Decision:
            left_s = ends_s - stopwatch.wall_s()
            if left_s <= 0:
                raise NothingTimedError("no time of the budget was left")
            for_timing_s = left_s - min(SAVING_S, left_s / 4)
            # A decision that cannot be used, say of a strategy that is gone, is put to the test as well.
            return tune(self.operation, problem, strides, for_timing_s, stopwatch, again or file.get(problem))

        try:
            decision = _tuning.run(timed, wait_s)
        except fork.TakenError:
            raise _VainError("another thread is tuning", 0.0) from None
        except NothingTimedError as nothing:
            raise _VainError(str(nothing), stopwatch.wall_s() - began_s) from None
        self._untimed.pop(problem, None)
        self._tuned_here.add(problem)
        self._tunings[self._bucket(problem)] += 1
        file.put(decision, max(0.0, ends_s - stopwatch.wall_s()))
        kept = file.get(problem)
        if kept and self._usable(kept, problem):
            decision = kept  # another process may have decided meanwhile: then its decision stands
        strategy = self._usable(decision, problem) or self.operation.reference(problem)
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


def _serves_neighbours(decision: Decision, strategy: Strategy) -> bool:
    if not decision.complete:
        return False
    return not decision.contended or not strategy.is_multithreaded(decision.problem)


def _first(sources: Iterable[Callable[[Problem], Plan | None]], problem: Problem) -> Plan | None:
    """Return the plan of the first source that has one."""
    return next((plan for source in sources if (plan := source(problem)) is not None), None)
