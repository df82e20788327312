"""What was said about a problem rather than timed here: by a setting, by the ranks' agreement, by a pin."""

from __future__ import annotations

from autoinv import settings
from autoinv.errors import warn_once
from autoinv.operation import Operation
from autoinv.planning import agreement
from autoinv.planning.plan import Plan
from autoinv.problem import Problem
from autoinv.store import pins


def pinned(operation: Operation, problem: Problem) -> Plan | None:
    """Return the plan that needs no timing, or None; what the ranks agreed on beats local pins."""
    return (
        _named(
            operation,
            problem,
            settings.current().strategy,
            "the strategy setting (AUTOINV_STRATEGY or configure)",
        )
        or _named(operation, problem, agreement.pin_of(problem), "rank 0's pins")
        or _agreed(operation, problem)
        or _named(operation, problem, pins.opened_pins(settings.cache_dir()).get(problem), "pins-v1.json")
    )


def _named(operation: Operation, problem: Problem, name: str | None, where: str) -> Plan | None:
    strategy = operation.strategy(name) if name else None
    if strategy and strategy.supports(problem):
        return Plan(strategy, "pin", f"pinned by {where}")
    if name and not strategy:
        warn_once(
            f"unknown strategy {name}",
            f"{where} names {name!r}, which is no strategy of {operation.name}",
            f"It is ignored; name one of {', '.join(operation.names())}.",
        )
    return None


def _agreed(operation: Operation, problem: Problem) -> Plan | None:
    """Return what rank 0 decided; as it stands, since a rank that tuned it again would choose alone."""
    own = agreement.decision_of(problem)
    for decision in [own] if own else agreement.neighbours_of(problem):
        strategy = operation.strategy(decision.strategy)
        if strategy and strategy.supports(problem):
            why = "as rank 0 decided" if own else f"as rank 0 decided for {decision.problem.key}"
            return Plan(strategy, "sync", why, decision)
    return None
