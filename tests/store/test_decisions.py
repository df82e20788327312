"""The decisions file when all goes well: what is kept, who wins, who sees what, who is a neighbour."""

from __future__ import annotations

import copy
import json
import os
import stat

import pytest
import torch
from file_makers import Machine, batches, decision, leftovers, open_file, problem

from autoinv.problem import Problem
from autoinv.store import decisions, jsontext, neighbours


def test_a_decision_is_found_again_by_the_next_process(tmp_path):
    assert open_file(tmp_path).put(decision(), 1.0)
    assert open_file(tmp_path).get(problem()) == decision()


def test_a_decision_of_another_problem_is_not_found(tmp_path):
    open_file(tmp_path).put(decision(), 1.0)
    file = open_file(tmp_path)
    others = [problem(81), problem(80, 4), problem(threads=1), problem(layout="transposed")]
    others.append(Problem("solve", problem().shapes, torch.float64, "cpu", 2))
    others.append(Problem("inv", problem().shapes, torch.float32, "cpu", 2))
    assert [file.get(other) for other in others] == [None] * len(others)


def test_a_decision_of_another_environment_is_not_found(tmp_path):
    open_file(tmp_path).put(decision(), 1.0)
    assert open_file(tmp_path, Machine("fedcba9876543210")).get(problem()) is None


def test_a_file_renamed_from_another_environment_is_neither_used_nor_changed(tmp_path):
    open_file(tmp_path).put(decision(), 1.0)
    here = Machine("fedcba9876543210", {"cpu_model": "another"})
    file = open_file(tmp_path, here)
    open_file(tmp_path).path.rename(file.path)
    before = file.path.read_bytes()
    with pytest.warns(match="its environment is not this one's"):
        assert file.get(problem()) is None
    assert not file.put(decision(81), 1.0)
    assert file.path.read_bytes() == before


def test_the_file_is_json_with_sorted_keys_and_one_line_an_entry(tmp_path):
    file = open_file(tmp_path)
    file.put(decision(81), 1.0)
    file.put(decision(), 1.0)
    text = file.path.read_text()
    document = json.loads(text)
    assert document == {
        "schema": 1,
        "environment": Machine().as_dict(),
        "decisions": {decision(81).problem.key: decision(81).entry(), problem().key: decision().entry()},
    }
    assert json.dumps(document, sort_keys=True) == json.dumps(document)
    assert [line.split('"')[1] for line in text.splitlines() if "strategy" in line] == [
        problem().key,
        decision(81).problem.key,
    ]


def test_folder_file_and_lock_are_for_their_owner_only(tmp_path):
    folder = tmp_path / "not" / "there"
    file = open_file(folder)
    file.put(decision(), 1.0)
    lock = file.path.with_name(file.path.name + ".lock")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, file.path, lock)] == [
        0o700,
        0o600,
        0o600,
    ]
    assert leftovers(folder) == []


def test_a_file_made_readable_for_others_stays_so(tmp_path):
    file = open_file(tmp_path)
    file.put(decision(), 1.0)
    file.path.chmod(0o644)
    file.put(decision(81), 1.0)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644


def test_running_processes_see_each_others_decisions(tmp_path):
    one, other = open_file(tmp_path), open_file(tmp_path)
    assert other.get(problem()) is None
    one.put(decision(), 1.0)
    assert other.get(problem()) == decision()
    other.put(decision(81), 1.0)
    assert one.get(problem(81)) == decision(81)
    assert batches(tmp_path) == [80, 81]


def test_a_get_that_hits_does_no_io(tmp_path, monkeypatch):
    open_file(tmp_path).put(decision(), 1.0)
    file = open_file(tmp_path)
    file.get(problem())
    for name in ("lstat", "stat", "open", "read"):
        monkeypatch.setattr(os, name, None)
    assert file.get(problem()) == decision()


def test_a_get_does_not_import_filelock_or_platformdirs(tmp_path):
    import subprocess
    import sys

    open_file(tmp_path).put(decision(), 1.0)
    code = (
        "import sys; from pathlib import Path; from file_makers import open_file, problem;"
        f"assert open_file(Path({str(tmp_path)!r})).get(problem());"
        "assert not {'filelock', 'platformdirs'} & set(sys.modules), sys.modules"
    )
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=120
    )


