"""The lock: held, left by the dead, or not working at all. The wait is bounded, and nothing is lost."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_makers import batches, decision, fork, open_file, problem, wait_for

from autoinv.store import locking, table
from autoinv.store.locking import Lock, locked

fcntl = pytest.importorskip("fcntl", reason="locks work otherwise on this system")

HANG_S = 20.0
"""Far above any wait asked for here, far below for ever."""


@contextmanager
def holder(place: Path, last_signal: int) -> Iterator[int]:
    """Let a child hold the lock until it gets the signal."""
    path = open_file(place).path
    assert path is not None
    place.mkdir(exist_ok=True)
    out, into = os.pipe()

    def hold() -> None:
        with locked(table.lock_path(path), 5.0) as lock:
            os.write(into, b"1" if lock else b"0")
            time.sleep(HANG_S)

    child = fork(hold)
    try:
        assert os.read(out, 1) == b"1"
        os.kill(child, last_signal)
        yield child
    finally:
        os.close(out)
        os.close(into)
        os.kill(child, signal.SIGKILL)
        wait_for(child)


def test_a_stopped_holder_delays_a_save_no_longer_than_allowed_and_the_next_save_takes_both(tmp_path):
    file = open_file(tmp_path)
    with holder(tmp_path, signal.SIGSTOP):
        started_s = time.monotonic()
        assert not file.put(decision(1), 0.1)
        assert time.monotonic() - started_s < HANG_S / 2
        assert file.get(problem(1)) == decision(1)
        assert file.unsaved == 1
    assert file.put(decision(2), 1.0)
    assert batches(tmp_path) == [1, 2]
    assert file.unsaved == 0


def test_without_any_wait_a_free_lock_is_taken_and_a_held_one_is_not(tmp_path):
    assert open_file(tmp_path).put(decision(1), 0.0)
    with holder(tmp_path, signal.SIGSTOP):
        assert not open_file(tmp_path).put(decision(2), 0.0)
        assert not open_file(tmp_path).put(decision(2), -1.0)
    assert batches(tmp_path) == [1]


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path):
    with holder(tmp_path, signal.SIGKILL) as child:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert open_file(tmp_path).put(decision(), 0.0)
    assert batches(tmp_path) == [80]


def test_reading_needs_no_lock(tmp_path):
    open_file(tmp_path).put(decision(), 1.0)
    with holder(tmp_path, signal.SIGSTOP):
        assert open_file(tmp_path).get(problem()) == decision()


def test_forgetting_that_could_not_be_saved_is_saved_with_the_next_decision(tmp_path):
    open_file(tmp_path).put(decision(1), 1.0)
    file = open_file(tmp_path)
    with holder(tmp_path, signal.SIGSTOP):
        assert file.forget(lambda _: True, 0.0) == 1
        assert file.unsaved == 1
        assert file.get(problem(1)) is None
    assert file.put(decision(2), 1.0)
    assert batches(tmp_path) == [2]


def test_what_another_process_decided_anew_is_not_forgotten_with_the_old(tmp_path):
    open_file(tmp_path).put(decision(1), 1.0)
    file = open_file(tmp_path)
    with holder(tmp_path, signal.SIGSTOP):
        file.forget(lambda _: True, 0.0)
    other = open_file(tmp_path)
    other.forget(lambda _: True, 1.0)
    other.put(decision(1, strategy="loop"), 1.0)
    assert file.put(decision(2), 1.0)
    assert batches(tmp_path) == [1, 2]
    assert file.get(problem(1)) == decision(1, strategy="loop")


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("name", ["ENOLCK", "ENOSYS", "EOPNOTSUPP", "EIO", "ESTALE", "EINVAL", "EPERM"])
def test_where_locks_do_not_work_saving_works_without(tmp_path, monkeypatch, name):
    def flock(_fd: int, _operation: int) -> None:
        raise OSError(getattr(errno, name), "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert open_file(tmp_path).put(decision(1), 0.2)
    assert open_file(tmp_path).put(decision(2), 0.2)
    assert batches(tmp_path) == [1, 2]


@pytest.mark.parametrize("error", [NotImplementedError, RuntimeError, UserWarning, ImportError, ValueError])
def test_whatever_the_lock_library_raises_saving_works_without(tmp_path, monkeypatch, error):
    def broken() -> object:
        raise error("of the lock library")

    monkeypatch.setattr(locking, "_filelock", broken)
    assert open_file(tmp_path).put(decision(), 0.2)
    assert batches(tmp_path) == [80]


def test_when_descriptors_run_out_the_lock_is_not_skipped(tmp_path, monkeypatch):
    opens = os.open

    def fails(path: str, *args: object, **options: object) -> int:
        if str(path).endswith(".lock"):
            raise OSError(errno.EMFILE, "too many open files")
        return opens(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", fails)
    with locked(tmp_path / "x.lock", 0.0) as lock:
        assert lock is Lock.BUSY


def test_an_error_in_the_block_passes_through_and_frees_the_lock(tmp_path):
    path = tmp_path / "x.lock"
    with pytest.raises(ZeroDivisionError), locked(path, 0.0):
        raise ZeroDivisionError
    with locked(path, 0.0) as lock:
        assert lock is Lock.HELD
        with locked(path, 0.0) as second:
            assert second is Lock.BUSY
