"""The file of recorded problems: counts that add up, entries that are checked one by one, files that are left alone."""

from __future__ import annotations

import json
import os
import threading

import pytest

from autoinv.errors import AutoinvWarning
from autoinv.store import recorded

A, B = "inv/5x3x3/float32/cpu/threads=2/contiguous", "inv/4x2x2/float64/cpu/threads=1/transposed"


def write(path, problems, **more):
    path.write_text(json.dumps({"schema": 1, "problems": problems, **more}))


def test_counts_are_added_to_what_the_file_holds(tmp_path):
    path = tmp_path / "new folder" / "problems.json"
    assert recorded.add(path, {A: 2}, 5.0)
    assert recorded.add(path, {A: 3, B: 1}, 5.0)
    assert {A: 5, B: 1} == recorded.read(path)


def test_no_count_is_lost_when_threads_and_processes_add_at_once(tmp_path):
    path = tmp_path / "problems.json"
    adding = [threading.Thread(target=recorded.add, args=(path, {A: 1, B: 2}, 20.0)) for _ in range(8)]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert {A: 8, B: 16} == recorded.read(path)


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        (A, 3),
        (A, {}),
        (A, {"count": 0}),
        (A, {"count": True}),
        (A, {"count": 2.5}),
        (A, {"count": 10**18}),
        ("inv/5x3x3/float32/cpu/threads=2", {"count": 1}),
        ("inv/5x3x3/float16/cpu/threads=2/contiguous", {"count": 1}),
        ("x" * 500, {"count": 1}),
    ],
)
def test_a_bad_entry_is_left_out_with_a_warning_and_dropped_when_more_is_recorded(tmp_path, key, entry):
    path = tmp_path / "problems.json"
    write(path, {B: {"count": 7}, key: entry})
    with pytest.warns(AutoinvWarning, match="bad recorded problem"):
        assert {B: 7} == recorded.read(path)
    with pytest.warns(AutoinvWarning, match="bad recorded problem"):
        recorded.add(path, {B: 1}, 5.0)
    assert {B: {"count": 8}} == json.loads(path.read_text())["problems"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "some notes of mine", '{"schema": 1, "decisions": {}}', '{"schema": 9, "problems": {}}'],
)
def test_a_file_of_anything_else_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "mine.txt"
    path.write_text(text)
    for use in (recorded.read, recorded.check_target):
        with pytest.raises(ValueError, match=r"mine\.txt"):
            use(path)
    assert path.read_text() == text
    assert [path] == list(tmp_path.iterdir())


def test_a_folder_is_no_such_file_and_one_that_is_missing_can_be_made(tmp_path):
    with pytest.raises(ValueError, match="not a regular file"):
        recorded.check_target(tmp_path)
    recorded.check_target(tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        recorded.read(tmp_path / "new")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_a_file_that_others_can_write_is_read_but_not_added_to(tmp_path):
    path = tmp_path / "problems.json"
    write(path, {A: {"count": 1}})
    path.chmod(0o666)
    assert {A: 1} == recorded.read(path)
    with pytest.raises(ValueError, match="other users can write it"):
        recorded.check_target(path)


def test_what_cannot_be_saved_is_a_warning_that_names_the_file_and_what_to_do(tmp_path):
    path = tmp_path / "a file" / "problems.json"
    path.parent.write_text("in the way")
    with pytest.warns(AutoinvWarning, match=r"problems.json could not be saved .*Record into another file"):
        assert not recorded.add(path, {A: 1}, 5.0)
