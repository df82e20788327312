"""A JSON file of named entries, never trusted: read whole, checked, changed under a lock by replacement."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autoinv import errors, locking, storage

SCHEMA = 1
MAX_BYTES = 16 << 20
MAX_ENTRIES = 20_000

Entries = Mapping[str, object]
_AGAIN: storage.Identity = (-1, -1, -1)
_swept: set[Path] = set()


class CorruptError(ValueError):
    """Content that is no file of ours: to be set aside."""


@dataclass(frozen=True)
class Snapshot:
    """What the file held when it was last looked at; entries are unchecked."""

    identity: storage.Identity | None
    entries: Entries


@dataclass(frozen=True)
class JsonFile:
    """One file: where it is, which section holds its entries, and what else must stand in it."""

    path: Path
    section: str
    header: Mapping[str, object]

    def changed_since(self, snapshot: Snapshot) -> bool:
        """Whether the file is another one than the snapshot shows."""
        return storage.identity(self.path) != snapshot.identity

    def load(self) -> Snapshot:
        """Return what the file holds; nothing, and one warning, when it cannot be used. Never raises."""
        identity = storage.identity(self.path)
        try:
            return Snapshot(identity, self._read())
        except FileNotFoundError:
            return Snapshot(None, {})
        except storage.UnusableError as fault:
            self._tell_unusable(fault)
            return Snapshot(_AGAIN if fault.transient else identity, {})
        except CorruptError as fault:
            with locking.locked(self._lock_path, 0.0) as lock:
                if lock is not locking.Lock.BUSY:  # else its holder is about to see for itself
                    self._set_aside_if_bad(fault)
            return Snapshot(identity, {})

    def update(self, change: Callable[[Entries], dict[str, object]], wait_s: float) -> Snapshot | None:
        """Lock, read again, change, replace. Return the new content, or None when nothing could be saved."""
        try:
            storage.make_folder(self.path.parent)
        except OSError as error:
            self._tell_unsaved(error)
            return None
        with locking.locked(self._lock_path, wait_s) as lock:
            if lock is locking.Lock.BUSY:
                errors.logger.info("the lock of %s is held by another process; saving later", self.path)
                return None
            return self._update_locked(change)

    def _update_locked(self, change: Callable[[Entries], dict[str, object]]) -> Snapshot | None:
        try:
            try:
                old = self._read()
            except FileNotFoundError:
                old = {}
            except CorruptError as fault:
                old = {}
                if not self._set_aside_if_bad(fault):
                    return None
            new = change(old)
            entries, data = fitting(old, new, self.section, self.header)
            storage.replace(self.path, data)
        except storage.UnusableError as fault:
            self._tell_unusable(fault)
            return None
        except OSError as error:
            self._tell_unsaved(error)
            return None
        if self.path.parent not in _swept:
            _swept.add(self.path.parent)
            storage.sweep(self.path.parent)
        return Snapshot(storage.identity(self.path), entries)

    @property
    def _lock_path(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    def _read(self) -> Entries:
        document = parse(storage.read(self.path, MAX_BYTES))
        for name, value in self.header.items():
            if document.get(name) != value:
                raise storage.UnusableError(f"its {name} is not this one's: it was made elsewhere")
        return entries_of(document, self.section)

    def _set_aside_if_bad(self, fault: CorruptError) -> bool:
        """Set the file aside unless a good one has taken its place meanwhile."""
        try:
            self._read()
        except CorruptError:
            try:
                aside = storage.set_aside(self.path)
            except OSError as error:
                self._tell_unsaved(error)
                return False
            errors.warn_once(
                f"{self.section} file corrupt",
                f"{self.path} is damaged ({fault}) and was set aside as {aside.name}",
                "A new one is started. Delete the damaged one when you have looked at it.",
            )
        except (OSError, storage.UnusableError):
            return False
        return True

    def _tell_unusable(self, fault: storage.UnusableError) -> None:
        errors.warn_once(
            f"{self.section} file unusable",
            f"{self.path} is not used, and left alone: {fault.reason}",
            f"Remove it, or set AUTOINV_CACHE_DIR to another folder; {self.section} last for this process.",
        )

    def _tell_unsaved(self, error: OSError) -> None:
        errors.warn_once(
            f"{self.section} not saved",
            f"{self.path} could not be saved ({error.strerror or error})",
            f"Set AUTOINV_CACHE_DIR to a folder that can be written; {self.section} last for this process.",
        )


def parse(data: bytes) -> dict[str, object]:
    """Return the document in these bytes.

    Raises:
        CorruptError: when they hold none of ours.
        storage.UnusableError: when a newer autoinv wrote it.
    """
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"no JSON: {type(error).__name__}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema < SCHEMA:
        raise CorruptError("no schema number")
    if schema > SCHEMA:
        raise storage.UnusableError(f"a newer autoinv wrote it (schema {schema}, this one knows {SCHEMA})")
    return dict(document)


def entries_of(document: Mapping[str, object], section: str) -> dict[str, object]:
    """Return the named section.

    Raises:
        CorruptError: when it is missing or no object.
    """
    entries = document.get(section)
    if not isinstance(entries, dict):
        raise CorruptError(f"no {section} in it")
    return entries


def fitting(old: Entries, new: Entries, section: str, header: Mapping[str, object]) -> tuple[Entries, bytes]:
    """Return the entries that fit into one file, and its bytes; the oldest go, what was just added stays."""
    count = min(len(new), MAX_ENTRIES)
    while True:
        entries = new if count == len(new) else _newest(old, new, count)
        data = serialised({**header, "schema": SCHEMA, section: entries})
        if len(data) <= MAX_BYTES:
            return entries, data
        count = count * 3 // 4


def _newest(old: Entries, new: Entries, count: int) -> Entries:
    def rank(key: str) -> tuple[bool, str]:
        entry = new[key]
        created = entry.get("created") if isinstance(entry, dict) else None
        return (new[key] != old.get(key), str(created))

    return {key: new[key] for key in sorted(new, key=rank, reverse=True)[:count]}


def serialised(document: Mapping[str, object]) -> bytes:
    """Write a document with sorted keys and one line an entry: people read, search and compare it."""
    encode = json.JSONEncoder(sort_keys=True, allow_nan=False).encode
    separator = ",\n"
    sections: list[str] = []
    for name in sorted(document):
        value = document[name]
        if isinstance(value, Mapping) and value:
            lines = separator.join(f"  {encode(key)}: {encode(value[key])}" for key in sorted(value))
            sections.append(f" {encode(name)}: {{\n{lines}\n }}")
        else:
            sections.append(f" {encode(name)}: {encode(value)}")
    return f"{{\n{separator.join(sections)}\n}}\n".encode()