def test_without_a_folder_decisions_last_for_the_process():
    file = open_file(None)
    assert not file.put(decision(), 1.0)
    assert file.get(problem()) == decision()
    assert file.all() == [decision()]
    assert file.forget(lambda _: True, 1.0) == 1
    assert file.get(problem()) is None


def test_one_object_for_each_folder_and_environment(tmp_path):
    assert decisions.opened(tmp_path, Machine()) is decisions.opened(tmp_path, Machine())
    assert decisions.opened(tmp_path, Machine()) is not decisions.opened(tmp_path / "b", Machine())
    assert decisions.opened(tmp_path, Machine()) is not decisions.opened(tmp_path, Machine("f" * 16))


def test_a_contended_or_incomplete_decision_is_final_by_its_third_tuning():
    assert decision().final
    assert [decision(contended=True, tunings=count).final for count in (1, 2, 3)] == [False, False, True]
    assert [decision(complete=False, tunings=count).final for count in (1, 2, 3)] == [False, False, True]


FINAL = decision(strategy="batched")
CASES = {
    "the first final decision stays": (FINAL, decision(), FINAL),
    "a re-tuning replaces it": (FINAL, decision(tunings=2), decision(tunings=2)),
    "a contended re-tuning does not": (FINAL, decision(tunings=2, contended=True), FINAL),
    "a conclusive one replaces a contended one": (
        decision(contended=True, tunings=2),
        decision(),
        decision(tunings=2),
    ),
    "newer contended replaces older": (
        decision(strategy="batched", contended=True),
        decision(contended=True),
        decision(contended=True),
    ),
    "more often tuned stays": (
        decision(strategy="batched", contended=True, tunings=2),
        decision(contended=True),
        decision(strategy="batched", contended=True, tunings=2),
    ),
    "three times contended is final": (
        decision(strategy="batched", contended=True, tunings=3),
        decision(contended=True, tunings=3),
        decision(strategy="batched", contended=True, tunings=3),
    ),
    "a later conclusive one replaces even that": (
        decision(strategy="batched", contended=True, tunings=3),
        decision(tunings=4),
        decision(tunings=4),
    ),
}


@pytest.mark.parametrize(("stored", "challenger", "kept"), CASES.values(), ids=CASES)
def test_who_wins_when_two_processes_decided_the_same_problem(tmp_path, stored, challenger, kept):
    late = open_file(tmp_path)
    late.all()  # it looked before the other saved
    open_file(tmp_path).put(stored, 1.0)
    late.put(challenger, 1.0)
    assert open_file(tmp_path).get(problem()) == kept
    assert late.get(problem()) == kept


def test_forgetting_removes_from_memory_and_file(tmp_path):
    file = open_file(tmp_path)
    for batch in (80, 81, 82):
        file.put(decision(batch), 1.0)
    assert file.forget(lambda p: p.batch != 81, 1.0) == 2
    assert file.unsaved == 0
    assert [d.problem.batch for d in file.all()] == [81]
    assert batches(tmp_path) == [81]


def test_what_was_forgotten_can_be_decided_again(tmp_path):
    file = open_file(tmp_path)
    file.put(decision(strategy="batched"), 1.0)
    file.forget(lambda _: True, 1.0)
    file.put(decision(), 1.0)
    assert open_file(tmp_path).get(problem()) == decision()


def test_neighbours_are_in_the_same_power_of_two_bucket_and_the_nearest_comes_first(tmp_path):
    file = open_file(tmp_path)
    for batch in (63, 64, 70, 100, 127, 128):
        file.put(decision(batch), 1.0)
    file.put(decision(101, n=4), 1.0)
    assert [d.problem.batch for d in file.neighbours(problem(100))] == [127, 70, 64]
    assert [d.problem.batch for d in open_file(tmp_path).neighbours(problem(71))] == [70, 64, 100, 127]


