"""The pins file: the strategies that a person chose. No environment, thread count or layout changes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from autoinv import errors
from autoinv.problem import Problem
from autoinv.store import locking, table
from autoinv.store.decision import check_created, check_key, check_name

FILE_NAME = "pins-v1.json"
SECTION = "pins"

Pin = dict[str, str]
"""What stands in the file under a key: strategy and created."""
Pins = dict[str, Pin]


def pin_key(problem: Problem) -> str:
    """Return what a pin holds for: a problem's key without threads and layout."""
    return problem.key.rsplit("/", 2)[0]


def check_pin(key: str, entry: object) -> Pin:
    """Return the pin in an entry of the pins file.

    Raises:
        ValueError: with the reason, when anything in it is not what it should be.
    """
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    Problem.parse(f"{check_key(key)}/threads=1/contiguous")
    return {"strategy": check_name(entry.get("strategy")), "created": check_created(entry.get("created"))}


class PinsFile:
    """The pins of a folder. Safe to use from any thread; what cannot be saved holds for this process."""

    def __init__(self, folder: Path | None) -> None:
        """Prepare; no file is touched before something is asked."""
        self.path = None if folder is None else folder / FILE_NAME
        self._file = None if self.path is None else table.JsonFile(self.path, SECTION, {})
        self._snapshot: table.Snapshot | None = None
        self._stored: Pins = {}
        self._unsaved: dict[str, Pin | None] = {}
        self._saving = threading.Lock()

    def get(self, problem: Problem) -> str | None:
        """Return the strategy that this problem is pinned to; looks at the file when it changed."""
        pin = self.entries().get(pin_key(problem))
        return None if pin is None else pin["strategy"]

    def all(self) -> dict[str, str]:
        """Return every pin: strategy by key, sorted."""
        return {key: pin["strategy"] for key, pin in sorted(self.entries().items())}

    def entries(self) -> Pins:
        """Return every pin as it stands in the file."""
        if self._file is not None and (self._snapshot is None or self._file.changed_since(self._snapshot)):
            self._show(self._file.load(self._stored))
        if not self._unsaved:
            return self._stored
        both = {**self._stored, **self._unsaved}
        return {key: pin for key, pin in both.items() if pin is not None}

    def set(self, problem: Problem, strategy: str, wait_s: float) -> bool:
        """Pin a problem, at once in this process; False when it could not be saved.

        Raises:
            ValueError: when the name is no strategy's.
        """
        key, created = pin_key(problem), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        pin = self.entries().get(key)
        if pin is None or pin["strategy"] != strategy:
            pin = {"strategy": check_name(strategy), "created": created}
        return self.change({key: pin}, wait_s)

    def remove(self, problem: Problem, wait_s: float) -> bool:
        """Unpin a problem; return whether it was pinned. ``unsaved`` tells whether that lasts."""
        key = pin_key(problem)
        pinned = key in self.entries()
        if pinned:
            self.change({key: None}, wait_s)
        return pinned

    @property
    def unsaved(self) -> int:
        """How many changes could not be saved yet; they are tried again with the next one."""
        return len(self._unsaved)

    def change(self, changes: Mapping[str, Pin | None], wait_s: float) -> bool:
        """Put pins, or remove them where None stands, in one go; False when that could not be saved."""
        self._unsaved.update(changes)
        if self._file is None:  # settings.cache_dir has said why
            return False
        with locking.turn(self._saving, wait_s) as left_s:
            return left_s is not None and self._save(self._file, left_s)

    def renew_lock(self) -> None:
        """Replace the lock between threads: a forked child has not the thread that may hold it."""
        self._saving = threading.Lock()

    def _save(self, file: table.JsonFile, wait_s: float) -> bool:
        changes = dict(self._unsaved)
        snapshot = file.update(lambda entries: _changed(entries, changes, self.path), wait_s)
        if snapshot is None:
            return False
        self._show(snapshot)
        for key, pin in changes.items():
            if key in self._unsaved and self._unsaved[key] is pin:
                del self._unsaved[key]
        return True

    def _show(self, snapshot: table.Snapshot) -> None:
        self._stored = _good(snapshot.entries, self.path)
        self._snapshot = snapshot


def _good(entries: table.Entries, path: Path | None) -> Pins:
    good: Pins = {}
    for key, entry in entries.items():
        try:
            good[key] = check_pin(key, entry)
        except ValueError as error:
            errors.warn_once(
                "bad pin",
                f"{path} holds a bad pin, {key[:80]!r}: {error}",
                "Such pins are ignored, and dropped with the next change; pin anew what is missing.",
            )
    return good


def _changed(
    entries: table.Entries, changes: Mapping[str, Pin | None], path: Path | None
) -> dict[str, object]:
    both = {**_good(entries, path), **changes}
    return {key: pin for key, pin in both.items() if pin is not None}


_opened: dict[Path | None, PinsFile] = {}


def opened_pins(folder: Path | None) -> PinsFile:
    """Return this process's one object for the pins in this folder."""
    return _opened.setdefault(folder, _opened.get(folder) or PinsFile(folder))


def _after_fork_in_child() -> None:
    for file in _opened.values():
        file.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
