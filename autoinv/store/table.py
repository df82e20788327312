"""A JSON file of named entries, never trusted: read whole, checked, changed under a lock by replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autoinv import errors
from autoinv.store import disk, jsontext, locking

Entries = jsontext.Entries
_AGAIN: disk.Identity = (-1, -1, -1)
_swept: set[Path] = set()


@dataclass(frozen=True)
class Snapshot:
    """What the file held when it was last looked at; entries are unchecked."""

    identity: disk.Identity | None
    entries: Entries


@dataclass(frozen=True)
class JsonFile:
    """One file: where it is, which section holds its entries, and what else must stand in it."""

    path: Path
    section: str
    header: Mapping[str, object]

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
            self._tell_unusable(fault)
            return Snapshot(_AGAIN if fault.transient else identity, known)
        except jsontext.CorruptError:
            self._set_aside()
            return Snapshot(identity, known)

    def _set_aside(self) -> None:
        with locking.locked(lock_path(self.path), 0.0) as lock:
            if lock is not locking.Lock.BUSY:  # else its holder is about to see for itself
                try:
                    self._mended()
                except disk.UnusableError as fault:
                    self._tell_unusable(fault)

    def update(self, change: Callable[[Entries], dict[str, object]], wait_s: float) -> Snapshot | None:
        """Lock, read again, change, replace. Return the new content, or None when nothing could be saved."""
        try:
            disk.make_folder(self.path.parent)
        except OSError as error:
            self._tell_unsaved(error)
            return None
        with locking.locked(lock_path(self.path), wait_s) as lock:
            if lock is locking.Lock.BUSY:
                errors.logger.info("the lock of %s is held by another process; saving later", self.path)
                return None
            return self._update_locked(change)

    def _update_locked(self, change: Callable[[Entries], dict[str, object]]) -> Snapshot | None:
        try:
            old = self._mended()
            new = change(old)
            entries, data = jsontext.fitting(old, new, self.section, self.header)
            disk.replace(self.path, data)
        except disk.UnusableError as fault:
            self._tell_unusable(fault)
            return None
        except OSError as error:
            self._tell_unsaved(error)
            return None
        if self.path.parent not in _swept:
            _swept.add(self.path.parent)
            disk.sweep(self.path.parent)
        return Snapshot(disk.identity(self.path), entries)

    def _read(self) -> Entries:
        document = jsontext.parse(disk.read(self.path, jsontext.MAX_BYTES))
        for name, value in self.header.items():
            if document.get(name) != value:
                raise disk.UnusableError(f"its {name} is not this one's: it was made elsewhere")
        return jsontext.entries_of(document, self.section)

    def _mended(self) -> Entries:
        """Return what the file holds; a bad one is set aside. To be called with the lock, where locks work.

        Raises:
            UnusableError: when it must be left alone, or cannot be set aside.
        """
        try:
            return self._read()
        except FileNotFoundError:
            return {}
        except jsontext.CorruptError as fault:
            try:
                aside = disk.set_aside(self.path)
            except OSError as error:
                raise disk.UnusableError(
                    f"it is damaged ({fault}) and cannot be set aside ({error})"
                ) from error
            errors.warn_once(
                f"{self.section} file corrupt",
                f"{self.path} is damaged ({fault}) and was set aside as {aside.name}",
                "A new one is started. Delete the damaged one when you have looked at it.",
            )
            return {}

    def _tell_unusable(self, fault: disk.UnusableError) -> None:
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


def lock_path(path: Path) -> Path:
    """Return where the lock of a file is."""
    return path.with_name(path.name + ".lock")
