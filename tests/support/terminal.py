"""The command line as a test gives it, and a stopwatch that makes tuning quick and repeatable."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from autoinv import environment, settings
from autoinv.store import decisions
from autoinv.store.decisions import Decision, DecisionsFile
from autoinv.tune import main
from autoinv.tuning.timing import Stopwatch


@dataclass(frozen=True)
class Result:
    """What a command returned and printed."""

    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> Result:
    """Run a command in this process."""
    capsys.readouterr()
    code = main([str(word) for word in argv])
    printed = capsys.readouterr()
    return Result(code, printed.out, printed.err)


def run_apart(*argv: object, timeout_s: float = 120, **variables: str) -> Result:
    """Run a command as a user does, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "autoinv.tune", *map(str, argv)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        env={**os.environ, **variables},
    )
    return Result(done.returncode, done.stdout, done.stderr)


class QuickStopwatch(Stopwatch):
    """Runs each call once, and reports three times the seconds for each new call."""

    def __init__(self) -> None:
        self._seen: list[object] = []

    def cpu_share(self, wall_s: float, thread_s: float) -> float:
        return 1.0

    def seconds(self, call, repeats: int) -> float:
        call()
        if call not in self._seen:
            self._seen.append(call)
        return 1e-6 * 3.0 ** self._seen.index(call)


@pytest.fixture
def quick(monkeypatch):
    """Tuning that needs no idle machine: every decision is complete, uncontended, and made in a few calls."""
    monkeypatch.setattr("autoinv.tuning.tuner.stopwatch_for", lambda device: QuickStopwatch())
    monkeypatch.setenv("AUTOINV_BUDGET", "20")


def cpu_file() -> DecisionsFile:
    """This process's decisions about the CPU."""
    return decisions.opened(settings.cache_dir(), environment.of("cpu"))


def store(*known: Decision) -> DecisionsFile:
    """Put decisions into this process's file, and on disk."""
    file = cpu_file()
    assert file.put_all(list(known), 5.0)
    return file
