"""Many processes and threads on one file: nothing is lost, nobody hangs, whatever the start method."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from file_makers import Machine, batches, decision, fork, in_child, open_file, problem, wait_for

from autoinv.store import decisions, disk, locking, pins, table

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PROCESSES, EACH = 4, 25


def save_many(place: Path, first: int) -> None:
    file = open_file(place)
    for batch in range(first, first + EACH):
        assert file.put(decision(batch), 30.0)


def save_from_all(place: Path) -> list[int]:
    children = [fork(lambda k=k: save_many(place, 1 + k * EACH)) for k in range(PROCESSES)]
    assert [wait_for(child) for child in children] == [0] * PROCESSES
    return batches(place)


def test_4_processes_with_25_new_problems_each_lose_none(tmp_path):
    assert save_from_all(tmp_path) == list(range(1, 1 + PROCESSES * EACH))


def test_without_the_lock_and_with_the_interleaving_forced_the_same_test_fails(tmp_path, monkeypatch):
    """The control: it proves that the test above would see a lost entry."""
    all_have_read = multiprocessing.get_context("fork").Barrier(PROCESSES)
    replace = disk.replace

    def replaces_when_all_have_read(path: Path, data: bytes) -> None:
        all_have_read.wait(30.0)
        replace(path, data)

    monkeypatch.setattr(disk, "replace", replaces_when_all_have_read)
    monkeypatch.setattr(locking, "_acquire", lambda _path, _wait_s, _made: locking.Lock.HELD)
    assert len(save_from_all(tmp_path)) < PROCESSES * EACH


def test_16_threads_of_one_process_lose_none(tmp_path):
    file = open_file(tmp_path)
    saved: list[bool] = []
    threads = [
        threading.Thread(target=lambda b=batch: saved.append(file.put(decision(b), 30.0)))
        for batch in range(1, 17)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert saved == [True] * 16
    assert batches(tmp_path) == list(range(1, 17))


def test_a_thread_that_saves_makes_another_wait_no_longer_than_allowed(tmp_path, monkeypatch):
    file = open_file(tmp_path)
    inside, leave = threading.Event(), threading.Event()
    replace = disk.replace

    def slow(path: Path, data: bytes) -> None:
        inside.set()
        leave.wait(30.0)
        replace(path, data)

    monkeypatch.setattr(disk, "replace", slow)
    thread = threading.Thread(target=lambda: file.put(decision(1), 30.0))
    thread.start()
    inside.wait(30.0)
    assert not file.put(decision(2), 0.05)
    assert file.get(problem(2)) == decision(2)
    leave.set()
    thread.join()
    assert file.put(decision(3), 1.0)
    assert batches(tmp_path) == [1, 2, 3]


@pytest.fixture(params=["before the file is replaced", "after it"])
def meanwhile(request, monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Let some work happen in another thread once, during the next save."""
    replace = disk.replace

    def during_the_next_save(work: Callable[[], object]) -> None:
        def replaces(path: Path, data: bytes) -> None:
            monkeypatch.setattr(disk, "replace", replace)
            steps = [lambda: replace(path, data), lambda: run_in_thread(work)]
            for step in steps if request.param == "after it" else reversed(steps):
                step()

        monkeypatch.setattr(disk, "replace", replaces)

    return during_the_next_save


def run_in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_decision_put_while_a_save_is_in_progress_is_saved_with_the_next(tmp_path, meanwhile):
    file = open_file(tmp_path)
    meanwhile(lambda: file.put(decision(2), 0.0))
    assert file.put(decision(1), 1.0)
    assert file.unsaved == 1
    assert file.get(problem(2)) == decision(2)
    assert file.put(decision(3), 1.0)
    assert batches(tmp_path) == [1, 2, 3]


def test_a_newer_decision_put_while_an_older_one_is_saved_is_saved_with_the_next(tmp_path, meanwhile):
    file = open_file(tmp_path)
    meanwhile(lambda: file.put(decision(1, tunings=2), 0.0))
    assert file.put(decision(1), 1.0)
    assert file.get(problem(1)) == decision(1, tunings=2)
    assert file.put(decision(2), 1.0)
    assert open_file(tmp_path).get(problem(1)) == decision(1, tunings=2)


@pytest.mark.parametrize("stored", [None, decision(1, contended=True)])
def test_a_decision_forgotten_while_it_is_saved_stays_forgotten(tmp_path, meanwhile, stored):
    file = open_file(tmp_path)
    if stored:
        file.put(stored, 1.0)
    meanwhile(lambda: file.forget(lambda p: p.batch == 1, 0.0))
    assert file.put(decision(1), 1.0)
    assert file.get(problem(1)) is None
    assert file.unsaved == 1
    assert file.put(decision(2), 1.0)
    assert batches(tmp_path) == [2]


def test_a_pin_removed_while_it_is_saved_stays_removed(tmp_path, meanwhile):
    file = pins.PinsFile(tmp_path)
    meanwhile(lambda: file.remove(problem(1), 0.0))
    assert file.set(problem(1), "loop", 1.0)
    assert file.get(problem(1)) is None
    assert file.set(problem(2), "loop", 1.0)
    assert pins.PinsFile(tmp_path).all() == {pins.pin_key(problem(2)): "loop"}


