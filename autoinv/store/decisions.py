"""Decisions: the strategy chosen for each problem of one environment, with the evidence; one file an environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoinv.problem import Problem
from autoinv.store.checks import check_created, check_key, check_name
from autoinv.store.jsontext import Entries
from autoinv.store.neighbours import Index, dims_of
from autoinv.store.table import Change, Kind, State, Table

if TYPE_CHECKING:
    from autoinv.environment import Environment

PREFIX = "decisions-v1-"
SECTION = "decisions"
MAX_TUNINGS = 3
"""After so many an incomplete or contended decision counts as this machine's normal state."""

_NO_ENTRIES: Entries = {}
_MAX_STRATEGIES = 64
_MAX_REASON_CHARACTERS = 300
_MAX_SECONDS = 1e6
_MAX_COUNT = 10**9


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
    def conclusive(self) -> bool:
        """Whether the tuning was finished, and undisturbed."""
        return self.complete and not self.contended

    @property
    def final(self) -> bool:
        """Whether no later process needs to tune this again."""
        return self.conclusive or self.tunings >= MAX_TUNINGS

    def entry(self) -> dict[str, object]:
        """Return the decision as it stands in the file, under its problem's key."""
        parts = {part.name: getattr(self, part.name) for part in dataclasses.fields(self)[1:]}
        return {**parts, "seconds": dict(self.seconds), "rejected": dict(self.rejected)}

    def storable(self) -> Decision:
        """Return the decision with its reasons cut and cleaned, so that the file's checks accept them."""
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
    complete, contended = entry.get("complete"), entry.get("contended")
    if not isinstance(complete, bool) or not isinstance(contended, bool):
        raise ValueError("complete or contended is neither true nor false")
    return Decision(
        Problem.parse(check_key(key)),
        check_name(entry.get("strategy")),
        _checked_seconds(entry),
        _checked_reasons(entry),
        complete,
        contended,
        _checked_count(entry, "rounds", 0),
        _checked_count(entry, "tunings", 1),
        check_created(entry.get("created")),
    )


def _checked_seconds(entry: Mapping[str, object]) -> dict[str, float]:
    checked: dict[str, float] = {}
    for name, value in _checked_by_name(entry, "seconds").items():
        # One comparison for NaN, infinity, times of nothing or less and integers of 4000 digits.
        if type(value) not in (int, float) or not 0 < value <= _MAX_SECONDS:  # type: ignore[operator]
            raise ValueError(f"the time of {name} is no number of seconds")
        checked[name] = float(value)  # type: ignore[arg-type]
    return checked


