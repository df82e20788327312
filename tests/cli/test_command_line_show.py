"""``show`` and ``explain``: what is known, as a table and as JSON."""

from __future__ import annotations

import json

import pytest
from file_makers import decision
from terminal import run, store

from autoinv import environment

FIELDS = [
    "op",
    "shape",
    "dtype",
    "device",
    "threads",
    "layout",
    "strategy",
    "seconds",
    "rejected",
    "pinned",
    "complete",
    "contended",
    "created",
]


def test_show_says_that_nothing_is_known_and_exits_with_0(capsys):
    result = run(capsys, "show")
    assert result.code == 0
    assert result.out.startswith("Nothing is known yet")


def test_show_json_is_exactly_the_documented_document(capsys):
    file = store(decision(80), decision(81, contended=True))
    document = json.loads(run(capsys, "show", "--json").out)
    assert list(document) == ["schema", "file", "environment", "decisions"]
    assert (1, str(file.path)) == (document["schema"], document["file"])
    assert environment.of("cpu").as_dict() == document["environment"]
    first, second = document["decisions"]
    assert list(first) == FIELDS
    assert first == {
        "op": "inv",
        "shape": "80x3x3",
        "dtype": "float64",
        "device": "cpu",
        "threads": 2,
        "layout": "contiguous",
        "strategy": "closed_form",
        "seconds": {"closed_form": 2.4e-5, "batched": 2.3e-5, "loop": 1.3e-3},
        "rejected": {"bmm": "residual 31 is over 4"},
        "pinned": False,
        "complete": True,
        "contended": False,
        "created": "2026-11-30T10:00:00Z",
    }
    assert second["contended"] is True


def test_show_json_merges_pins_into_decisions_and_lists_the_others(capsys):
    store(decision(80))
    run(capsys, "pin", "80x3x3", "bmm", "--dtype", "float64")
    run(capsys, "pin", "4x2x2", "loop", "--dtype", "float32")
    merged, alone = json.loads(run(capsys, "show", "--json").out)["decisions"]
    assert (merged["shape"], merged["strategy"], merged["pinned"]) == ("80x3x3", "bmm", True)
    assert merged["seconds"] == {"closed_form": 2.4e-5, "batched": 2.3e-5, "loop": 1.3e-3}
    assert list(alone) == FIELDS
    assert tuple(alone[name] for name in ("shape", "strategy", "pinned", "threads", "layout", "seconds")) == (
        "4x2x2",
        "loop",
        True,
        None,
        None,
        {},
    )


def test_show_of_one_device_leaves_out_the_others(capsys):
    run(capsys, "pin", "4x2x2", "loop", "--dtype", "float32")
    assert len(json.loads(run(capsys, "show", "--json", "--device", "cpu").out)["decisions"]) == 1


def test_show_draws_a_table_that_marks_the_chosen_strategy_and_names_the_unit(capsys):
    store(decision(80), decision(81, contended=True), decision(82, complete=False))
    result = run(capsys, "show")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].strip("[-] ") == "inv of float64 on cpu"
    assert lines[1].replace("|", " ").split() == ["batched", "closed_form", "loop"]
    assert lines[2].startswith("2 threads: ---")
    assert lines[3].replace("|", " ").split() == ["80x3x3", "23.0", "24.0*", "1300"]
    assert lines[4].split()[:2] == ["81x3x3", "~"]
    assert lines[5].split()[:2] == ["82x3x3", "?"]
    assert "Times are in microseconds (us) a call." in lines
    assert "\x1b" not in result.out


def test_explain_says_what_would_run_and_why_without_timing(capsys, monkeypatch):
    monkeypatch.setattr("autoinv.tuning.tuner.tune", lambda *a, **k: pytest.fail("it timed"))
    store(decision(80))
    known = run(capsys, "explain", "80x3x3", "--dtype", "float64", "--threads", 2)
    assert known.code == 0
    assert known.out.startswith(
        "inv of 80x3x3 float64 on cpu, 2 threads, contiguous: closed_form (remembered)"
    )
    unknown = run(
        capsys, "explain", "80x3x3", "--dtype", "float32,float64", "--threads", 1, "--layout", "strided"
    )
    assert unknown.out.count("1 thread, strided: native (the default, as nothing is known of it yet)") == 2
