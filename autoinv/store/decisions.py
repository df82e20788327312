"""The decisions file: what this machine has learnt, shared between processes, one file an environment."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from autoinv.problem import Problem
from autoinv.store import locking, merge, table
from autoinv.store.decision import MAX_TUNINGS, Decision
from autoinv.store.neighbours import Index

if TYPE_CHECKING:
    from autoinv.environment import Environment

__all__ = ["MAX_TUNINGS", "Decision", "DecisionsFile", "file_name", "opened"]

PREFIX = "decisions-v1-"
SECTION = "decisions"
_NOTHING: table.Entries = {}


def file_name(fingerprint: str) -> str:
    """Return the name of the file of the environment with this fingerprint."""
    return f"{PREFIX}{fingerprint}.json"


class _View:
    """One snapshot of the file; its entries are checked when they are first asked for."""

    def __init__(self, snapshot: table.Snapshot, path: Path | None) -> None:
        self.snapshot = snapshot
        self.path = path
        self.checked: dict[str, Decision | None] = {}

    def get(self, key: str) -> Decision | None:
        if key not in self.checked and key in self.snapshot.entries:
            self.checked[key] = merge.checked(key, self.snapshot.entries[key], self.path)
        return self.checked.get(key)


class DecisionsFile:
    """The decisions of one environment: read when needed, without a lock; saved by merging under one.

    Safe to use from any thread; a failure of the disk costs a warning, never an exception.
    """

    def __init__(self, folder: Path | None, environment: Environment) -> None:
        """Prepare; no file is touched before something is asked."""
        self.path = None if folder is None else folder / file_name(environment.fingerprint)
        self.environment: dict[str, object] = json.loads(json.dumps(environment.as_dict()))
        header = {"environment": self.environment}
        self._file = None if self.path is None else table.JsonFile(self.path, SECTION, header)
        self._view: _View | None = None
        self._index: tuple[table.Entries, Index] = (_NOTHING, Index())
        self._good: table.Entries = {}
        self._unsaved: dict[str, Decision] = {}
        self._forgotten: dict[str, Decision] = {}
        self._found: dict[Problem, Decision] = {}
        self._saving = threading.Lock()

    def get(self, problem: Problem) -> Decision | None:
        """Return what was decided for exactly this problem; a known answer costs no I/O."""
        found = self._found.get(problem)
        if found is None:
            self._look_again()
            cache = self._found  # a thread that reloads meanwhile starts another one
            found = self._current(problem.key)
            if found is not None:
                cache[problem] = found
        return found

    def neighbours(self, problem: Problem) -> Iterator[Decision]:
        """Return decisions for the same problem with about as many matrices, the nearest first.

        The file is looked at now; each entry is checked when its turn comes, mostly the first's alone.
        """
        self._look_again()
        near = map(self._current, self._by_bucket().near(problem))
        return (decision for decision in near if decision is not None)

    def all(self) -> list[Decision]:
        """Return every decision, sorted by key."""
        self._look_again()
        return [decision for key in sorted(self._keys()) if (decision := self._current(key)) is not None]

    @property
    def unsaved(self) -> int:
        """How many changes could not be saved yet; they are tried again with the next one."""
        return len(self._unsaved) + len(self._forgotten)

    def put(self, decision: Decision, wait_s: float) -> bool:
        """Remember a decision now and save it, with all that is unsaved; False when that must wait."""
        return self.put_all([decision], wait_s)

    def put_all(self, decisions: list[Decision], wait_s: float) -> bool:
        """Remember and save several decisions in one go."""
        for decision in map(Decision.storable, decisions):
            key = decision.problem.key
            kept = merge.winner(self._current(key), decision)
            self._unsaved[key] = kept
            self._found[decision.problem] = kept
            self._index[1].add((key,))  # after `_unsaved`, see `_by_bucket`
        return self._save(wait_s)

    def forget(self, predicate: Callable[[Problem], bool], wait_s: float) -> int:
        """Drop the decisions whose problem is picked; return how many. ``unsaved`` tells whether it lasts."""
        gone = [decision for decision in self.all() if predicate(decision.problem)]
        for decision in gone:
            key = decision.problem.key
            self._unsaved.pop(key, None)
            self._found.pop(decision.problem, None)
            if self._view is not None and (stored := self._view.get(key)) is not None:
                self._forgotten[key] = stored
        if self._forgotten:
            self._save(wait_s)
        return len(gone)

    def renew_lock(self) -> None:
        """Replace the lock between threads: a forked child has not the thread that may hold it."""
        self._saving = threading.Lock()

    def _stored(self) -> table.Entries:
        return _NOTHING if self._view is None else self._view.snapshot.entries

    def _keys(self) -> set[str]:
        return {*self._stored(), *self._unsaved.copy()}

    def _by_bucket(self) -> Index:
        """Return an index of all keys, and perhaps of some that are gone: made once for each view of the file."""
        stored = self._stored()
        seen, index = self._index
        if seen is not stored:
            if not seen.keys() <= stored.keys():
                index = Index()
            index.add(stored)
            self._index = (stored, index)
            index.add(self._unsaved.copy())  # what another thread put into the index before this one
        return index

    def _current(self, key: str) -> Decision | None:
        if (unsaved := self._unsaved.get(key)) is not None:
            return unsaved
        stored = None if self._view is None else self._view.get(key)
        return None if stored is not None and self._forgotten.get(key) == stored else stored

    def _look_again(self) -> None:
        if self._file is None:
            return
        if self._view is None:
            self._show(self._file.load({}))
        elif self._file.changed_since(self._view.snapshot):
            self._show(self._file.load(self._view.snapshot.entries))

    def _show(self, snapshot: table.Snapshot) -> None:
        self._view = _View(snapshot, self.path)
        self._found = {}

    def _save(self, wait_s: float) -> bool:
        if self._file is None:  # settings.cache_dir has said why
            return False
        with locking.turn(self._saving, wait_s) as left_s:
            return left_s is not None and self._save_alone(self._file, left_s)

    def _save_alone(self, file: table.JsonFile, wait_s: float) -> bool:
        added, gone = dict(self._unsaved), dict(self._forgotten)
        snapshot = file.update(
            lambda entries: merge.merged(entries, self._good, added, gone, self.path), wait_s
        )
        if snapshot is None:
            return False
        self._good = snapshot.entries
        self._show(snapshot)
        for waiting, done in ((self._unsaved, added), (self._forgotten, gone)):
            for key, decision in done.items():
                if waiting.get(key) is decision:
                    del waiting[key]
        return True


_opened: dict[tuple[Path | None, Environment], DecisionsFile] = {}


def opened(folder: Path | None, environment: Environment) -> DecisionsFile:
    """Return this process's one object for the file of this environment in this folder."""
    where = (folder, environment)
    return _opened.setdefault(where, _opened.get(where) or DecisionsFile(folder, environment))


def _after_fork_in_child() -> None:
    for file in _opened.values():
        file.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
