"""What the ranks of a distributed program agreed on, which beats all that is local in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoinv.problem import Problem
from autoinv.store import neighbours
from autoinv.store.decisions import Decision
from autoinv.store.pins import pin_key, problem_of


@dataclass(frozen=True)
class _Agreement:
    """Decisions by `_anywhere` problem's key, and strategies by pin key."""

    decisions: Mapping[str, Decision] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)


_agreement = _Agreement()
"""Replaced as a whole, never changed, so that a reader in another thread sees the old one or the new one."""


def adopt(decisions: Iterable[Decision], pins: Mapping[str, str]) -> None:
    """Go by these from now on, in place of what was adopted before."""
    global _agreement
    _agreement = _Agreement(
        {_anywhere(decision.problem).key: decision for decision in decisions},
        {_kind_only(key): strategy for key, strategy in pins.items()},
    )


def pin_of(problem: Problem) -> str | None:
    """Return the strategy that the ranks' pins name for this problem."""
    return _agreement.pins.get(_kind_only(pin_key(problem))) if _agreement.pins else None


def decision_of(problem: Problem) -> Decision | None:
    """Return what the ranks agreed on for exactly this problem, on whichever device of its kind."""
    return _agreement.decisions.get(_anywhere(problem).key) if _agreement.decisions else None


def neighbours_of(problem: Problem, core_dims: Sequence[int]) -> list[Decision]:
    """Return what they agreed on for the same problem with about as many matrices, the nearest first."""
    agreed = _agreement.decisions
    if not agreed:
        return []
    return [agreed[key] for key in neighbours.sorted_by_distance(_anywhere(problem), set(agreed), core_dims)]


def drop_like(problem: Problem) -> None:
    """Give up the agreement on what a pin of this problem holds for: that pin, set or removed, counts now."""
    key = _kind_only(pin_key(problem))
    drop(lambda other: _kind_only(pin_key(other)) == key)


def drop(is_meant: Callable[[Problem], bool]) -> None:
    """Give up the agreement on the problems picked: what is done in this process later counts."""
    global _agreement
    _agreement = _Agreement(
        {key: d for key, d in _agreement.decisions.items() if not is_meant(d.problem)},
        {key: strategy for key, strategy in _agreement.pins.items() if not is_meant(problem_of(key))},
    )


def _kind_only(key: str) -> str:
    """Return a pin's key without the index of its device, as `_anywhere` does it for a problem."""
    rest, _, device = key.rpartition("/")
    return f"{rest}/{device.partition(':')[0]}"


def _anywhere(problem: Problem) -> Problem:
    """Return the problem without the index of its device: rank 0 has cuda:0 where rank 1 has cuda:1."""
    kind = problem.device.partition(":")[0]
    return problem if kind == problem.device else dataclasses.replace(problem, device=kind)
