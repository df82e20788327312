"""Pins: what the user chose holds for every thread count, layout and environment."""

from __future__ import annotations

import json
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from file_makers import fork, in_child, problem, wait_for

from autoinv.problem import Problem
from autoinv.store import disk, pins
from autoinv.store.pins import PinsFile

KEY = "inv/80x3x3/float64/cpu"
PIN = {"strategy": "loop", "created": "2026-11-30T10:00:00Z"}


def test_a_pin_is_found_by_the_next_process_whatever_its_threads_and_layout(tmp_path):
    assert PinsFile(tmp_path).set(problem(), "loop", 1.0)
    asked = [problem(), problem(threads=7), problem(layout="strided")]
    assert [PinsFile(tmp_path).get(one) for one in asked] == ["loop"] * 3


def test_a_pin_holds_for_no_other_operation_shape_dtype_or_device(tmp_path):
    PinsFile(tmp_path).set(problem(), "loop", 1.0)
    shapes = problem().shapes
    asked = [problem(81), problem(80, 4), Problem("solve", shapes, torch.float64, "cpu", 2)]
    asked.append(Problem("inv", shapes, torch.float32, "cpu", 2))
    asked.append(Problem("inv", shapes, torch.float64, "cuda:0", 2))
    assert [PinsFile(tmp_path).get(one) for one in asked] == [None] * len(asked)


def test_the_pins_file_is_short_json_for_its_owner(tmp_path):
    file = PinsFile(tmp_path)
    file.set(problem(), "loop", 1.0)
    path = tmp_path / "pins-v1.json"
    content = json.loads(path.read_text())
    created = content["pins"][KEY].pop("created")
    assert content == {"schema": 1, "pins": {KEY: {"strategy": "loop"}}}
    assert pins.check_pin(KEY, {"strategy": "loop", "created": created})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_pinning_anew_replaces_and_pinning_the_same_changes_nothing(tmp_path):
    file = PinsFile(tmp_path)
    file.change({KEY: PIN}, 1.0)
    file.set(problem(), "loop", 1.0)
    assert file.entries() == {KEY: PIN}
    file.set(problem(), "bmm", 1.0)
    assert PinsFile(tmp_path).all() == {KEY: "bmm"}


def test_unpinning_says_whether_there_was_a_pin(tmp_path):
    file = PinsFile(tmp_path)
    assert not file.remove(problem(), 1.0)
    assert not (tmp_path / "pins-v1.json").exists()
    file.set(problem(), "loop", 1.0)
    assert PinsFile(tmp_path).remove(problem(threads=1), 1.0)
    assert file.get(problem()) is None
    assert PinsFile(tmp_path).all() == {}


def test_running_processes_see_each_others_pins(tmp_path):
    one, other = PinsFile(tmp_path), PinsFile(tmp_path)
    assert other.get(problem()) is None
    one.set(problem(), "loop", 1.0)
    assert other.get(problem()) == "loop"
    other.set(problem(81), "bmm", 1.0)
    assert one.all() == {KEY: "loop", "inv/81x3x3/float64/cpu": "bmm"}


def test_a_pin_that_cannot_be_saved_holds_for_this_process():
    file = PinsFile(None)
    assert not file.set(problem(), "loop", 1.0)
    assert file.get(problem()) == "loop"
    assert file.unsaved == 1
    assert file.remove(problem(), 1.0)
    assert file.get(problem()) is None


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 49, "Ünicode", "1st"])
def test_a_name_that_is_no_strategys_is_refused_and_nothing_is_stored(tmp_path, name):
    with pytest.raises(ValueError, match="no short identifier"):
        PinsFile(tmp_path).set(problem(), name, 1.0)
    assert PinsFile(tmp_path).all() == {}


BAD = {
    "no key": ("inv/80x3x3", PIN),
    "a decision's key": (problem().key, PIN),
    "a long key": ("inv/" + "2x" * 300 + "2/float64/cpu", PIN),
    "a number": (KEY, 7),
    "no strategy": (KEY, {"created": PIN["created"]}),
    "no time": (KEY, {"strategy": "loop"}),
    "a path": (KEY, {**PIN, "strategy": "../x"}),
}


