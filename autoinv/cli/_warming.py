"""Tuning a list of problems, in this process or in a child that has another number of threads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from autoinv import api, settings
from autoinv.cli._arguments import FAILED, CommandError
from autoinv.planning import events
from autoinv.problem import Problem
from autoinv.store.decision import Decision, from_entry

_END_S = 10.0
"""How long a child that was told to end may take; it has at most a save to finish."""


@dataclass(frozen=True)
class Outcome:
    """What became of one problem: its decision, None where there was no time; tuned now, or known before."""

    problem: Problem
    decision: Decision | None
    tuned: bool

    def as_line(self) -> str:
        """Return one line of JSON, which a child writes to its parent."""
        entry = self.decision.entry() if self.decision else None
        return json.dumps({"key": self.problem.key, "entry": entry, "tuned": self.tuned})

    @classmethod
    def from_line(cls, line: str) -> Outcome:
        """Return the outcome that a line holds.

        Raises:
            ValueError: when it holds none.
        """
        read = json.loads(line)
        decision = from_entry(read["key"], read["entry"]) if read["entry"] else None
        return cls(Problem.parse(read["key"]), decision, bool(read["tuned"]))


def here(problems: Sequence[Problem], budget_s: float | None) -> Iterator[Outcome]:
    """Tune in this process, with the threads it has; yield each outcome when it is there."""
    heard: list[events.DecisionEvent] = []
    unsubscribe = events.on_decision(heard.append)
    try:
        for p in problems:
            heard.clear()
            found = api.warm(p.shape, op=p.op, dtype=p.dtype, device=p.device, budget=budget_s)
            yield Outcome(p, found[0] if found else None, any(event.tuned for event in heard))
    finally:
        unsubscribe()


def in_child(threads: int, arguments: Sequence[str]) -> Iterator[Outcome]:
    """Tune in a child process that starts with so many threads; yield each outcome when it is there.

    Changing the number in this process would not do: torch 2.13 then fails in batched LU.

    Raises:
        CommandError: when the child fails, with what it said last and its exit code.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "autoinv.tune", "warm", *arguments, "--threads", str(threads), "--worker"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            encoding="utf-8",
            env=_environment(threads),
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("{"):
                    yield Outcome.from_line(line)
                else:  # of a library's own, MKL's for one
                    print(line, end="", file=sys.stderr)
            code = child.wait()
        finally:
            _end(child)
        _pass_on(said, threads, code)


def _environment(threads: int) -> dict[str, str]:
    """Return the child's environment: its threads, the same modules, and what was configured here."""
    now, origins = settings.resolved()
    configured = {
        settings.variable(name): str(getattr(now, name))
        for name, origin in origins.items()
        if origin == "configure"
    }
    count = str(threads)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {
        **os.environ,
        **configured,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
    }


def _end(child: subprocess.Popen[str]) -> None:
    """See the child off: what it has finished is saved, what it is timing is given up."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if child.stdout:
        with contextlib.suppress(OSError):
            child.stdout.close()


def _pass_on(said: IO[str], threads: int, code: int) -> None:
    """Show what the child said on standard error; its last line is the reason when it failed."""
    said.seek(0)
    lines = said.read().splitlines()
    for line in lines[:-1] if code else lines:
        print(line, file=sys.stderr)
    if code:
        last = lines[-1].removeprefix("autoinv: ") if lines else f"it ended with exit code {code}"
        raise CommandError(f"tuning with {threads} threads failed: {last}", code if code > 0 else FAILED)