def test_fork_at_any_moment_of_a_save_in_another_thread(tmp_path):
    file = decisions.opened(tmp_path, Machine())
    pinned = pins.opened_pins(tmp_path)
    stop = threading.Event()

    def saves() -> None:
        batch = 1000
        while not stop.is_set():
            batch += 1
            file.put(decision(batch), 5.0)
            pinned.set(problem(batch), "loop", 5.0)

    thread = threading.Thread(target=saves)
    thread.start()
    try:
        for child in range(1, 26):

            def work(batch: int = child) -> None:
                assert file.put(decision(batch), 30.0)
                assert pinned.set(problem(batch), "loop", 30.0)

            in_child(work)
    finally:
        stop.set()
        thread.join()
    assert set(range(1, 26)) <= set(batches(tmp_path))
    assert {pins.pin_key(problem(batch)) for batch in range(1, 26)} <= set(pins.opened_pins(tmp_path).all())


SLOW_LOCK_LIBRARY = """
import time
time.sleep(0.5)
class Timeout(TimeoutError): ...
class FileLock:
    def __init__(self, *args, **options): ...
    def acquire(self, **options): ...
    def release(self): ...
"""


def test_fork_while_another_thread_imports_the_lock_library(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "filelock"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "filelock.py").write_text(SLOW_LOCK_LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = open_file(tmp_path / "cache")
    thread = threading.Thread(target=lambda: file.put(decision(1), 5.0))
    thread.start()
    while "filelock" not in sys.modules:
        time.sleep(0.01)
    in_child(lambda: open_file(tmp_path / "child").put(decision(2), 5.0) or pytest.fail("not saved"))
    thread.join()
    del sys.modules["filelock"]
    assert (batches(tmp_path / "cache"), batches(tmp_path / "child")) == ([1], [2])


def test_a_forked_child_keeps_what_its_parent_knew(tmp_path):
    file = decisions.opened(tmp_path, Machine())
    file.put(decision(), 1.0)

    def work() -> None:
        assert decisions.opened(tmp_path, Machine()).get(problem()) == decision()
        assert decisions.opened(tmp_path, Machine()).put(decision(81), 1.0)

    in_child(work)
    assert file.get(problem(81)) == decision(81)


def save_one(place: str, batch: int) -> bool:
    return open_file(Path(place)).put(decision(batch), 30.0)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(tmp_path, method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.starmap(save_one, [(str(tmp_path), batch) for batch in (1, 2, 3)]) == [True] * 3
    assert batches(tmp_path) == [1, 2, 3]


def test_a_process_stopped_between_reading_and_replacing_loses_nothing_of_others(tmp_path, monkeypatch):
    """It holds the lock meanwhile, so the others save later."""
    open_file(tmp_path).put(decision(1), 1.0)
    out, into = os.pipe()
    replace = disk.replace

    def waits(path: Path, data: bytes) -> None:
        os.write(into, b"1")
        os.read(resume, 1)
        replace(path, data)

    resume, go = os.pipe()
    monkeypatch.setattr(disk, "replace", waits)
    child = fork(lambda: open_file(tmp_path).put(decision(2), 1.0))
    monkeypatch.setattr(disk, "replace", replace)
    os.read(out, 1)
    file = open_file(tmp_path)
    assert not file.put(decision(3), 0.05)
    os.write(go, b"1")
    assert wait_for(child) == 0
    assert file.put(decision(4), 1.0)
    assert batches(tmp_path) == [1, 2, 3, 4]


CLOCKS = {
    "1970": lambda _: 0.0,
    "2099": lambda _: 4_070_908_800.0,
    "jumping": lambda at: (at * 7919 % 13) * 1e8,
}


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_no_wall_clock_decides_what_is_used_or_saved(tmp_path, monkeypatch, clock):
    ticks = iter(range(sys.maxsize))
    place = tmp_path / "cache"
    place.mkdir()
    (place / ".autoinv-1-00.tmp").write_text("x")
    table._swept.clear()
    monkeypatch.setattr(time, "time", lambda: clock(next(ticks)))
    for batch, created in enumerate(("2026-01-01", "1970-01-01", "2099-12-31", "0000-00-00"), start=1):
        file = open_file(place)
        assert file.put(decision(batch, created=f"{created}T00:00:00Z"), 1.0)
        assert file.put(decision(batch, strategy="loop", created="2500-01-01T00:00:00Z"), 1.0)
        path = file.path
        assert path is not None
        os.utime(path, (0, 0))
    assert [found.strategy for found in open_file(place).all()] == ["closed_form"] * 4
    assert (place / ".autoinv-1-00.tmp").exists() == (clock(0) == 0.0)


def test_a_file_replaced_within_one_tick_of_the_clock_is_still_seen(tmp_path):
    file = open_file(tmp_path)
    file.put(decision(1), 1.0)
    assert file.path is not None
    os.utime(file.path, (0, 0))
    assert file.get(problem(2)) is None
    open_file(tmp_path).put(decision(2), 1.0)
    os.utime(file.path, (0, 0))
    assert file.get(problem(2)) == decision(2)