@pytest.mark.parametrize(("key", "entry"), BAD.values(), ids=BAD)
def test_a_bad_pin_is_dropped_with_a_warning_and_the_others_hold(tmp_path, key, entry):
    good = "inv/81x3x3/float64/cpu"
    path = tmp_path / "pins-v1.json"
    path.write_text(json.dumps({"schema": 1, "pins": {good: PIN, key: entry}}))
    path.chmod(0o600)
    file = PinsFile(tmp_path)
    with pytest.warns(match="holds a bad pin"):
        assert file.all() == {good: "loop"}
    assert file.set(problem(82), "bmm", 1.0)
    assert list(json.loads(path.read_text())["pins"]) == [good, "inv/82x3x3/float64/cpu"]


def test_a_damaged_pins_file_is_quarantined(tmp_path):
    path = tmp_path / "pins-v1.json"
    path.write_text('{"schema": 1, "pins": {')
    path.chmod(0o600)
    with pytest.warns(match="quarantined as pins-v1.json.corrupt"):
        assert PinsFile(tmp_path).get(problem()) is None
    assert (tmp_path / "pins-v1.json.corrupt").read_text() == '{"schema": 1, "pins": {'
    assert PinsFile(tmp_path).set(problem(), "loop", 1.0)


def test_a_newer_pins_file_is_left_alone(tmp_path):
    path = tmp_path / "pins-v1.json"
    path.write_text('{"schema": 2}')
    path.chmod(0o600)
    file = PinsFile(tmp_path)
    with pytest.warns(match="a newer autoinv wrote it"):
        assert not file.set(problem(), "loop", 1.0)
    assert path.read_text() == '{"schema": 2}'
    assert file.get(problem()) == "loop"


def test_pins_of_two_processes_are_merged(tmp_path):
    late = PinsFile(tmp_path)
    late.all()
    in_child(lambda: PinsFile(tmp_path).set(problem(81), "bmm", 1.0))
    late.set(problem(), "loop", 1.0)
    assert PinsFile(tmp_path).all() == {KEY: "loop", "inv/81x3x3/float64/cpu": "bmm"}


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Run ``work`` again and again in another thread during the block, with threads switched often."""
    stop, interval_s = threading.Event(), sys.getswitchinterval()

    def run() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=run)
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval_s)


def test_a_pin_just_saved_never_vanishes_for_readers_in_other_threads(tmp_path):
    file, batch, missed = PinsFile(tmp_path), [0], []
    file.set(problem(1), "loop", 1.0)
    batch[0] = 1

    def reads() -> None:
        asked = batch[0]
        if file.get(problem(asked)) != "loop":
            missed.append(asked)

    with running(reads), running(reads):
        for count in range(2, 102):
            assert file.set(problem(count), "loop", 5.0)
            batch[0] = count
    assert missed == []
    assert len(PinsFile(tmp_path).all()) == 101


def test_a_pin_just_saved_stays_while_another_process_saves_and_readers_reload(tmp_path):
    file, missed = PinsFile(tmp_path), []
    ends_s = time.monotonic() + 1.0

    def saves_others() -> None:
        other, count = PinsFile(tmp_path), 1000
        while time.monotonic() < ends_s:
            count += 1
            other.set(problem(count), "bmm", 5.0)

    child = fork(saves_others)
    with running(file.all), running(file.all):
        count = 0
        while time.monotonic() < ends_s:
            count += 1
            file.set(problem(count), "loop", 5.0)
            missed += [n for n in (1, count) if file.get(problem(n)) != "loop"]
    assert wait_for(child) == 0
    assert missed == []


def test_a_reader_that_read_before_a_save_does_not_hide_what_was_saved(tmp_path, monkeypatch):
    file = PinsFile(tmp_path)
    file.set(problem(1), "loop", 1.0)
    PinsFile(tmp_path).set(problem(2), "loop", 1.0)  # so that the next look reads
    read, reading, go_on = disk.read, threading.Event(), threading.Event()

    def slow(*args: object, **options: object) -> bytes:
        data = read(*args, **options)
        if threading.current_thread() is reader:
            reading.set()
            assert go_on.wait(30.0)
        return data

    monkeypatch.setattr(disk, "read", slow)
    found: list[str | None] = []
    reader = threading.Thread(target=lambda: found.append(file.get(problem(3))))
    reader.start()
    assert reading.wait(30.0)
    assert file.set(problem(3), "bmm", 1.0)
    go_on.set()
    reader.join()
    assert found == ["bmm"]
    assert file.get(problem(3)) == "bmm"
