"""The command line as a whole: help, bad input, failures, pipes, warnings."""

from __future__ import annotations

import subprocess
import sys

import pytest
from terminal import run, run_apart

import autoinv
from autoinv.cli import COMMANDS
from autoinv.errors import logger

NAMES = [command.name for command in COMMANDS]


def test_the_commands_are_the_documented_ones():
    first = ["warm", "run", "show", "explain", "pin", "unpin", "forget"]
    assert [*first, "export", "import", "verify", "prune", "doctor"] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_fits_80_columns_and_exits_with_0(name, capsys, monkeypatch):
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


def test_an_internal_failure_is_one_line_that_says_how_to_see_more(capsys, monkeypatch):
    monkeypatch.setattr("autoinv.api.files", lambda: 1 / 0)
    result = run(capsys, "show")
    assert result.code == 1
    assert (len(result.err.splitlines()), "AUTOINV_LOG=debug" in result.err) == (1, True)


def test_a_closed_pipe_is_not_reported_as_a_failure():
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


def test_the_log_setting_shows_the_traceback_of_a_failure(capsys, monkeypatch):
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
