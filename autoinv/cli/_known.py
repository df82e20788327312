"""What is known of a problem, decisions and pins merged: what ``show`` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from autoinv.ops.table import OPERATIONS
from autoinv.problem import Problem, format_shapes
from autoinv.store.decisions import Decision
from autoinv.store.pins import Pins, pin_key


@dataclass(frozen=True)
class Known:
    """A decision with the pin that overrules it, if any; or a pin alone, without threads and layout."""

    op: str
    shape: str
    dtype: str
    device: str
    threads: int | None
    layout: str | None
    strategy: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False
    complete: bool = True
    contended: bool = False
    created: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return it as it stands in the document of ``show --json``."""
        return asdict(self)


def merged(decisions: Iterable[Decision], pinned: Pins, *, alone: bool = True) -> list[Known]:
    """Return every decision, overruled by its pin where that holds; ``alone``: other pins as well."""
    known = []
    used = set()
    for decision in decisions:
        key = pin_key(decision.problem)
        holds = key in pinned and _holds(pinned[key]["strategy"], decision.problem)
        used |= {key} if holds else set()
        known.append(_of(decision, pinned[key]["strategy"] if holds else None))
    lone = [key for key in sorted(pinned) if alone and key not in used]
    return known + [_of_pin(key, pinned[key]["strategy"], pinned[key]["created"]) for key in lone]


def _of(decision: Decision, pin: str | None) -> Known:
    problem = decision.problem
    return Known(
        problem.op,
        format_shapes(problem.shapes),
        problem.dtype_name,
        problem.device,
        problem.threads,
        problem.layout,
        pin or decision.strategy,
        dict(decision.seconds),
        dict(decision.rejected),
        pin is not None,
        decision.complete,
        decision.contended,
        decision.created,
    )


def _of_pin(key: str, strategy: str, created: str) -> Known:
    op, shapes, dtype, device = key.split("/")
    return Known(op, shapes, dtype, device, None, None, strategy, pinned=True, created=created)


def _holds(name: str, problem: Problem) -> bool:
    """Whether the planner would follow this pin: the strategy exists and supports the problem."""
    found = OPERATIONS[problem.op].operation.strategy(name) if problem.op in OPERATIONS else None
    return found is not None and found.supports(problem)
