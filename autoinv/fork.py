"""Locks that a fork does not leave held, nor an exception. The only module that registers with ``os.register_at_fork``.

A lock that another thread held at the fork stays locked in the child, where that thread does not exist. So every
lock that outlives a call is made by `lock` or `rlock`, is a `Turn`, or is one that a fork waits for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

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


class TakenError(Exception):
    """It is another thread's turn, or this thread is at it already."""


class Turn:
    """One thread at a time; waiting for it may be bounded, and whatever ends the work gives the turn back.

    Not a lock: a signal handler may raise between taking a lock with a timeout and noting that it is held, which would
    then be held for ever. A turn names its thread, and counts only while that is in `run`, as its frames say. So one
    that was left behind is taken over, also in a forked child.
    """

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        """Under "by" the thread whose turn it is; each step on it is atomic."""

    def run(self, work: Callable[[], T], wait_s: float = 0.0) -> T:
        """Return what ``work`` returns, run when no other thread is at work here.

        Raises:
            TakenError: when another thread is for longer than ``wait_s``, or ``work`` comes here itself.
        """
        me = threading.get_ident()
        if self._is_run_in(sys._getframe().f_back):
            raise TakenError
        until_s = time.monotonic() + wait_s
        try:
            while (holder := self._taken.setdefault("by", me)) != me:
                if not self._is_run_in(sys._current_frames().get(holder)):
                    self._give_back(holder)
                elif time.monotonic() >= until_s:
                    raise TakenError
                else:
                    time.sleep(_POLL_S)
            return work()
        finally:
            self._give_back(me)

    def _is_run_in(self, frame: FrameType | None) -> bool:
        """Whether this frame, or one that called it, is in `run`."""
        while frame is not None:
            if frame.f_code is Turn.run.__code__ and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _give_back(self, holder: int) -> None:
        if self._taken.get("by") == holder:
            self._taken.pop("by", None)


_POLL_S = 1e-3


is_child = False
"""Whether this process was forked from one that had imported autoinv. There torch's calls that wake a team of OpenMP
threads hang where the parent had one (gcc's runtime keeps it, and its threads are not there)."""


def _after_in_child() -> None:
    global is_child
    is_child = True
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
