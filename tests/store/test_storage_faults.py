"""Every system call of a save and of a look fails, one after the other: once, and for ever."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_makers import batches, decision, leftovers, open_file, problem

from autoinv.store import table

pytestmark = pytest.mark.filterwarnings("ignore::autoinv.errors.AutoinvWarning", "ignore:flock not supported")

CALLS = (
    "lstat",
    "stat",
    "open",
    "fstat",
    "read",
    "write",
    "fsync",
    "fchmod",
    "close",
    "replace",
    "unlink",
    "mkdir",
)
ERRORS = ("EIO", "ENOSPC", "EACCES", "ESTALE", "EDQUOT", "EMFILE", "EXDEV")


FILELOCK = tuple(map(int, re.findall(r"[0-9]+", importlib.metadata.version("filelock"))[:3]))
FORGETS_A_LOCK_AFTER_AN_ERROR = FILELOCK < (3, 30)
"""filelock 3.29 keeps a lock for the process's life when fstat fails right after flock, or the unlocking."""
FORGETS_A_LOCK_WHEN_INTERRUPTED = FILELOCK < (4, 2, 6)
"""Before 4.2.6 it does so when Ctrl-C strikes in the microseconds between flock and the note of it."""


class Faults:
    """Counts the system calls of a test's own thread, and strikes at those that are due."""

    def __init__(
        self, due: Callable[[int, str], bool], strike: Callable[[str], None], after: bool = False
    ) -> None:
        self.due, self.strike, self.after = due, strike, after
        self.names: list[str] = []
        self.struck: set[str] = set()
        self._thread = threading.get_ident()

    def wrap(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def faulty(*args: object, **options: object) -> object:
            if threading.get_ident() != self._thread:
                return call(*args, **options)
            self.names.append(name)
            due = self.due(len(self.names) - 1, name)
            if due:
                self.struck.add(name)
            if due and not self.after:
                if name == "close":
                    call(*args, **options)  # a close that fails has closed
                self.strike(name)
            try:
                return call(*args, **options)
            finally:
                if due and self.after:
                    self.strike(name)

        return faulty


@contextmanager
def faults(
    due: Callable[[int, str], bool], strike: Callable[[str], None], after: bool = False
) -> Iterator[Faults]:
    """Let system calls fail in the block, those of filelock included."""
    import fcntl

    import filelock  # noqa: F401 - its import makes system calls of its own

    found = Faults(due, strike, after)
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, found.wrap(name, getattr(os, name)))
        patch.setattr(fcntl, "flock", found.wrap("flock", fcntl.flock))
        yield found


def raising(name: str) -> Callable[[str], None]:
    code = getattr(errno, name)

    def strike(_call: str) -> None:
        raise OSError(code, os.strerror(code))

    return strike


def calls_of_a_save(folder: Path) -> list[str]:
    open_file(folder).put(decision(1), 1.0)
    with faults(lambda _step, _name: False, raising("EIO")) as seen:
        assert open_file(folder).put(decision(2), 1.0)
    assert {"lstat", "open", "fstat", "read", "write", "fsync", "close", "replace", "flock"} <= set(
        seen.names
    )
    return seen.names


def test_after_any_error_at_any_step_old_entries_are_kept_and_the_next_save_works(tmp_path):
    steps = len(calls_of_a_save(tmp_path / "count"))
    for name in ERRORS:
        for step in range(steps):
            for lasting in (False, True):
                folder = tmp_path / f"{name}-{step}-{lasting}"
                _save_under_fault(folder, lambda at, _, s=step, e=lasting: at >= s if e else at == s, name)


def _save_under_fault(folder: Path, due: Callable[[int, str], bool], name: str) -> None:
    table._swept.clear()
    open_file(folder).put(decision(1), 1.0)
    file = open_file(folder)
    with faults(due, raising(name)) as seen:
        saved = file.put(decision(2), 0.02)
        assert file.get(problem(2)) == decision(2)
    assert batches(folder) in ([[1, 2]] if saved else [[1], [1, 2]])
    if FORGETS_A_LOCK_AFTER_AN_ERROR and seen.struck & {"fstat", "flock"}:
        return
    assert file.put(decision(3), 1.0)
    assert batches(folder) == [1, 2, 3]
    assert list(folder.glob("*.corrupt")) == []


