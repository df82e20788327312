"""What a forked child must find: free locks. The only module that registers with ``os.register_at_fork``.

A lock that another thread held at the fork stays locked in the child, where that thread does not exist. So every
lock that outlives a call is made by `lock` or `rlock`, or is one that a fork waits for.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

# Locks of Python's own, not a class around them: `with` takes those in one step, between which no signal handler runs.
# `_at_fork_reinit` and `_is_owned` are what the standard library itself renews its locks with (threading, logging).
_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_rlocks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_callbacks: list[Callable[[], None]] = []


def lock() -> threading.Lock:
    """Return a lock between threads that is free in every forked child, whoever held it."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child, unless the thread that forked holds it itself."""
    made = threading.RLock()
    _rlocks.add(made)
    return made


def wait_for(lock: threading.RLock) -> None:
    """Let every fork wait until this lock is free: for what must not be half done in the child."""
    _register(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def in_child(callback: Callable[[], None]) -> None:
    """Call ``callback`` in every forked child, once its locks are free."""
    _callbacks.append(callback)


def _after_in_child() -> None:
    for made in list(_locks):
        made._at_fork_reinit()  # type: ignore[attr-defined]
    for reentrant in list(_rlocks):
        if not reentrant._is_owned():  # type: ignore[attr-defined]
            reentrant._at_fork_reinit()  # type: ignore[attr-defined]
    for callback in _callbacks:
        callback()


def _register(**functions: Callable[[], object]) -> None:
    if hasattr(os, "register_at_fork"):  # absent on Windows, where nothing forks
        os.register_at_fork(**functions)


_register(after_in_child=_after_in_child)
