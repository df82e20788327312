"""The lock between processes that write the same file: with a bounded wait, never trusted to work.

filelock before 4.2.6 keeps a lock until the process ends when Ctrl-C strikes in the microseconds between
taking it and noting that; others then save nothing new, and lose nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from autoinv import fork, lazy
from autoinv.errors import is_foreign

if TYPE_CHECKING:
    from filelock import BaseFileLock

_POLL_S = 0.005
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say "not now"; any other says that locks do not work here. (A full disk fails the save.)"""


class Lock(Enum):
    """The outcome of an attempt to lock; true only when the lock is held."""

    HELD = "held"
    BUSY = "busy"
    """Another process holds it, or this one is short of something: try again with the next decision."""
    BROKEN = "broken"
    """Locks do not work here: go on without, the replace is atomic all the same."""

    def __bool__(self) -> bool:
        """Whether the lock is held."""
        return self is Lock.HELD


_stuck: list[BaseFileLock] = []
_inherited: list[BaseFileLock] = []
"""A forked child's copies of locks that are not its own: dropping one may unlock it for the parent."""


def _keep_inherited() -> None:
    _inherited.extend(_stuck)
    _stuck.clear()


fork.in_child(_keep_inherited)


@contextlib.contextmanager
def locked(path: Path, wait_s: float) -> Iterator[Lock]:
    """Hold the lock at ``path`` in the block, or say why not; wait at most ``wait_s``, never raise."""
    made: list[BaseFileLock] = []  # noted before it is taken: an exception may come at any point
    try:
        yield _acquire(path, wait_s, made)
    finally:
        for lock in made:
            _release(lock)


def _acquire(path: Path, wait_s: float, made: list[BaseFileLock]) -> Lock:
    deadline_s = time.monotonic() + wait_s
    _release_stuck()
    if not _is_ours_to_open(path):
        return Lock.BROKEN
    try:
        make, timeout = _filelock()
        # Made anew each time: one made before a fork is refused by filelock 3.30 and newer. Releases without
        # fallback_to_soft ignore it; a soft lock would outlive a killed holder. Any thread may release it.
        lock = make(str(path), mode=0o600, thread_local=False, fallback_to_soft=False)
        made.append(lock)
        try:
            lock.acquire(timeout=max(0.0, deadline_s - time.monotonic()), poll_interval=_POLL_S)
        except timeout:
            return Lock.BUSY
    except OSError as error:
        if is_foreign(error):
            raise
        return Lock.BUSY if error.errno in _SHORTAGES else Lock.BROKEN
    except (RuntimeError, ValueError, ImportError, Warning):  # by version, also a warning made an error
        return Lock.BROKEN
    return Lock.HELD


def _release(lock: BaseFileLock) -> None:
    try:
        lock.release()
    except BaseException as error:  # EIO on a network file system, or Ctrl-C: it may be held still
        _stuck.append(lock)
        if not isinstance(error, OSError | RuntimeError | ValueError) or is_foreign(error):
            raise


def _release_stuck() -> None:
    """Try again what could not be released; each by one thread only, as it is taken from the list first."""
    for _ in range(len(_stuck)):
        with contextlib.suppress(IndexError):
            _release(_stuck.pop(0))


def _is_ours_to_open(path: Path) -> bool:
    """Whether a lock would touch nothing else: no link (old releases truncate it), FIFO or folder."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if is_foreign(error):
            raise
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _filelock() -> tuple[type[BaseFileLock], type[Exception]]:
    with lazy.importing:  # here: 20 ms that a reader never pays
        from filelock import FileLock, Timeout

        return FileLock, Timeout
