"""The command ``warm``: what it tunes, where, what it prints, and how it ends."""

from __future__ import annotations

import dataclasses
import json
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
from autoinv.store import locking, recorded, table
from autoinv.tuning import tuner

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
    assert "with a larger budget" in result.err
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
    assert "could not be saved" in result.err or "is not tuned" in result.err


def test_a_pinned_shape_is_marked(capsys):
    run(capsys, "pin", "5x3x3", "bmm")
    result = run(capsys, "warm", "5x3x3")
    assert "5x3x3 !" in result.out
    assert "! pinned by the user" in result.out


def test_ctrl_c_keeps_the_finished_decisions_and_exits_with_130(capsys, monkeypatch):
    warm_problems = api.warm_problems

    def interrupted(problems, budget):
        if problems[0].shape == (4, 2, 2):
            raise KeyboardInterrupt
        return warm_problems(problems, budget)

    monkeypatch.setattr(api, "warm_problems", interrupted)
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


def test_warm_tunes_the_problems_of_a_file_for_the_threads_that_this_machine_has(capsys, tmp_path):
    own = torch.get_num_threads()
    path = tmp_path / "problems.json"
    key = "inv/{}/float64/cpu/threads={}/{}"
    counts = {
        key.format("5x3x3", 4096, "contiguous"): 2,  # of a larger machine
        key.format("5x3x3", own, "contiguous"): 1,  # then the same here
        key.format("4x2x2", own, "transposed"): 9,
        key.format("4x2x2", own, "contiguous").replace("cpu", "cuda:77"): 3,
        key.format("4x2x3", own, "contiguous"): 4,
        key.format("4x2x2", own, "contiguous").replace("inv", "frobnicate"): 5,
    }
    recorded.add(path, counts, 5.0)
    result = run(capsys, "warm", "--from", path)
    assert result.code == 0, result.err
    assert [key.format("4x2x2", own, "transposed"), key.format("5x3x3", own, "contiguous")] == keys()
    assert "[1/2] 4x2x2" in result.err  # the most frequent first
    assert [word in result.err for word in ("cuda:77", "4x2x3", "frobnicate")] == [True] * 3
    assert result.err.count("is left out") == 3


def test_warm_tunes_a_file_with_other_threads_in_a_child_and_shapes_beside_it(capsys, tmp_path):
    own = torch.get_num_threads()
    other = 1 if own > 1 else 2
    path = tmp_path / "problems.json"
    recorded.add(path, {f"inv/4x2x2/float64/cpu/threads={own}/transposed": 1}, 5.0)
    result = run(capsys, "warm", "5x3x3", "--from", path, "--threads", f"{own},{other}")
    if other > 1 and "torch takes" in result.err:
        pytest.skip("one core: torch takes one thread whatever is asked")
    assert result.code == 0, result.err
    tuned = {tuple(key.split("/")[i] for i in (1, 4, 5)) for key in keys()}
    assert tuned == {
        (*problem[:1], f"threads={count}", *problem[1:])
        for problem in (("4x2x2", "transposed"), ("5x3x3", "contiguous"))
        for count in (own, other)
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "does not exist"),
        ("notes", "no file of recorded problems"),
        ('{"schema": 1, "decisions": {}}', "no problems in it"),
    ],
)
def test_a_missing_or_wrong_file_is_one_line_and_exit_code_2(capsys, tmp_path, text, why):
    path = tmp_path / "problems.json"
    if text is not None:
        path.write_text(text)
    result = run(capsys, "warm", "--from", path)
    assert (result.code, result.out) == (2, "")
    assert "problems.json" in result.err
    assert why in result.err
    assert result.err.count("\n") == 1


def test_a_bad_entry_of_the_file_is_named_and_the_others_are_tuned(capsys, tmp_path):
    path = tmp_path / "problems.json"
    good = f"inv/5x3x3/float32/cpu/threads={torch.get_num_threads()}/contiguous"
    path.write_text(json.dumps({"schema": 1, "problems": {good: {"count": 1}, "bad": {"count": 1}}}))
    result = run(capsys, "warm", "--from", path)
    assert (result.code, keys()) == (0, [good])
    assert "bad recorded problem, 'bad'" in result.err


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("busy_tunings", "limit", "code"), [(4, "30s", 0), (10**9, "1", 3)])
def test_until_final_tunes_until_a_decision_is_conclusive_or_the_time_is_over(
    capsys, monkeypatch, busy_tunings, limit, code
):
    tune, count = tuner.tune, []

    def busy_at_first(*arguments, **options):
        count.append(1)
        return dataclasses.replace(tune(*arguments, **options), contended=len(count) <= busy_tunings)

    monkeypatch.setattr(tuner, "tune", busy_at_first)
    result = run(capsys, "warm", "5x3x3", "--until-final", "--time-limit", limit)
    assert result.code == code, result.err
    assert ("is not final: timed on a busy processor" in result.err) == (code == 3)
    assert code == 3 or len(count) == busy_tunings + 1


@pytest.mark.usefixtures("quick")
def test_out_of_memory_is_said_plainly_and_a_budget_beyond_all_bounds_is_taken(capsys):
    refused = run(capsys, "warm", "1000000x1000000")
    assert (refused.code, "memory ran out" in refused.err, "report it" in refused.err) == (1, True, False)
    assert run(capsys, "warm", "5x3x3", "--budget", "1e99").code == 0
