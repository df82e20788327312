"""Every command but warm: what it prints, what it changes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from file_makers import decision, problem
from terminal import cpu_file, run, run_apart, store

import autoinv
from autoinv import environment, pins
from autoinv.commands import COMMANDS
from autoinv.errors import logger

NAMES = [command.name for command in COMMANDS]
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


def test_the_commands_are_those_that_the_readme_lists():
    first = ["warm", "show", "explain", "pin", "unpin", "forget"]
    assert [*first, "export", "import", "verify", "prune", "doctor"] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_fits_80_columns_and_ends_well(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run(capsys, name, "--help")
    assert (result.code, result.err) == (0, "")
    too_wide = [
        line for line in result.out.splitlines() if len(line) > 80 and not line.startswith(("example", "   "))
    ]
    assert too_wide == []


BAD = {
    "no command": (),
    "an unknown command": ("frobnicate",),
    "an unknown option": ("show", "--frobnicate"),
    "no shape": ("explain",),
    "a shape of letters": ("explain", "10y3x3"),
    "a shape that is not square": ("warm", "10x3x4"),
    "a vector": ("warm", "3"),
    "an empty batch": ("warm", "0x3x3"),
    "a huge number": ("explain", "9" * 30 + "x3x3"),
    "an unknown dtype": ("warm", "3x3", "--dtype", "float32,half"),
    "an unknown device": ("explain", "3x3", "--device", "mars"),
    "a device that is not here": ("explain", "3x3", "--device", "meta"),
    "an unknown operation": ("warm", "3x3", "--op", "cross"),
    "no threads": ("warm", "3x3", "--threads", "0"),
    "threads in words": ("explain", "3x3", "--threads", "two"),
    "a budget that is no number": ("warm", "3x3", "--budget", "nan"),
    "a negative budget": ("warm", "3x3", "--budget=-1"),
    "an unknown strategy": ("pin", "3x3", "frobnicate"),
    "a strategy that does not support the shape": ("pin", "100x5x5", "einsum"),
    "neither a shape nor all": ("forget",),
    "both a shape and all": ("forget", "3x3", "--all", "--yes"),
    "all without a terminal": ("forget", "--all"),
    "prune without a terminal": ("prune",),
    "a device to forget that there is not": ("forget", "3x3", "--device", "mars"),
    "a file to import that is not there": ("import", "nowhere/to/be.found"),
    "a file to verify that is not there": ("verify", "nowhere/to/be.found"),
    "a folder to export to": ("export", "/"),
    "a device to export to": ("export", "/dev/null"),
    "a file below a file": ("export", "/dev/null/export.json"),
    "decisions of a device that is not here": ("export", "x.json", "--device", "mars"),
    "shown, a device that is not here": ("show", "--device", "meta"),
}


@pytest.mark.parametrize("argv", BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_line_and_exit_code_2(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(capsys, *argv)
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert result.err.startswith("autoinv: ")
    assert list(tmp_path.iterdir()) == []


def test_nothing_known_is_said_so_and_is_no_error(capsys):
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
    run(capsys, "pin", "4x2x2", "loop")
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
    run(capsys, "pin", "4x2x2", "loop")
    assert len(json.loads(run(capsys, "show", "--json", "--device", "cpu").out)["decisions"]) == 1


def test_show_draws_a_table_with_the_chosen_one_marked_and_the_unit_said(capsys):
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
    monkeypatch.setattr("autoinv.tuner.tune", lambda *a, **k: pytest.fail("it timed"))
    store(decision(80))
    known = run(capsys, "explain", "80x3x3", "--dtype", "float64", "--threads", 2)
    assert known.code == 0
    assert known.out.startswith(
        "inv of 80x3x3 float64 on cpu, 2 threads, contiguous: closed_form (remembered)"
    )
    unknown = run(
        capsys, "explain", "80x3x3", "--dtype", "float32,float64", "--threads", 1, "--layout", "strided"
    )
    assert unknown.out.count("1 thread, strided: batched (nothing is known of it yet)") == 2


def test_pin_holds_in_this_process_and_on_disk_until_unpin(capsys, private_cache_dir):
    A = torch.zeros(5, 3, 3)
    result = run(capsys, "pin", "5x3x3", "bmm")
    assert (result.code, result.out) == (0, "inv/5x3x3/float32/cpu is pinned to bmm\n")
    assert (autoinv.explain(A).source, autoinv.explain(A).strategy) == ("pin", "bmm")
    assert pins.PinsFile(private_cache_dir).all() == {"inv/5x3x3/float32/cpu": "bmm"}
    assert "is no longer pinned" in run(capsys, "unpin", "5x3x3").out
    assert "was not pinned" in run(capsys, "unpin", "5x3x3").out
    assert pins.PinsFile(private_cache_dir).all() == {}


def test_a_strategy_that_one_dtype_does_not_support_pins_none(capsys, private_cache_dir):
    result = run(capsys, "pin", "5x3x3", "native", "--dtype", "float32,complex64")
    assert result.code == 2
    assert pins.PinsFile(private_cache_dir).all() == {}


def test_a_pin_that_cannot_be_saved_exits_with_4(capsys, tmp_path):
    (tmp_path / "file").touch()
    with autoinv.using(cache_dir=tmp_path / "file"):
        result = run(capsys, "pin", "5x3x3", "bmm")
        assert result.code == 4
        assert "could not be saved" in result.err
        assert "Traceback" not in result.err


def test_forget_takes_one_shape_and_all_takes_the_rest(capsys):
    store(decision(80), decision(81), decision(82))
    assert run(capsys, "forget", "81x3x3").out == "1 decision forgotten\n"
    assert run(capsys, "forget", "80x3x3", "--dtype", "float32").out == "0 decisions forgotten\n"
    assert [d.problem.batch for d in cpu_file().all()] == [80, 82]
    assert run(capsys, "forget", "--all", "--yes").out == "2 decisions forgotten\n"
    assert cpu_file().all() == []


class Terminal:
    """A person at a terminal, who answers."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return f"{self._answer}\n"


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("", 2, 1), ("no", 2, 1)])
def test_at_a_terminal_the_person_is_asked(answer, code, left, capsys, monkeypatch):
    store(decision(80))
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    result = run(capsys, "forget", "--all")
    assert code == result.code
    assert "[y/N]" in result.err
    assert left == len(cpu_file().all())


