"""A table of entries in a JSON file shared by processes: decisions, pins and recorded problems are its uses.

It is read without a lock, changed under one, and replaced as a whole. Nothing in the file is trusted: each entry is
checked when it is first asked for. All that readers in other threads see is one `State`, replaced by one assignment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from autoinv import errors, fork
from autoinv.store import disk, jsontext, locking
from autoinv.store.jsontext import Entries

T = TypeVar("T")

_ALWAYS_CHANGED: disk.Identity = (-1, -1, -1)
_swept: set[Path] = set()


# Plain classes, never changed once made: a dataclass costs 0.4 ms to import, and every first call pays for it.


class Change(Generic[T]):
    """A change under one key: the values ``seen`` there are removed, then ``value`` is put, if there is one."""

    def __init__(self, value: T | None, seen: tuple[T, ...] = ()) -> None:
        self.value = value
        self.seen = seen


class Kind(Generic[T]):
    """What the entries of a table are: where they stand, how they are read, written and merged.

    ``parse`` raises ValueError, with the reason, for a bad entry. ``merged`` returns what shall stand in the file,
    from what stands there and a change. ``name`` and ``advice`` are for the warning about a bad entry.
    """

    def __init__(
        self,
        section: str,
        name: str,
        advice: str,
        parse: Callable[[str, object], T],
        entry: Callable[[T], object],
        merged: Callable[[T | None, Change[T]], T | None],
    ) -> None:
        self.section, self.name, self.advice = section, name, advice
        self.parse, self.entry, self.merged = parse, entry, merged


class Snapshot(NamedTuple):
    """What the file held when it was last looked at; entries are unchecked."""

    identity: disk.Identity | None
    entries: Entries


class _Checked(Generic[T]):
    """The values of entries, each checked once: checking costs 10 us, comparing a tenth of it."""

    def __init__(self, kind: Kind[T], path: Path | None) -> None:
        self.kind = kind
        self._path = path
        self._known: dict[str, tuple[object, T | None]] = {}

    def value(self, key: str, entry: object) -> T | None:
        """Return the value of an entry; None, and one warning, when it is a bad one."""
        before, value = self._known.get(key, (None, None))
        if value is not None and (before is entry or before == entry):  # a bad one may be too deep to compare
            return value
        value = None
        try:
            value = self.kind.parse(key, entry)
        except ValueError as error:
            errors.warn_once(
                f"bad {self.kind.name}",
                f"{self._path} holds a bad {self.kind.name}, {key[:80]!r}: {error}",
                self.kind.advice,
            )
        if len(self._known) > 2 * jsontext.MAX_ENTRIES:  # mostly of keys that are gone
            self._known.clear()
        self._known[key] = (entry, value)
        return value


class State(Generic[T]):
    """What readers see: the file when it was last looked at, and what this process has changed since.

    ``changes`` are not saved yet; ``saving`` are those that a save in progress writes. ``found`` are the values that
    `Table.get` found in this state.
    """

    def __init__(
        self,
        checked: _Checked[T],
        file: Snapshot,
        changes: Mapping[str, Change[T]] | None = None,
        saving: Mapping[str, Change[T]] | None = None,
    ) -> None:
        self.checked, self.file = checked, file
        self.changes, self.saving = changes or {}, saving or {}
        self.found: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        """Return the value under a key."""
        change = self.changes.get(key)
        if change is not None and change.value is not None:
            return change.value
        stored = self.stored(key)
        return stored if change is None else self.checked.kind.merged(stored, change)

    def stored(self, key: str) -> T | None:
        """Return the value that the file holds under a key."""
        entries = self.file.entries
        return self.checked.value(key, entries[key]) if key in entries else None

    def all(self) -> dict[str, T]:
        """Return every value, sorted by key."""
        keys = sorted({*self.file.entries, *self.changes})
        return {key: value for key in keys if (value := self.get(key)) is not None}


class Table(Generic[T]):
    """The entries of one file. Safe to use from any thread; what cannot be saved lasts for this process."""

    def __init__(
        self,
        path: Path | None,
        kind: Kind[T],
        header: Mapping[str, object],
        elsewhere: str = "Set AUTOINV_CACHE_DIR to another folder",
    ) -> None:
        """Prepare; no file is touched before something is asked. Without a path nothing is ever saved.

        ``elsewhere`` is the advice for a file that cannot be used or saved.
        """
        self._kind = kind
        self._file = None if path is None else _File(path, kind.section, header, elsewhere)
        self._checked = _Checked(kind, path)
        self._state = State(self._checked, Snapshot(_ALWAYS_CHANGED, {}))
        self._replacing = fork.rlock()  # held for a moment, never for I/O
        self._saving = fork.Turn()

    @property
    def unsaved(self) -> int:
        """How many changes are not saved yet."""
        return len(self._state.changes)

    def get(self, key: str) -> T | None:
        """Return the value under a key; one that was asked for before costs no I/O."""
        value = self._state.found.get(key)
        if value is None:
            state = self.look()
            value = state.get(key)
            if value is not None:
                state.found[key] = value
        return value

    def look(self) -> State[T]:
        """Return what there is now; the file is read if it changed."""
        state = self._state
        while self._file is not None and self._file.changed_since(state.file):
            read = self._file.load(state.file.entries)
            state = self._replace(partial(_reloaded, before=state.file, read=read))
            if state.file is read:
                break
        return state

    def change(self, plan: Callable[[State[T]], Mapping[str, Change[T] | None]], wait_s: float) -> bool:
        """Change entries, at once in this process; return False when that could not be saved yet.

        ``plan`` returns the changes by key, None to drop one that is not saved. It may be called more than once.
        """

        def changed(now: State[T]) -> State[T]:
            both = {**now.changes, **plan(now)}
            changes = {key: change for key, change in both.items() if change is not None}
            return State(now.checked, now.file, changes, now.saving)

        return not self._replace(changed).changes or self._save(wait_s)

    def _replace(self, change: Callable[[State[T]], State[T]]) -> State[T]:
        with self._replacing:
            while True:
                before = self._state
                after = change(before)
                if self._state is before:  # else a signal handler in this thread replaced it
                    self._state = after
                    return after

    def _save(self, wait_s: float) -> bool:
        if self._file is None:  # settings.cache_dir has warned
            return False
        file, ends_s = self._file, time.monotonic() + wait_s

        def save() -> bool:
            # After an interrupt `saving` stays as it is: whether that was written is unknown.
            saving = self._replace(lambda now: State(now.checked, now.file, now.changes, now.changes)).saving
            written = file.update(lambda entries: self._merged(entries, saving), ends_s - time.monotonic())
            self._replace(lambda now: _saved(now, saving, written))
            return written is not None

        try:
            return self._saving.run(save, wait_s)
        except fork.TakenError:
            return False

    def _merged(self, entries: Entries, changes: Mapping[str, Change[T]]) -> dict[str, object]:
        """Return the new entries: the good ones of the file, changed."""
        kept = {key: entry for key, entry in entries.items() if self._checked.value(key, entry) is not None}
        for key, change in changes.items():
            stored = self._checked.value(key, kept[key]) if key in kept else None
            value = self._kind.merged(stored, change)
            if value is None:
                kept.pop(key, None)
            elif value is not stored:
                kept[key] = self._kind.entry(value)
        return kept


def _reloaded(now: State[T], before: Snapshot, read: Snapshot) -> State[T]:
    """Return the state with what was read, unless a save in another thread replaced the file after it was read."""
    return State(now.checked, read, now.changes, now.saving) if now.file is before else now


def _saved(now: State[T], saving: Mapping[str, Change[T]], written: Snapshot | None) -> State[T]:
    if written is None:
        return State(now.checked, now.file, now.changes)
    left = {key: change for key, change in now.changes.items() if saving.get(key) is not change}
    return State(now.checked, written, left)


class _File:
    """The file: where it is, which section holds its entries, and what else must stand in it."""

    def __init__(self, path: Path, section: str, header: Mapping[str, object], elsewhere: str) -> None:
        self.path, self.section, self.header, self.elsewhere = path, section, header, elsewhere

    def changed_since(self, snapshot: Snapshot) -> bool:
        """Whether the file is another one than the snapshot shows."""
        return disk.identity(self.path) != snapshot.identity

    def load(self, known: Entries) -> Snapshot:
        """Return what the file holds; what is known, and a warning, when it cannot be used. Never raises."""
        identity = disk.identity(self.path)
        try:
            return Snapshot(identity, self._read())
        except FileNotFoundError:
            return Snapshot(None, known)
        except disk.UnusableError as fault:
            self._warn_unusable(fault)
            return Snapshot(_ALWAYS_CHANGED if fault.transient else identity, known)
        except jsontext.CorruptError:
            self._quarantine()
            return Snapshot(identity, known)

    def _quarantine(self) -> None:
        with locking.locked(lock_path(self.path), 0.0) as lock:
            if lock is not locking.Lock.BUSY:  # else its holder is about to find out
                try:
                    self._read_or_quarantine()
                except disk.UnusableError as fault:
                    self._warn_unusable(fault)

    def update(self, change: Callable[[Entries], Entries], wait_s: float) -> Snapshot | None:
        """Lock, read again, change, replace. Return the new content, or None when nothing could be saved."""
        try:
            disk.make_folder(self.path.parent)
            with locking.locked(lock_path(self.path), wait_s) as lock:
                if lock is locking.Lock.BUSY:
                    errors.logger.info("the lock of %s is held by another process; saving later", self.path)
                    return None
                old = self._read_or_quarantine()
                entries, data = jsontext.fitting(old, change(old), self.section, self.header)
                disk.replace(self.path, data)
                self._sweep_once()
                return Snapshot(disk.identity(self.path), entries)
        except disk.UnusableError as fault:
            self._warn_unusable(fault)
        except OSError as error:
            if errors.is_foreign(error):
                raise
            errors.warn_once(
                f"{self.section} not saved",
                f"{self.path} could not be saved ({error.strerror or error})",
                f"{self.elsewhere}, one that can be written; {self.section} last for this process.",
            )
        return None

    def _sweep_once(self) -> None:
        if self.path.parent not in _swept:
            _swept.add(self.path.parent)
            disk.sweep(self.path.parent)

    def _read(self) -> Entries:
        document = jsontext.parse(disk.read(self.path, jsontext.MAX_BYTES))
        for name, value in self.header.items():
            if document.get(name) != value:
                raise disk.UnusableError(f"its {name} is not this one's: it was made elsewhere")
        return jsontext.entries_of(document, self.section)

    def _read_or_quarantine(self) -> Entries:
        """Return what the file holds; a bad one is quarantined. To be called with the lock, where locks work.

        Raises:
            UnusableError: when it must be left alone, or cannot be quarantined.
        """
        try:
            return self._read()
        except FileNotFoundError:
            return {}
        except jsontext.CorruptError as fault:
            try:
                quarantined = disk.quarantine(self.path)
            except OSError as error:
                if errors.is_foreign(error):
                    raise
                raise disk.UnusableError(
                    f"it is damaged ({fault}) and cannot be quarantined ({error})"
                ) from error
            errors.warn_once(
                f"{self.section} file corrupt",
                f"{self.path} is damaged ({fault}) and was quarantined as {quarantined.name}",
                "A new one is started. Delete the damaged one when you have looked at it.",
            )
            return {}

    def _warn_unusable(self, fault: disk.UnusableError) -> None:
        errors.warn_once(
            f"{self.section} file unusable",
            f"{self.path} is not used, and left alone: {fault.reason}",
            f"{self.elsewhere}, or remove it; {self.section} last for this process.",
        )


def lock_path(path: Path) -> Path:
    """Return where the lock of a file is."""
    return path.with_name(path.name + ".lock")
