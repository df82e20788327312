"""Who is notified of every new decision: callbacks of the program's own, for its log or its dashboard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from autoinv.errors import logger
from autoinv.planning.plan import Plan, Source
from autoinv.problem import Problem


@dataclass(frozen=True)
class DecisionEvent:
    """What was decided for a problem that this process met for the first time, or anew.

    ``source`` is pin, sync, file, neighbour, tuned, default or reference; ``why`` says it in words. ``seconds`` a call
    and ``rejected``, reasons, go by strategy: those of the neighbour for a neighbour, empty where nothing was
    timed. ``tuned`` says that strategies were timed for it now, else it was a hit: known, or chosen without
    timing. ``spent_s`` is what the decision cost, in wall-clock seconds.
    """

    problem: Problem
    strategy: str
    source: Source
    why: str
    tuned: bool
    spent_s: float
    seconds: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True
    contended: bool = False


Callback = Callable[[DecisionEvent], object]

_callbacks: dict[object, Callback] = {}
"""By handle. No lock: each step on it is atomic, and one held by another thread would outlive a fork."""


def on_decision(callback: Callback) -> Callable[[], None]:
    """Call ``callback(event)`` after every new decision of this process; return a function that ends it.

    It runs in the thread that met the problem, before that thread's answer is computed, and never on a call
    that finds its strategy in the memo. What it raises is logged by the logger ``autoinv``, not raised.

    Args:
        callback: takes one `DecisionEvent`: problem, strategy, source, seconds, spent_s, tuned and more.

    Returns:
        A function without arguments that unsubscribes; calling it again does nothing.

    Raises:
        TypeError: when ``callback`` cannot be called.

    Example:
        >>> import torch, autoinv
        >>> met = []
        >>> unsubscribe = autoinv.on_decision(lambda event: met.append((event.problem.shape, event.tuned)))
        >>> with autoinv.using(mode="off"):
        ...     X = autoinv.inv(torch.eye(2).expand(6, 2, 2).contiguous())
        >>> met
        [((6, 2, 2), False)]
        >>> unsubscribe()
    """
    if not callable(callback):
        raise TypeError(f"on_decision takes a function of one event, not {callback!r}")
    handle = object()  # not the callback: the same one may be subscribed twice, and ended once
    _callbacks[handle] = callback

    def unsubscribe() -> None:
        _callbacks.pop(handle, None)

    return unsubscribe


def wanted() -> bool:
    """Whether there is a callback; without one no event need be made."""
    return bool(_callbacks)


def log(problem: Problem, plan: Plan, reference: str, spent_s: float) -> None:
    """Log what was decided anew as info; what was known already, and what serves for now, as debug."""
    level = logging.INFO if plan.fresh else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    ratio = ""
    seconds = plan.decision.seconds if plan.decision else {}
    if plan.strategy.name in seconds and reference in seconds:
        ratio = f", {seconds[reference] / seconds[plan.strategy.name]:.3g} times as fast as {reference}"
    logger.log(
        level,
        "%s: %s, source %s (%s)%s, in %.3g ms",
        problem.key,
        plan.strategy.name,
        plan.source,
        plan.why,
        ratio,
        1e3 * spent_s,
    )


def notify(problem: Problem, plan: Plan, spent_s: float) -> None:
    """Call every callback with this plan; log what one raises, and go on."""
    event = _event(problem, plan, spent_s)
    for callback in list(_callbacks.values()):
        try:
            callback(event)
        except Exception:  # a listener's fault must not cost the caller its answer
            logger.exception("a callback of on_decision raised at %s", problem.key)


def _event(problem: Problem, plan: Plan, spent_s: float) -> DecisionEvent:
    event = DecisionEvent(problem, plan.strategy.name, plan.source, plan.why, plan.fresh, spent_s)
    decision = plan.decision
    if decision is None:
        return event
    return replace(
        event,
        seconds=dict(decision.seconds),
        rejected=dict(decision.rejected),
        complete=decision.complete,
        contended=decision.contended,
    )
