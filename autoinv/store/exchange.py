"""Decisions taken out and in, checked and cleared away: what the commands around the file do."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from autoinv.environment import differences
from autoinv.errors import ignoring_os_errors, warn_once
from autoinv.store import decisions, disk, jsontext, locking, pins, table
from autoinv.store.decisions import Decision, DecisionsFile
from autoinv.store.pins import Pin, PinsFile

T = TypeVar("T")

_OURS = re.compile(re.escape(decisions.PREFIX) + r"([0-9a-f]{8,64})\.json(\.lock|\.corrupt)?")


class ImportRefusedError(ValueError):
    """A file that is not taken in, and why; nothing was changed."""


@dataclass(frozen=True)
class Imported:
    """How many decisions and pins a file held, and whether what they changed was saved."""

    decisions: int
    pins: int
    saved: bool


def export_to(target: Path, file: DecisionsFile, pinned: PinsFile) -> int:
    """Write the decisions of one environment, and all pins, to a file; return how many decisions.

    Raises:
        OSError: when it cannot be written.
    """
    found = file.all()
    document: dict[str, object] = {
        "schema": jsontext.SCHEMA,
        "environment": file.environment,
        decisions.SECTION: {decision.problem.key: decision.entry() for decision in found},
        pins.SECTION: pinned.entries(),
    }
    disk.replace(target, jsontext.serialised(document), private=False)
    return len(found)


def import_from(
    source: Path, file: DecisionsFile, pinned: PinsFile, *, any_environment: bool = False, wait_s: float = 2.0
) -> Imported:
    """Merge an exported file into this environment's decisions and the pins, all of it or nothing.

    What is here already stays where it would against another process: final decisions, and every pin.

    Raises:
        ImportRefusedError: when anything in it is bad, naming the entry, or it is of another environment.
    """
    faults: list[str] = []
    document, taken, pins_taken = _checked(source, faults.append)
    if faults:
        raise ImportRefusedError(f"{source} is not imported, nothing of it was taken: {faults[0]}")
    there = document.get("environment")
    if not any_environment and there != file.environment:
        raise ImportRefusedError(
            f"{source} is not imported: it was made elsewhere ({'; '.join(differences(there, file.environment))}). "
            "Pass --any-environment to take its decisions all the same"
        )
    saved = file.put_all(taken.values(), wait_s) if taken else True
    fresh = {key: pin for key, pin in pins_taken.items() if key not in pinned.entries()}
    saved = (pinned.change(fresh, wait_s) if fresh else True) and saved
    return Imported(len(taken), len(pins_taken), saved)


def verify(path: Path) -> list[str]:
    """Return what is wrong with a decisions, pins or exported file, each bad entry by its key.

    Raises:
        FileNotFoundError: when there is no such file.
    """
    faults: list[str] = []
    _checked(path, faults.append, any_owner=False)
    return faults


def prune(folder: Path, live: Collection[str], *, dry_run: bool = False) -> list[Path]:
    """Remove the files of environments not among the ``live`` fingerprints, and stale temporary files.

    Returns the paths removed (or that would be). A file whose lock is held is in use, and stays.
    """
    others: dict[str, list[Path]] = {}
    with ignoring_os_errors():
        for path in sorted(folder.iterdir()):
            match = _OURS.fullmatch(path.name)
            if match and match.group(1) not in live and not path.is_dir():
                others.setdefault(match.group(1), []).append(path)
    gone = disk.stale_files(folder) if dry_run else disk.sweep(folder)
    for fingerprint, paths in others.items():
        gone += paths if dry_run else _remove(folder, fingerprint, paths)
    return gone


def _remove(folder: Path, fingerprint: str, paths: list[Path]) -> list[Path]:
    lock_path = table.lock_path(folder / decisions.file_name(fingerprint))
    removed: list[Path] = []
    with locking.locked(lock_path, 0.0) as lock:
        if lock is locking.Lock.BUSY:
            return []
        for path in {*paths, lock_path}:
            with ignoring_os_errors():
                path.unlink()
                removed.append(path)
    return sorted(set(removed) & set(paths))


def _checked(
    path: Path, report: Callable[[str], None], *, any_owner: bool = True
) -> tuple[dict[str, object], dict[str, Decision], dict[str, Pin]]:
    """Return a file's document, decisions and pins, and report everything in it that is bad."""
    try:
        data = disk.read(path, jsontext.MAX_BYTES, any_owner=any_owner)
        document = jsontext.parse(data, twice=lambda name: report(f"{name!r} stands twice"))
        names = [name for name in (decisions.SECTION, pins.SECTION) if name in document]
        if not names:
            raise jsontext.CorruptError("neither decisions nor pins in it")
        found = {name: jsontext.entries_of(document, name) for name in names}
    except (disk.UnusableError, jsontext.CorruptError) as fault:
        report(str(fault))
        return {}, {}, {}
    return (
        document,
        _good(found.get(decisions.SECTION, {}), decisions.from_entry, "decision", report),
        _good(found.get(pins.SECTION, {}), pins.check_pin, "pin", report),
    )


def _good(
    entries: jsontext.Entries, parse: Callable[[str, object], T], name: str, report: Callable[[str], None]
) -> dict[str, T]:
    good: dict[str, T] = {}
    for key, entry in entries.items():
        try:
            good[key] = parse(key, entry)
        except ValueError as error:
            report(f"the {name} {key[:120]!r}: {error}")
    return good


def elsewhere(file: DecisionsFile) -> str | None:
    """Say what differs where the folder holds decisions of other environments only; None where it does not."""
    if file.path is None or file.path.exists():
        return None
    found: list[tuple[int, str]] = []
    with ignoring_os_errors():
        for path in sorted(file.path.parent.iterdir()):
            match = _OURS.fullmatch(path.name)
            if match and not match.group(2) and path != file.path:
                document, taken, _ = _checked(path, lambda fault: None, any_owner=False)
                differing = differences(document.get("environment"), file.environment)
                if taken:
                    found.append((len(differing), f"{path.name} ({'; '.join(differing)})"))
    if not found:
        return None
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{file.path.parent} holds decisions of other environments only: {min(found)[1]}{more}"


_looked: set[Path | None] = set()


def warn_if_elsewhere(file: DecisionsFile) -> None:
    """Warn once where nothing is timed and the folder holds decisions of other environments only."""
    if file.path in _looked:
        return
    _looked.add(file.path)
    if found := elsewhere(file):
        warn_once(
            f"decisions elsewhere {file.path}",
            f"mode is cached, and {found}",
            "The default serves; `python -m autoinv import FILE --any-environment` takes such a file in.",
        )