def _checked_reasons(entry: Mapping[str, object]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, reason in _checked_by_name(entry, "rejected").items():
        if not isinstance(reason, str) or len(reason) > _MAX_REASON_CHARACTERS or not reason.isprintable():
            raise ValueError(f"the reason against {name} is no short, printable text")
        checked[name] = reason
    return checked


def _checked_by_name(entry: Mapping[str, object], what: str) -> dict[str, object]:
    table = entry.get(what)
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


def winner(stored: Decision | None, challenger: Decision) -> Decision:
    """Return which of two decisions for one problem is kept. Tunings never count down; no clock is asked."""
    if stored is None:
        return challenger
    if not _outranks(challenger, stored):
        return stored
    return dataclasses.replace(challenger, tunings=max(stored.tunings, challenger.tunings))


def _outranks(challenger: Decision, stored: Decision) -> bool:
    """Whether newer evidence replaces older: a final decision stays, until a re-tuning that is as good."""
    if challenger.tunings > stored.tunings:
        return challenger.conclusive or not stored.conclusive
    if stored.final:
        return False
    return challenger.conclusive or challenger.tunings == stored.tunings


def _merged(stored: Decision | None, change: Change[Decision]) -> Decision | None:
    """Return what stays: what was seen and forgotten goes, but not what another process decided since."""
    if stored in change.seen:
        stored = None
    return stored if change.value is None else winner(stored, change.value)


_KIND = Kind(
    SECTION,
    "entry",
    "It is ignored, and dropped with the next save; `python -m autoinv.tune verify` lists all.",
    from_entry,
    Decision.entry,
    _merged,
)


class DecisionsFile:
    """The decisions of one environment: read when needed, without a lock; saved by merging under one.

    Safe to use from any thread; a failure of the disk costs a warning, never an exception.
    """

    def __init__(self, folder: Path | None, environment: Environment) -> None:
        """Prepare; no file is touched before something is asked."""
        self.path = None if folder is None else folder / file_name(environment.fingerprint)
        self.environment: dict[str, object] = json.loads(json.dumps(environment.as_dict()))
        self._table = Table(self.path, _KIND, {"environment": self.environment})
        self._indexes: dict[tuple[str, tuple[int, ...]], tuple[Entries, Index]] = {}

    def get(self, problem: Problem) -> Decision | None:
        """Return what was decided for exactly this problem; a known answer costs no I/O."""
        return self._table.get(problem.key)

    def neighbours(self, problem: Problem, core_dims: Sequence[int] | None = None) -> Iterator[Decision]:
        """Return decisions for the same problem with about as many matrices, the nearest first.

        ``core_dims`` says how many trailing dims of each operand are no batch; None means 2 each. The file is looked
        at now; each entry is checked when its turn comes, mostly the first's alone.
        """
        state = self._table.look()
        near = map(state.get, self._index(problem.op, dims_of(problem, core_dims), state).near(problem.key))
        return (decision for decision in near if decision is not None)

    def _index(self, op: str, core_dims: tuple[int, ...], state: State[Decision]) -> Index:
        """Return an index of all keys, and perhaps of some that are gone; one serves until a key leaves the file."""
        stored = state.file.entries
        seen, index = self._indexes.get((op, core_dims), (_NO_ENTRIES, Index(op, core_dims)))
        if seen is not stored:
            if not seen.keys() <= stored.keys():
                index = Index(op, core_dims)
            index.add(stored.keys())
            self._indexes[op, core_dims] = (stored, index)
        index.add(state.changes.keys())
        return index

    def all(self) -> list[Decision]:
        """Return every decision, sorted by key."""
        return list(self._table.look().all().values())

    @property
    def unsaved(self) -> int:
        """How many changes could not be saved yet; they are tried again with the next one."""
        return self._table.unsaved

    def can_be_saved(self) -> bool:
        """Whether the folder, or the one that it would be made in, may be written."""
        if self.path is None:
            return False
        folder = next((place for place in self.path.parents if place.exists()), None)
        return folder is not None and os.access(folder, os.W_OK | os.X_OK)

    def put(self, decision: Decision, wait_s: float) -> bool:
        """Remember a decision now and save it, with all that is unsaved; False when that must wait."""
        return self.put_all([decision], wait_s)

    def put_all(self, decisions: Iterable[Decision], wait_s: float) -> bool:
        """Remember and save several decisions in one go."""
        clean = [decision.storable() for decision in decisions]

        def plan(state: State[Decision]) -> dict[str, Change[Decision]]:
            changes: dict[str, Change[Decision]] = {}
            for decision in clean:
                key = decision.problem.key
                before = changes.get(key) or state.changes.get(key) or Change(None)
                changes[key] = Change(winner(before.value or state.get(key), decision), before.seen)
            return changes

        return self._table.change(plan, wait_s)

    def forget(self, predicate: Callable[[Problem], bool], wait_s: float) -> int:
        """Drop the decisions whose problem is picked; return how many. ``unsaved`` says whether it lasts."""
        gone = [decision.problem.key for decision in self.all() if predicate(decision.problem)]
        self._table.change(lambda state: {key: _removal(state, key) for key in gone}, wait_s)
        return len(gone)


def _removal(state: State[Decision], key: str) -> Change[Decision] | None:
    """Return the change that removes a decision from the file; None where the file cannot hold it."""
    change, saving = state.changes.get(key, Change(None)), state.saving.get(key, Change(None))
    seen = [d for d in (state.stored(key), saving.value) if d is not None and d not in change.seen]
    return Change(None, (*change.seen, *seen)) if seen or change.seen else None


def file_name(fingerprint: str) -> str:
    """Return the name of the file of the environment with this fingerprint."""
    return f"{PREFIX}{fingerprint}.json"


_opened: dict[tuple[Path | None, Environment], DecisionsFile] = {}


def opened(folder: Path | None, environment: Environment) -> DecisionsFile:
    """Return this process's one object for the file of this environment in this folder."""
    where = (folder, environment)
    return _opened.setdefault(where, _opened.get(where) or DecisionsFile(folder, environment))