def test_neighbours_agree_in_all_but_the_batch(tmp_path):
    file = open_file(tmp_path)
    there = Problem("inv", ((90, 13, 3),), torch.float64, "cpu", 2)
    others = [problem(81, threads=1), problem(81, layout="transposed"), there]
    others.append(Problem("inv", ((81, 3, 3),), torch.float64, "cuda:0", 2))
    others.append(Problem("matmul", ((81, 3, 3), (81, 3, 3)), torch.float64, "cpu", 2))
    for other in others:
        file.put(decision(problem=other), 1.0)
    assert list(file.neighbours(problem(80))) == []


def test_batches_of_several_dimensions_are_neighbours_of_flat_ones(tmp_path):
    file = open_file(tmp_path)
    several = Problem("inv", ((10, 8, 3, 3),), torch.float64, "cpu", 2)
    file.put(decision(problem=several), 1.0)
    assert [d.problem for d in file.neighbours(problem(80))] == [several]


def test_each_operand_has_its_bucket(tmp_path):
    file = open_file(tmp_path)
    ones = Problem("matmul", ((1, 3, 3), (80, 3, 3)), torch.float64, "cpu", 2)
    many = Problem("matmul", ((81, 3, 3), (81, 3, 3)), torch.float64, "cpu", 2)
    file.put(decision(problem=ones), 1.0)
    asked = Problem("matmul", ((80, 3, 3), (80, 3, 3)), torch.float64, "cpu", 2)
    assert list(file.neighbours(asked)) == []
    file.put(decision(problem=many), 1.0)
    assert [d.problem for d in file.neighbours(asked)] == [many]


def test_each_operand_has_its_own_core_dims(tmp_path):
    def matrix_vector(batch: int, length: int) -> Problem:
        return Problem("matmul", ((batch, 3, length), (batch, length)), torch.float64, "cpu", 2)

    file = open_file(tmp_path)
    for batch, length in ((70, 3), (70, 4), (200, 3)):
        file.put(decision(problem=matrix_vector(batch, length)), 1.0)
    near = file.neighbours(matrix_vector(80, 3), core_dims=(2, 1))
    assert [d.problem for d in near] == [matrix_vector(70, 3)]
    assert list(file.neighbours(matrix_vector(80, 3))) == []


def test_a_bucket_is_all_but_the_batches_and_the_power_of_two_below_each():
    key = "matmul/80x3x3,10x80x3x3/float64/cpu/threads=2/contiguous,transposed"
    like = neighbours.bucket_of(key, (2, 2))
    assert neighbours.bucket_of(key.replace("80x3", "100x3"), (2, 2)) == like
    others = [key.replace("80x3", "128x3"), key.replace("10x80", "80"), key.replace("80x3x3,", "80x4x3,")]
    others += [key.replace("contiguous,transposed", "transposed,contiguous"), key.replace("=2", "=1")]
    assert [other for other in others if neighbours.bucket_of(other, (2, 2)) == like] == []
    assert neighbours.bucket_of(key, (2, 1)) != like


def test_a_bucket_holds_the_power_of_two_below_the_common_batch_too():
    keys = [
        f"matmul/{shapes}/float64/cpu/threads=2/contiguous,contiguous"
        for shapes in ("10x1x3x3,80x3x3", "1x10x3x3,8x10x3x3")
    ]
    assert neighbours.bucket_of(keys[0], (2, 2)) != neighbours.bucket_of(keys[1], (2, 2))  # 800 and 80


@pytest.mark.parametrize("key", ["inv", "inv/80x3x3", "inv/axbxc/float64", "matmul/3x3,3x3/float64"])
def test_what_cannot_be_cut_as_a_key_has_no_bucket(key):
    with pytest.raises(ValueError):
        neighbours.bucket_of(key, (2,))


