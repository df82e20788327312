"""``warm``: tune shapes ahead of time, so that no program spends its own time on it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import torch

from autoinv import api, settings
from autoinv.api.explaining import format_seconds
from autoinv.api.problems import SAVE_WAIT_S
from autoinv.cli._arguments import add_problem, budget, counts, problems
from autoinv.cli._command import DONE, FAILED, INTERRUPTED, NOT_SAVED, Command, CommandError
from autoinv.cli._known import merged
from autoinv.cli._progress import progress
from autoinv.cli._table import draw
from autoinv.planning import events
from autoinv.problem import Problem, format_shapes
from autoinv.store import pins
from autoinv.store.decisions import Decision, from_entry


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_problem(parser, several=True)
    parser.add_argument(
        "--threads",
        type=counts,
        metavar="T[,T]",
        help="how many threads torch has in the programs to come: OMP_NUM_THREADS, or what "
        "torch.get_num_threads() says there (default: what it says here)",
    )
    parser.add_argument(
        "--budget",
        type=budget,
        metavar="S",
        help="seconds that each problem may take (default: AUTOINV_BUDGET)",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


_END_S = 10.0
"""How long a child that was asked to end may take; it has at most a save to finish."""


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


@dataclass
class _Report:
    """What has come out so far, and how it ended."""

    outcomes: list[Outcome] = field(default_factory=list)
    is_interrupted: bool = False
    failure: CommandError | None = None


def _run(options: argparse.Namespace) -> int:
    mode = settings.current().mode
    if mode != "tune":
        raise CommandError(f"warm times strategies, and mode is {mode!r}: unset AUTOINV_MODE")
    wanted = problems(options)
    if options.worker:
        return _work(wanted, options)
    report = _Report()
    thread_counts = options.threads or [torch.get_num_threads()]
    with progress(len(thread_counts) * len(wanted)) as report_progress:
        try:
            for outcome in _outcomes(wanted, thread_counts, options):
                report.outcomes.append(outcome)
                report_progress(_in_words(outcome))
        except KeyboardInterrupt:
            report.is_interrupted = True
        except CommandError as error:
            report.failure = error
    return _end(report, _saved())


def _work(wanted: Sequence[Problem], options: argparse.Namespace) -> int:
    """Be the child that tunes with another number of threads: one line of JSON for each outcome."""
    asked, got = options.threads[0], torch.get_num_threads()
    if got != asked:
        raise CommandError(
            f"torch takes {got} threads here when OMP_NUM_THREADS={asked}, so there is no such problem"
        )
    try:
        for outcome in _here(wanted, options.budget):
            print(outcome.as_line(), flush=True)
    finally:
        is_saved = _saved()
    return DONE if is_saved else _not_saved()


def _outcomes(
    wanted: Sequence[Problem], thread_counts: Sequence[int], options: argparse.Namespace
) -> Iterator[Outcome]:
    own = torch.get_num_threads()
    arguments = [
        *options.shapes,
        "--dtype",
        ",".join(options.dtype),
        "--device",
        options.device,
        "--op",
        options.op,
    ]
    if options.budget is not None:
        arguments += ["--budget", repr(options.budget)]
    for threads in thread_counts:
        yield from _here(wanted, options.budget) if threads == own else _in_child(threads, arguments)


def _in_words(outcome: Outcome) -> str:
    p, decision = outcome.problem, outcome.decision
    what = f"{format_shapes(p.shapes)} {p.dtype_name}, {p.threads} thread{'s' if p.threads != 1 else ''}"
    if decision is None:
        return f"{what}: not tuned"
    time = (
        format_seconds(decision.seconds[decision.strategy]) if decision.strategy in decision.seconds else "?"
    )
    return f"{what}: {decision.strategy}, {time}{'' if outcome.tuned else ' (known before)'}"


def _saved() -> bool:
    """Save what could not be saved within the budget; return whether all is."""
    waiting = [file for file in api.files() if file.unsaved]
    done = [
        file.put_all([], SAVE_WAIT_S) for file in waiting
    ]  # a list: one that fails keeps none from trying
    return all(done)


def _not_saved() -> int:
    print(
        "autoinv: the decisions could not be saved; `python -m autoinv.tune doctor` says more",
        file=sys.stderr,
    )
    return NOT_SAVED


def _end(report: _Report, is_saved: bool) -> int:
    """Print what came out, and return the exit code."""
    found = [outcome.decision for outcome in report.outcomes if outcome.decision]
    if found:
        draw(merged(found, pins.opened_pins(settings.cache_dir()).entries(), alone=False))
    untimed = [outcome.problem for outcome in report.outcomes if outcome.decision is None]
    for problem in untimed:
        print(f"autoinv: no time to tune {problem.key}; give a larger --budget", file=sys.stderr)
    if report.is_interrupted:
        what = f"{len(found)} decision{'s' if len(found) != 1 else ''} {'kept' if is_saved else 'not saved'}"
        print(f"autoinv: interrupted; {what}", file=sys.stderr)
        return INTERRUPTED
    if report.failure:
        raise report.failure
    if not is_saved:
        return _not_saved()
    return FAILED if untimed else DONE


def _here(problems: Sequence[Problem], budget_s: float | None) -> Iterator[Outcome]:
    """Tune in this process, with the threads it has; yield each outcome when it is there."""
    met: list[events.DecisionEvent] = []
    unsubscribe = events.on_decision(met.append)
    try:
        for p in problems:
            met.clear()
            found = api.warm(p.shapes, op=p.op, dtype=p.dtype, device=p.device, budget=budget_s)
            yield Outcome(p, found[0] if found else None, any(event.tuned for event in met))
    finally:
        unsubscribe()


def _in_child(threads: int, arguments: Sequence[str]) -> Iterator[Outcome]:
    """Tune in a child process that starts with so many threads; yield each outcome when it is there.

    Changing the number in this process would not do: torch 2.13 then fails in batched LU.

    Raises:
        CommandError: when the child fails, with what it errors last and its exit code.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "autoinv.tune", "warm", *arguments, "--threads", str(threads), "--worker"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=_child_environment(threads),
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
            _stop(child)
        _pass_on(errors, threads, code)


def _child_environment(threads: int) -> dict[str, str]:
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


def _stop(child: subprocess.Popen[str]) -> None:
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


def _pass_on(errors: IO[str], threads: int, code: int) -> None:
    """Show what the child errors on standard error; its last line is the reason when it failed."""
    errors.seek(0)
    lines = errors.read().splitlines()
    for line in lines[:-1] if code else lines:
        print(line, file=sys.stderr)
    if code:
        last = lines[-1].removeprefix("autoinv: ") if lines else f"it ended with exit code {code}"
        raise CommandError(f"tuning with {threads} threads failed: {last}", code if code > 0 else FAILED)


COMMAND = Command(
    "warm",
    "tune shapes now, so that no program has to",
    _add_arguments,
    _run,
    "Each shape is tuned for each dtype and thread count, and the decisions are kept. What is final is not "
    "timed again; forget it first to have it so. A thread count other than this process's is tuned in a "
    "process of its own. Exit code 4: the decisions could not be saved. Ctrl-C keeps what was finished, exit "
    "code 130.\n\n"
    "example: python -m autoinv.tune warm 10x8x3x3 1000x4x4 --dtype float32,float64 --threads 1,2",
)
