"""What a forked child must find: free locks. The only module that registers with ``os.register_at_fork``.

A lock that another thread held at the fork stays locked in the child, where that thread does not exist. So every
lock that outlives a call is a `Lock` of this module, or one that a fork waits for.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType


class Lock:
    """A lock between threads that is free in a forked child, unless the thread that forked holds it itself."""

    def __init__(self, *, reentrant: bool = False) -> None:
        """Make it, and have it renewed in every child."""
        self._make = threading.RLock if reentrant else threading.Lock
        self._lock = self._make()
        self._holder: int | None = None
        _locks.add(self)

    def acquire(self, timeout_s: float = -1.0) -> bool:
        """Take the lock; return False when ``timeout_s`` were not enough. A negative number means: wait for ever."""
        is_held = self._lock.acquire(timeout=-1.0 if timeout_s < 0 else min(timeout_s, threading.TIMEOUT_MAX))
        if is_held:
            self._holder = threading.get_ident()
        return is_held

    def release(self) -> None:
        """Give the lock back.

        Raises:
            RuntimeError: when nobody holds it.
        """
        self._holder = None
        self._lock.release()

    def __enter__(self) -> None:
        """Take the lock, however long that takes."""
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        self.release()

    def renew_in_child(self) -> None:
        """Free the lock in a child, where only the thread that forked goes on."""
        if self._holder != threading.get_ident():
            self._lock, self._holder = self._make(), None


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_callbacks: list[Callable[[], None]] = []


def wait_for(lock: threading.RLock) -> None:
    """Let every fork wait until this lock is free: for what must not be half done in the child."""
    _register(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def in_child(callback: Callable[[], None]) -> None:
    """Call ``callback`` in every forked child, once its locks are free."""
    _callbacks.append(callback)


def _after_in_child() -> None:
    for lock in list(_locks):
        lock.renew_in_child()
    for callback in _callbacks:
        callback()


def _register(**functions: Callable[[], object]) -> None:
    if hasattr(os, "register_at_fork"):  # absent on Windows, where nothing forks
        os.register_at_fork(**functions)


_register(after_in_child=_after_in_child)
