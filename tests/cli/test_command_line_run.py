"""The command ``run``: a program runs as under Python itself, and what it met is said at the end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from terminal import run

from autoinv.api.recording import Tally
from autoinv.cli.run import report_lines
from autoinv.problem import Problem
from autoinv.store import recorded

PROGRAM = """
import atexit, sys, threading, torch
print(__name__, __file__, sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals())
A = torch.eye(3).repeat(5, 1, 1)
atexit.register(lambda: print("the program's own ending", torch.linalg.inv(A).shape))
def work():
    threading.Event().wait(0.2)  # the main program is over by then
    A.inverse()
threading.Thread(target=work).start()
torch.linalg.inv(A)
if len(sys.argv) > 1:
    exec(sys.argv[1])
"""
KEY = "inv/5x3x3/float32/cpu/threads="


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def both(folder, *arguments, options=()):
    """Run a program by Python itself and by the command; return both, ended."""
    ways = [[sys.executable], [sys.executable, "-m", "autoinv.tune", "run", *options]]
    started = [
        subprocess.Popen(
            [*way, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for way in ways
    ]
    return [
        subprocess.CompletedProcess(each.args, each.returncode, out, err)
        for each in started
        for out, err in [each.communicate(timeout=120)]
    ]


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "sys.exit(3)",
        "sys.exit('a last word')",
        "1 / 0",
        "raise KeyboardInterrupt",
        "sys.excepthook = lambda *e: print('its own hook', e[0], e[2].tb_frame.f_code.co_filename)\n1 / 0",
    ],
)
def test_a_program_ends_as_under_python_itself_and_all_threads_calls_are_reported(program, ending):
    plain, ours = both(program.parent, "program.py", ending)
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode
    head, report = ours.stderr[: len(plain.stderr)], ours.stderr[len(plain.stderr) :]
    assert head == plain.stderr
    assert report.startswith("autoinv: 3 calls of 1 problem in ")
    assert KEY in report


def test_a_module_a_folder_and_what_does_not_compile_run_as_under_python_itself(program):
    folder = program.parent
    (folder / "bad.py").write_text("x = (\n")
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text(PROGRAM.replace("import atexit", "import atexit, helper"))
    (folder / "app" / "helper.py").write_text("")
    for arguments in (
        ("-m", "program", "pass", "--help"),
        ("-m", "nowhere"),
        ("app", "pass", "--", "-m"),
        ("bad.py",),
    ):
        plain, ours = both(folder, *arguments)
        assert ours.stdout == plain.stdout
        assert ours.returncode == plain.returncode
        assert ours.stderr.startswith(plain.stderr)
        assert "autoinv: " in ours.stderr[len(plain.stderr) :]


def test_the_problems_are_added_to_a_file_also_when_the_program_fails(program):
    path = program.parent / "problems.json"
    for ending in ("pass", "1 / 0"):
        _, ours = both(program.parent, "program.py", ending, options=("--record", "problems.json"))
        assert f"the problems were added to {path}" in ours.stderr
    ((key, count),) = recorded.read(path).items()
    assert (key.startswith(KEY), count) == (True, 6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_that_was_forked_prints_no_report(tmp_path):
    (tmp_path / "program.py").write_text(
        "import os, torch\ntorch.eye(3).inverse()\nif child := os.fork():\n    os.waitpid(child, 0)\n"
    )
    _, ours = both(tmp_path, "program.py")
    assert ours.stderr.count("1 call of 1 problem") == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "run needs a program"),
        (("-m",), "run needs a program"),
        (("nowhere.py",), "there is no such file"),
        (("--record", ".", "nowhere.py"), "there is no such file"),
        (("--record", ".", __file__), "not a regular file"),
        (("--record", "FOREIGN", __file__), "no file of recorded problems"),
    ],
)
def test_what_cannot_be_run_or_recorded_is_said_before_anything_runs(capsys, tmp_path, arguments, why):
    foreign = tmp_path / "foreign.json"
    foreign.write_text("{}")
    foreign.chmod(0o600)  # whatever the umask is: what others can write is refused for that
    result = run(capsys, "run", *[str(foreign) if word == "FOREIGN" else word for word in arguments])
    assert (result.code, result.out) == (2, "")
    assert why in result.err
    assert result.err.count("\n") == 1


def tally(calls, samples=0, own_s=0.0, torch_s=0.0):
    made = Tally(0.0)
    made.calls, made.samples, made.own_s, made.torch_s = calls, samples, own_s, torch_s
    return made


def problem(batch):
    return Problem.parse(f"inv/{batch}x3x3/float32/cpu/threads=2/contiguous")


def test_the_report_grows_the_timed_calls_to_all_and_says_what_was_saved():
    tallies = {problem(5): tally(10), problem(7): tally(1000, 20, 0.02, 0.2), problem(9): tally(0)}
    lines = report_lines(tallies, 9.0, 0.05)
    assert lines == [
        "autoinv: 1,010 calls of 2 problems in 9 s",
        "         calls    PyTorch    autoinv  problem",
        "         1,000       10 s        1 s  inv/7x3x3/float32/cpu/threads=2/contiguous",
        "            10          -          -  inv/5x3x3/float32/cpu/threads=2/contiguous",
        "autoinv: - stands where no call could be timed within a hundredth of the run",
        "autoinv: PyTorch would have taken 10 s and autoinv took 1 s, by 20 calls timed both ways",
        "autoinv: choosing strategies took 50 ms, once: they are remembered",
        "autoinv: it saved 9 s, 50 % of the 18 s that the program would have taken",
    ]


@pytest.mark.parametrize(
    ("tallies", "verdict"),
    [
        ({}, "the program met no problem"),
        ({problem(5): tally(3)}, "no call could be timed"),
        ({problem(5): tally(30, 30, 0.1, 0.15)}, "not worth it here: it saved 50 ms of 9 s"),
        ({problem(5): tally(30, 30, 0.2, 0.1)}, "not worth it here: it saved nothing of 9 s"),
    ],
)
def test_the_report_says_when_it_is_not_worth_it_or_unknown(tallies, verdict):
    lines = report_lines(tallies, 9.0, 0.0)
    assert lines[-1].startswith(f"autoinv: {verdict}")
    assert all(any(p.key in line for line in lines) for p in tallies)


def test_the_report_of_many_problems_lists_the_most_expensive():
    tallies = {problem(5 + i): tally(2, 1, 1e-4, 1e-3 * i) for i in range(40)}
    lines = report_lines(tallies, 9.0, 0.0)
    listed = [line for line in lines if "inv/" in line]
    assert len(listed) == 30
    assert "inv/44x3x3" in listed[0]
    assert any("10 problems more" in line and line.split()[0] == "20" for line in lines)