@pytest.mark.parametrize("name", (*ERRORS, "EROFS", "ENOSYS", "EINVAL"))
@pytest.mark.parametrize("call", CALLS)
def test_one_kind_of_call_that_fails_for_ever_keeps_old_entries(tmp_path, call, name):
    _save_under_fault(tmp_path / "cache", lambda _, at: at == call, name)


@pytest.mark.parametrize("name", ERRORS)
def test_a_look_that_fails_at_any_step_finds_nothing_or_the_entry_and_the_next_one_finds_it(tmp_path, name):
    open_file(tmp_path).put(decision(1), 1.0)
    with faults(lambda _step, _name: False, raising(name)) as seen:
        open_file(tmp_path).get(problem(1))
    for step in range(len(seen.names)):
        file = open_file(tmp_path)
        with faults(lambda at, _, s=step: at == s, raising(name)):
            assert file.get(problem(1)) in (None, decision(1))
        assert file.get(problem(1)) == decision(1)


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:7])))
    assert open_file(tmp_path).put(decision(1), 1.0)
    assert batches(tmp_path) == [1]


def test_a_write_that_takes_nothing_saves_nothing(tmp_path, monkeypatch):
    open_file(tmp_path).put(decision(1), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda _fd, _data: 0)
        assert not open_file(tmp_path).put(decision(2), 1.0)
    assert batches(tmp_path) == [1]
    assert leftovers(tmp_path) == []


def test_short_reads_are_continued(tmp_path, monkeypatch):
    open_file(tmp_path).put(decision(1), 1.0)
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, count: read(fd, min(count, 11)))
    assert batches(tmp_path) == [1]


def test_a_read_that_fails_half_way_overwrites_nothing(tmp_path, monkeypatch):
    open_file(tmp_path).put(decision(1), 1.0)
    before = open_file(tmp_path).path.read_bytes()
    read, counts = os.read, [11]

    def fails_second(fd: int, count: int) -> bytes:
        if not counts:
            raise OSError(errno.EIO, "broken disk")
        return read(fd, counts.pop())

    with monkeypatch.context() as patch, pytest.warns(match="cannot be read"):
        patch.setattr(os, "read", fails_second)
        assert not open_file(tmp_path).put(decision(2), 1.0)
    assert open_file(tmp_path).path.read_bytes() == before


def test_an_interrupt_at_any_step_breaks_nothing_and_the_next_save_works(tmp_path):
    def strike(_call: str) -> None:
        raise KeyboardInterrupt

    for step in range(len(calls_of_a_save(tmp_path / "count"))):
        for after in (False, True):
            folder = tmp_path / f"{step}-{after}"
            open_file(folder).put(decision(1), 1.0)
            file = open_file(folder)
            with (
                faults(lambda at, _, s=step: at == s, strike, after) as seen,
                pytest.raises(KeyboardInterrupt),
            ):
                file.put(decision(2), 1.0)
            assert batches(folder) in ([1], [1, 2])
            assert file.get(problem(2)) == decision(2)
            if FORGETS_A_LOCK_WHEN_INTERRUPTED and seen.struck & {"flock", "fstat", "fchmod", "open"}:
                continue
            assert file.put(decision(3), 1.0), (step, after)
            assert batches(folder) == [1, 2, 3]


def test_a_failed_save_is_reported_once_with_the_cause_and_the_remedy(tmp_path):
    file = open_file(tmp_path)
    with pytest.warns() as caught, faults(lambda _, call: call == "fsync", raising("ENOSPC")):
        file.put(decision(1), 1.0)
        file.put(decision(2), 1.0)
    assert [str(warning.message) for warning in caught] == [
        f"autoinv: {file.path} could not be saved (No space left on device). "
        "Set AUTOINV_CACHE_DIR to another folder, one that can be written; decisions last for this process."
    ]
    assert file.unsaved == 2