def test_an_export_comes_back_byte_for_byte(capsys, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    store(decision(80), decision(81, contended=True))
    run(capsys, "pin", "80x3x3", "bmm")
    said = run(capsys, "export", first).out
    assert f"2 decisions and 1 pin written to {first}\n" == said
    run(capsys, "forget", "--all", "--yes")
    run(capsys, "unpin", "80x3x3")
    assert f"2 decisions and 1 pin taken from {first}\n" == run(capsys, "import", first).out
    run(capsys, "export", second)
    assert first.read_bytes() == second.read_bytes()


def test_an_export_replaces_an_export_and_nothing_else_unasked(capsys, tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("a letter")
    assert run(capsys, "export", precious).code == 2
    assert precious.read_text() == "a letter"
    assert run(capsys, "export", precious, "--yes").code == 0
    assert run(capsys, "export", precious).code == 0


def test_an_import_of_another_environment_is_asked_for(capsys, tmp_path):
    store(decision(80))
    path = tmp_path / "export.json"
    run(capsys, "export", path)
    run(capsys, "forget", "--all", "--yes")
    path.write_text(path.read_text().replace(torch.__version__, "1.0.0"))
    refused = run(capsys, "import", path)
    assert refused.code == 2
    assert "--any-environment" in refused.err
    assert cpu_file().all() == []
    assert run(capsys, "import", path, "--any-environment").code == 0
    assert [d.problem.batch for d in cpu_file().all()] == [80]


def test_one_bad_entry_and_nothing_is_imported_and_verify_exits_with_5(capsys, tmp_path):
    store(decision(80), decision(81))
    path = tmp_path / "export.json"
    run(capsys, "export", path)
    run(capsys, "forget", "--all", "--yes")
    assert run(capsys, "verify", path).code == 0
    path.write_text(path.read_text().replace('"rounds": 24', '"rounds": -1', 1))
    refused = run(capsys, "import", path)
    assert refused.code == 2
    assert problem(80).key in refused.err
    assert cpu_file().all() == []
    verified = run(capsys, "verify", path)
    assert verified.code == 5
    assert problem(80).key in verified.out


def test_verify_looks_at_all_files_of_the_folder(capsys, private_cache_dir):
    assert "no files yet" in run(capsys, "verify").out
    store(decision(80))
    run(capsys, "pin", "5x3x3", "bmm")
    good = run(capsys, "verify")
    assert (good.code, good.out.count(": good")) == (0, 2)
    (private_cache_dir / "pins-v1.json").write_text("{")
    assert run(capsys, "verify").code == 5


def test_prune_removes_dead_environments_only(capsys, private_cache_dir):
    file = store(decision(80))
    dead = private_cache_dir / "decisions-v1-0123456789abcdef.json"
    dead.write_text("{}")
    assert f"would remove {dead}\n" == run(capsys, "prune", "--dry-run").out
    assert dead.exists()
    assert run(capsys, "prune").code == 2
    assert dead.exists()
    assert f"removed {dead}\n" == run(capsys, "prune", "--yes").out
    assert (dead.exists(), file.path.exists()) == (False, True)
    assert run(capsys, "prune", "--yes").out == "nothing to remove\n"


def test_a_failure_of_ours_is_one_line_that_says_how_to_see_more(capsys, monkeypatch):
    monkeypatch.setattr("autoinv.api.files", lambda: 1 / 0)
    result = run(capsys, "show")
    assert result.code == 1
    assert (len(result.err.splitlines()), "AUTOINV_LOG=debug" in result.err) == (1, True)


def test_a_reader_that_has_seen_enough_is_no_failure():
    command = [sys.executable, "-m", "autoinv.tune", "show", "--json"]
    shown = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shown.stdout.close()
    err = shown.stderr.read()
    assert (shown.wait(60), err) == (141, "")


def test_a_bad_environment_variable_is_a_warning_in_one_line():
    result = run_apart("show", AUTOINV_MODE="fast")
    assert result.code == 0
    assert len(result.err.splitlines()) == 1
    assert "AUTOINV_MODE is ignored" in result.err


def test_the_version_is_printed(capsys):
    assert f"autoinv {autoinv.__version__}\n" == run(capsys, "--version").out


def test_the_log_setting_shows_where_a_failure_came_from(capsys, monkeypatch):
    monkeypatch.setattr("autoinv.api.files", lambda: 1 / 0)
    level = logger.level
    with autoinv.using(log="debug"):
        result = run(capsys, "show")
    logger.setLevel(level)
    assert "ZeroDivisionError" in result.err
    assert "Traceback" in result.err


def test_rich_is_imported_by_commands_that_draw_and_by_no_other():
    code = """
import sys
from autoinv.tune import main
main(["explain", "3x3"])
print("rich" in sys.modules)
main(["pin", "3x3", "loop"])
main(["show"])
print("rich" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert [line for line in done.stdout.splitlines() if line in ("True", "False")] == ["False", "True"], (
        done.stderr
    )
