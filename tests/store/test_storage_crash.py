"""Processes that are killed while they save: what was acknowledged is there, nothing is half done."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from file_makers import batches, decision, fork, in_child, leftovers, open_file, problem, wait_for
from test_storage_faults import calls_of_a_save, faults

from autoinv.store import disk, table

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

SECONDS_OF_KILLING = float(os.environ.get("AUTOINV_TEST_KILLING_S", "3"))


def test_a_kill_before_or_after_any_step_leaves_old_or_new_and_the_next_save_works(tmp_path):
    for step in range(len(calls_of_a_save(tmp_path / "count"))):
        for after in (False, True):
            place = tmp_path / f"{step}-{after}"
            open_file(place).put(decision(1), 1.0)
            child = fork(lambda p=place, s=step, a=after: _save_and_die(p, s, a))
            assert wait_for(child) == -signal.SIGKILL
            assert batches(place) in ([1], [1, 2])
            _age(place, 2 * 3600)
            table._swept.clear()
            assert open_file(place).put(decision(3), 1.0)
            assert batches(place) in ([1, 3], [1, 2, 3])
            assert leftovers(place) == []


def _save_and_die(place: Path, step: int, after: bool) -> None:
    with faults(lambda at, _: at == step, lambda _: os.kill(os.getpid(), signal.SIGKILL), after):
        open_file(place).put(decision(2), 1.0)


def _age(place: Path, by_s: float) -> None:
    for name in leftovers(place):
        os.utime(place / name, (time.time() - by_s,) * 2)


def test_a_fresh_temporary_file_is_left_to_the_one_that_writes_it(tmp_path):
    fresh = tmp_path / ".autoinv-1-00.tmp"
    fresh.write_text("x")
    open_file(tmp_path).put(decision(), 1.0)
    assert leftovers(tmp_path) == [fresh.name]


def test_sweeping_touches_no_file_that_is_not_ours(tmp_path):
    names = [
        "precious.tmp",
        ".autoinv-thesis",
        "decisions-v1-0.json",
        ".autoinv-dir.tmp",
        ".autoinv-link.tmp",
    ]
    for name in names[:3]:
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / names[3]).mkdir()
    os.utime(tmp_path / names[3], (0, 0))
    (tmp_path / names[4]).symlink_to(tmp_path / names[0])
    assert disk.sweep(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == sorted(names)  # noqa: PTH208 - names are what is compared


def writer(place: Path, first: int, pipe: int) -> None:
    """Save one decision after the other, and acknowledge each in the pipe."""
    file = open_file(place)
    for batch in range(first, first + 100_000):
        if file.put(decision(batch), 5.0):
            os.write(pipe, b"%d\n" % batch)


def reader(place: Path, until_s: float) -> None:
    """Read the bare file again and again; each time it must be whole, and hold no less than before."""
    path = open_file(place).path
    assert path is not None
    seen: set[str] = set()
    while time.monotonic() < until_s:
        now = set(json.loads(path.read_bytes())["decisions"])
        assert seen <= now
        seen = now


def test_random_kills_lose_nothing_that_was_acknowledged_and_every_read_parses(tmp_path):
    open_file(tmp_path).put(decision(1), 1.0)
    until_s = time.monotonic() + SECONDS_OF_KILLING
    readers = [fork(lambda: reader(tmp_path, until_s)) for _ in range(2)]
    acknowledged, kills = {1}, 0
    while time.monotonic() < until_s:
        out, into = os.pipe()
        firsts = [1_000_000 * which + 1000 * kills for which in (1, 2)]
        writers = [fork(lambda first=first, pipe=into: writer(tmp_path, first, pipe)) for first in firsts]
        os.close(into)
        for child in writers:
            time.sleep(random.uniform(0.0, 0.15))
            os.kill(child, signal.SIGKILL)
        assert [wait_for(child) for child in writers] == [-signal.SIGKILL] * 2
        with os.fdopen(out) as lines:
            acknowledged |= {int(line) for line in lines}
        kills += 1
    assert [wait_for(child) for child in readers] == [0, 0]
    kept = set(batches(tmp_path))
    assert acknowledged - kept == set()
    assert open_file(tmp_path).put(decision(2), 1.0)
    print(f"{2 * kills} kills, {len(acknowledged)} acknowledged, {len(kept)} kept")


def test_sigterm_in_the_middle_of_saving_breaks_nothing(tmp_path):
    open_file(tmp_path).put(decision(1), 1.0)
    for delay_s in (0.0, 0.005, 0.02, 0.05):
        out, into = os.pipe()
        child = fork(lambda i=into: writer(tmp_path, 10, i))
        os.close(into)
        time.sleep(delay_s)
        os.kill(child, signal.SIGTERM)
        assert wait_for(child) == -signal.SIGTERM
        os.close(out)
        assert 1 in batches(tmp_path)
        assert open_file(tmp_path).put(decision(2), 1.0)


def test_what_a_killed_process_left_unsaved_is_lost_but_its_lock_is_free(tmp_path):
    def work() -> None:
        open_file(tmp_path).put(decision(), 0.0)

    in_child(work)
    assert open_file(tmp_path).get(problem()) == decision()
