"""The folder of the decisions as ``doctor`` sees it: what it is on, whether writing and locking work."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from autoinv.store import disk, locking, pins

_WAIT_S = 1.0


def state(folder: Path) -> str:
    """Return the folder, and whether and whose it is."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return f"{folder} (not there yet; made with the first decision)"
    except OSError as error:
        return f"{folder} (cannot be looked at: {error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} (no folder)"
    own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return f"{folder} (mode {stat.S_IMODE(status.st_mode):04o}{'' if own else f', of user {status.st_uid}'})"


def file_system(folder: Path) -> str:
    """Return the kind of file system that holds the folder, or will, and the room on it."""
    there = _nearest(folder)
    try:
        room = f"{shutil.disk_usage(there).free / 2**20:.0f} MiB free"
    except OSError as error:
        room = f"room unknown: {error.strerror}"
    return f"{_kind(there)}, {room}"


def writable(folder: Path) -> str:
    """Return whether a file can be put there, tried."""
    if folder.exists() and not folder.is_dir():
        return "no: it is no folder"
    if not folder.is_dir():
        return f"{'yes' if os.access(_nearest(folder), os.W_OK) else 'no'}, by the folder above"
    with _trial(folder) as path:
        try:
            disk.replace(path, b"")
        except OSError as error:
            return f"no: {error.strerror or error}"
    return "yes"


def lock_works(folder: Path) -> str:
    """Return whether a lock there keeps a second holder out, tried."""
    if not folder.is_dir():
        return "not tried, the folder is not there"
    second: list[locking.Lock] = []
    with _trial(folder) as path, locking.locked(path, _WAIT_S) as first:
        if first is not locking.Lock.HELD:
            return "does not work here; saves go on without, and are whole all the same"
        thread = threading.Thread(target=lambda: second.append(_tried(path)))
        thread.start()
        thread.join()
    return (
        "works"
        if second == [locking.Lock.BUSY]
        else "is given to two holders at once; saves are whole all the same"
    )


def others(folder: Path, ours: Sequence[Path | None]) -> list[str]:
    """Return what else lies in the folder: other environments' files, damaged ones, strangers."""
    known = {path.name for path in ours if path} | {pins.FILE_NAME}
    known |= {f"{name}.lock" for name in known}
    try:
        return sorted(path.name for path in folder.iterdir() if path.name not in known)
    except OSError:
        return []


def _tried(path: Path) -> locking.Lock:
    with locking.locked(path, 0.0) as lock:
        return lock


@contextlib.contextmanager
def _trial(folder: Path) -> Iterator[Path]:
    """Name a file to try with, as a temporary one is named, so that a leftover is swept as one; remove it."""
    path = folder / f".autoinv-{os.getpid()}-{os.urandom(8).hex()}.tmp"
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _nearest(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), folder)


def _kind(place: Path) -> str:
    """Return the file system's name from Linux's mount table: the last mount of the longest path above."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "kind unknown"
    best, kind = -1, "kind unknown"
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
        if place.resolve().is_relative_to(point) and len(point) >= best:
            best, kind = len(point), f"{right.split()[0]} mounted at {point}"
    return kind
