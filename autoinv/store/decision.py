"""A decision: the strategy chosen for a problem, with the evidence. Its form in the file, and who wins."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from autoinv.problem import Problem

MAX_TUNINGS = 3
"""After so many an incomplete or contended decision counts as this machine's normal state."""

_MAX_KEY_CHARACTERS = 400
_MAX_STRATEGIES = 64
_MAX_REASON_CHARACTERS = 300
_MAX_SECONDS = 1e6
_MAX_COUNT = 10**9
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@dataclass(frozen=True)
class Decision:
    """The strategy chosen for a problem, and why.

    ``seconds`` are seconds per call, by strategy; ``rejected`` the reason, by strategy; ``rounds`` how often
    each was timed; ``tunings`` how many times the problem was tuned; ``created`` is UTC, and for people only.
    """

    problem: Problem
    strategy: str
    seconds: Mapping[str, float]
    rejected: Mapping[str, str]
    complete: bool
    contended: bool
    rounds: int
    tunings: int
    created: str

    @property
    def quiet(self) -> bool:
        """Whether the tuning was finished, and undisturbed."""
        return self.complete and not self.contended

    @property
    def settled(self) -> bool:
        """Whether no later process needs to tune this again."""
        return self.quiet or self.tunings >= MAX_TUNINGS

    def entry(self) -> dict[str, object]:
        """Return the decision as it stands in the file, under its problem's key."""
        return {
            "strategy": self.strategy,
            "seconds": dict(self.seconds),
            "rejected": dict(self.rejected),
            "complete": self.complete,
            "contended": self.contended,
            "rounds": self.rounds,
            "tunings": self.tunings,
            "created": self.created,
        }

    def storable(self) -> Decision:
        """Return the decision with its reasons cut and cleaned, so that the file's checks let them pass."""
        return dataclasses.replace(
            self, rejected={name: _short(text) for name, text in self.rejected.items()}
        )


def from_entry(key: str, entry: object) -> Decision:
    """Return the decision that an entry of the file holds.

    Raises:
        ValueError: with the reason, when anything in it is not what it should be.
    """
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    seconds, rejected = entry.get("seconds"), entry.get("rejected")
    complete, contended = entry.get("complete"), entry.get("contended")
    if not isinstance(complete, bool) or not isinstance(contended, bool):
        raise ValueError("complete or contended is neither true nor false")
    return Decision(
        Problem.parse(check_key(key)),
        check_name(entry.get("strategy")),
        _checked_seconds(seconds),
        _checked_reasons(rejected),
        complete,
        contended,
        _checked_count(entry, "rounds", 0),
        _checked_count(entry, "tunings", 1),
        check_created(entry.get("created")),
    )


def check_key(key: str) -> str:
    """Return a key.

    Raises:
        ValueError: when it is longer than any problem needs.
    """
    if len(key) > _MAX_KEY_CHARACTERS:
        raise ValueError("its key is too long")
    return key


def check_name(name: object) -> str:
    """Return a strategy's name; whether there is such a strategy is not asked here.

    Raises:
        ValueError: when it is no short identifier.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("a strategy's name is no short identifier")
    return name


def check_created(created: object) -> str:
    """Return the time of creation.

    Raises:
        ValueError: when it is not written as ``2026-11-30T10:00:00Z``.
    """
    if not isinstance(created, str) or not _CREATED.fullmatch(created):
        raise ValueError("created is no time such as 2026-11-30T10:00:00Z")
    return created


def _checked_seconds(seconds: object) -> dict[str, float]:
    checked: dict[str, float] = {}
    for name, value in _checked_table(seconds, "seconds").items():
        # One comparison for NaN, infinity, times of nothing or less and integers of 4000 digits.
        if type(value) not in (int, float) or not 0 < value <= _MAX_SECONDS:  # type: ignore[operator]
            raise ValueError(f"the time of {name} is no number of seconds")
        checked[name] = float(value)  # type: ignore[arg-type]
    return checked


def _checked_reasons(rejected: object) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, reason in _checked_table(rejected, "rejected").items():
        if not isinstance(reason, str) or len(reason) > _MAX_REASON_CHARACTERS or not reason.isprintable():
            raise ValueError(f"the reason against {name} is no short, printable text")
        checked[name] = reason
    return checked


def _checked_table(table: object, what: str) -> dict[str, object]:
    if not isinstance(table, dict) or len(table) > _MAX_STRATEGIES:
        raise ValueError(f"{what} is no short table")
    for name in table:
        check_name(name)
    return table


def _checked_count(entry: Mapping[str, object], name: str, least: int) -> int:
    count = entry.get(name)
    if type(count) is not int or not least <= count <= _MAX_COUNT:
        raise ValueError(f"{name} is no count")
    return count


def _short(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:_MAX_REASON_CHARACTERS]
