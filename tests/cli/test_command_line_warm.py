"""The command ``warm``: what it tunes, where, what it prints, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from terminal import cpu_file, quick, run, run_apart  # noqa: F401 - quick is a fixture

import autoinv
from autoinv import api
from autoinv.store import locking, table

pytestmark = pytest.mark.usefixtures("quick")


def keys() -> list[str]:
    return [decision.problem.key for decision in cpu_file().all()]


def test_warm_tunes_each_shape_for_each_dtype_and_prints_a_table(capsys):
    result = run(capsys, "warm", "5x3x3", "4x2x2", "--dtype", "float32,float64")
    threads = torch.get_num_threads()
    assert result.code == 0
    expected = [
        f"inv/{shape}/{dtype}/cpu/threads={threads}/contiguous"
        for shape in ("4x2x2", "5x3x3")
        for dtype in ("float32", "float64")
    ]
    assert expected == keys()
    assert result.out.count("Times are in") == 2
    assert sum("*" in line and "x" in line.split()[0] for line in result.out.splitlines()) == 4
    assert [line.split()[0] for line in result.err.splitlines()] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]


def test_warm_does_not_time_a_final_decision(capsys, monkeypatch):
    run(capsys, "warm", "5x3x3")
    monkeypatch.setattr("autoinv.tuning.tuner.tune", lambda *a, **k: pytest.fail("it timed again"))
    again = run(capsys, "warm", "5x3x3")
    assert again.code == 0
    assert "(known before)" in again.err


def test_another_thread_count_is_tuned_in_a_child_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: pytest.fail("it breaks batched LU"))
    own = torch.get_num_threads()
    other = 1 if own > 1 else 2
    result = run(capsys, "warm", "5x3x3", "--threads", f"{own},{other}")
    if other > 1 and "torch takes" in result.err:
        pytest.skip("one core: torch takes one thread whatever is asked")
    assert result.code == 0, result.err
    assert sorted(f"inv/5x3x3/float32/cpu/threads={n}/contiguous" for n in (own, other)) == keys()
    assert own == torch.get_num_threads()
    for count in (own, other):
        assert f"{count} thread{'s' if count > 1 else ''}: --" in result.out


def test_the_child_saves_where_this_process_was_configured_to(capsys, tmp_path):
    other = 1 if torch.get_num_threads() > 1 else 2
    with autoinv.using(cache_dir=tmp_path):
        result = run(capsys, "warm", "5x3x3", "--threads", other)
    if other > 1 and "torch takes" in result.err:
        pytest.skip("one core: torch takes one thread whatever is asked")
    assert result.code == 0, result.err
    assert len(list(tmp_path.glob("decisions-*.json"))) == 1


def test_a_thread_count_that_torch_does_not_take_is_refused(capsys):
    result = run(capsys, "warm", "5x3x3", "--threads", 4096)
    if result.code == 0:
        pytest.skip("this torch takes any thread count")
    assert (result.code, result.out) == (2, "")
    assert "OMP_NUM_THREADS=4096" in result.err
    assert keys() == []


def test_a_mode_that_forbids_timing_is_bad_input(capsys, monkeypatch):
    monkeypatch.setenv("AUTOINV_MODE", "cached")
    result = run(capsys, "warm", "5x3x3")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "AUTOINV_MODE" in result.err


def test_a_budget_too_short_to_time_anything_is_reported_and_fails(capsys):
    result = run(capsys, "warm", "5x3x3", "--budget", 0)
    assert result.code == 1
    assert "give a larger --budget" in result.err
    assert "Traceback" not in result.err


def test_decisions_that_cannot_be_saved_are_shown_and_exit_with_4(capsys, tmp_path):
    (tmp_path / "file").touch()
    with autoinv.using(cache_dir=tmp_path / "file"):
        result = run(capsys, "warm", "5x3x3")
    assert result.code == 4
    assert "5x3x3" in result.out
    assert "could not be saved" in result.err.splitlines()[-1]


def test_a_child_that_cannot_save_exits_with_4(capsys, tmp_path):
    (tmp_path / "file").touch()
    other = 1 if torch.get_num_threads() > 1 else 2
    with autoinv.using(cache_dir=tmp_path / "file"):
        result = run(capsys, "warm", "5x3x3", "--threads", other)
    if other > 1 and "torch takes" in result.err:
        pytest.skip("one core: torch takes one thread whatever is asked")
    assert result.code == 4
    assert "could not be saved" in result.err.splitlines()[-1]


def test_a_held_lock_is_waited_for_and_then_reported(capsys, private_cache_dir, monkeypatch):
    monkeypatch.setattr("autoinv.cli.warm.SAVE_WAIT_S", 0.2)
    monkeypatch.setenv("AUTOINV_BUDGET", "0.5")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locking.locked(table.lock_path(cpu_file().path), 5.0) as lock:
            assert lock is locking.Lock.HELD
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    result = run(capsys, "warm", "5x3x3")
    done.set()
    holder.join()
    assert result.code in (4, 1), "1 where half a second was too short to tune"
    assert "could not be saved" in result.err or "no time to tune" in result.err


def test_a_pinned_shape_is_marked(capsys):
    run(capsys, "pin", "5x3x3", "bmm")
    result = run(capsys, "warm", "5x3x3")
    assert "5x3x3 !" in result.out
    assert "! pinned by the user" in result.out


def test_ctrl_c_keeps_the_finished_decisions_and_exits_with_130(capsys, monkeypatch):
    warm = api.warm

    def interrupted(shape, **options):
        if shape == ((4, 2, 2),):
            raise KeyboardInterrupt
        return warm(shape, **options)

    monkeypatch.setattr(api, "warm", interrupted)
    result = run(capsys, "warm", "5x3x3", "4x2x2", "3x3")
    assert result.code == 130
    assert [key.split("/")[1] for key in keys()] == ["5x3x3"]
    assert "5x3x3" in result.out
    assert "interrupted" in result.err
    assert "Traceback" not in result.err


@pytest.mark.skipif(os.name != "posix", reason="SIGINT to one process is POSIX")
@pytest.mark.parametrize("where", ["here", "in a child"])
def test_a_real_sigint_exits_with_130_and_finished_decisions_are_on_disk(where):
    own = torch.get_num_threads()
    count = own if where == "here" else (1 if own > 1 else 2)
    command = [
        sys.executable,
        "-m",
        "autoinv.tune",
        "warm",
        "5x3x3",
        *(f"200000x{n}x{n}" for n in range(3, 30)),
    ]
    warming = subprocess.Popen(
        [*command, "--budget", "5", "--threads", str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = warming.stderr.readline()
    if "torch takes" in first:
        pytest.skip("one core: torch takes one thread whatever is asked")
    time.sleep(0.3)
    warming.send_signal(signal.SIGINT)
    out, err = warming.communicate(timeout=60)
    assert (warming.returncode, "5x3x3" in out) == (130, True), err
    assert "Traceback" not in err
    assert f"inv/5x3x3/float32/cpu/threads={count}/contiguous" in keys()


def test_warm_in_its_own_process_prints_no_colours_into_a_pipe():
    result = run_apart("warm", "5x3x3", "--budget", 2)
    assert result.code == 0, result.err
    assert "\x1b" not in result.out + result.err
    assert "inv of float32 on cpu" in result.out
    assert len(keys()) == 1