def checked_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that fills with the key of each entry that is checked by a file opened from now on."""
    seen: list[str] = []

    def parse(key: str, entry: object) -> decisions.Decision:
        seen.append(key)
        return decisions.from_entry(key, entry)

    kind = copy.copy(decisions._KIND)
    kind.parse = parse
    monkeypatch.setattr(decisions, "_KIND", kind)
    return seen


def test_saves_check_each_entry_once(tmp_path, monkeypatch):
    other = open_file(tmp_path)
    seen = checked_keys(monkeypatch)
    file = open_file(tmp_path)
    for batch in (1, 2, 3):
        file.put(decision(batch), 1.0)
    other.put(decision(4), 1.0)
    for batch in (5, 6, 7):
        file.put(decision(batch), 1.0)
    assert sorted(seen) == [problem(batch).key for batch in range(1, 7)]


def test_only_the_neighbours_that_are_asked_for_are_checked(tmp_path, monkeypatch):
    open_file(tmp_path).put_all([decision(batch) for batch in range(1024, 1124)], 1.0)
    seen = checked_keys(monkeypatch)
    file = open_file(tmp_path)
    assert file.get(problem(5000)) is None
    assert next(file.neighbours(problem(1200))) == decision(1123)
    assert seen == [problem(1123).key]


def test_a_look_for_neighbours_cuts_each_key_once_whatever_is_put_meanwhile(tmp_path, monkeypatch):
    open_file(tmp_path).put_all([decision(batch) for batch in range(1024, 1124)], 1.0)
    file, seen = open_file(tmp_path), []
    place = neighbours._place
    monkeypatch.setattr(neighbours, "_place", lambda key, *rest: seen.append(key) or place(key, *rest))
    assert next(file.neighbours(problem(1200))) == decision(1123)
    file.put(decision(1201), 1.0)
    assert next(file.neighbours(problem(1200))) == decision(1201)
    assert set(seen) == {problem(batch).key for batch in (*range(1024, 1124), 1200, 1201)}
    assert len(seen) == 101 + 2


def test_neighbours_that_other_processes_save_and_forget_are_seen(tmp_path):
    file, other = open_file(tmp_path), open_file(tmp_path)
    file.put(decision(70), 1.0)
    assert [d.problem.batch for d in file.neighbours(problem(80))] == [70]
    other.put(decision(79), 1.0)
    assert [d.problem.batch for d in file.neighbours(problem(80))] == [79, 70]
    other.forget(lambda p: p.batch == 79, 1.0)
    assert [d.problem.batch for d in file.neighbours(problem(80))] == [70]
    file.forget(lambda p: p.batch == 70, 1.0)
    assert list(file.neighbours(problem(80))) == []


def test_neighbours_are_found_without_a_folder():
    file = open_file(None)
    assert list(file.neighbours(problem(80))) == []
    file.put(decision(70), 1.0)
    assert [d.problem.batch for d in file.neighbours(problem(80))] == [70]


def test_what_is_no_key_is_no_neighbour(tmp_path):
    good = problem(81).key
    odd = [good.replace("81", size) for size in ("082", "-82", "+82", "8_2", " 82", "", "82x", "٨٢")]
    near = neighbours.sorted_by_distance(problem(80), [*odd, "inv", f"inv/{'9' * 500}x3x3", good])
    assert near == [good]


def test_reasons_are_cleaned_so_that_the_next_reader_takes_them(tmp_path):
    file = open_file(tmp_path)
    file.put(decision(rejected={"bmm": "RuntimeError:\n\x1b[31mred\x00 " + "x" * 1000}), 1.0)
    found = open_file(tmp_path).get(problem())
    assert found is not None
    assert found.rejected["bmm"].startswith("RuntimeError: [31mred xxx")
    assert len(found.rejected["bmm"]) == 300


def test_past_the_limit_the_oldest_go_but_never_the_one_just_made(tmp_path, monkeypatch):
    monkeypatch.setattr(jsontext, "MAX_ENTRIES", 3)
    file = open_file(tmp_path)
    for batch, year in ((1, 2026), (2, 2024), (3, 2025), (4, 1970)):
        file.put(decision(batch, created=f"{year}-11-30T10:00:00Z"), 1.0)
    assert batches(tmp_path) == [1, 3, 4]


def test_a_file_never_grows_past_what_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(jsontext, "MAX_BYTES", 4000)
    file = open_file(tmp_path)
    for batch in range(1, 41):
        file.put(decision(batch, created=f"2026-11-30T10:00:{batch:02}Z"), 1.0)
        assert file.path.stat().st_size <= 4000
        assert batch in batches(tmp_path)
