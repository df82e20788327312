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
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import torch

from autoinv import api, settings
from autoinv.api.explaining import format_seconds
from autoinv.api.problems import SAVE_WAIT_S, problem_of
from autoinv.cli._arguments import add_problem, budget, counts, problems, seconds
from autoinv.cli._command import DONE, FAILED, INTERRUPTED, NOT_FINAL, NOT_SAVED, Command, CommandError
from autoinv.cli._known import merged
from autoinv.cli._progress import progress
from autoinv.cli._table import draw
from autoinv.ops.table import operation_call
from autoinv.planning import events
from autoinv.problem import Problem, format_shapes
from autoinv.store import pins, recorded
from autoinv.store.decisions import Decision, from_entry


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_problem(parser, several=True)
    parser.add_argument(
        "--from",
        dest="recorded",
        metavar="FILE",
        type=Path,
        help="tune the problems that `run --record` or autoinv.record wrote there, the most frequent first",
    )
    parser.add_argument(
        "--threads",
        type=counts,
        metavar="T[,T]",
        help="how many threads torch has in the programs to come: OMP_NUM_THREADS, or what "
        "torch.get_num_threads() says there (default: what it says here; with --from what it said where the problem "
        "was recorded, if that is no more than here)",
    )
    parser.add_argument(
        "--budget",
        type=budget,
        metavar="S",
        help="seconds that each problem may take (default: AUTOINV_BUDGET)",
    )
    parser.add_argument(
        "--until-final",
        action="store_true",
        help="tune each problem again until its decision is complete and was timed on a quiet processor; exit "
        "code 3 where the time limit ends that",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="S",
        default=60.0,
        help="seconds that --until-final may take in all, such as 60 or 60s (default: 60)",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.05, 2.0
"""Between two tunings of a problem with --until-final."""
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
    wanted = _wanted(options)
    ends_s = time.monotonic() + options.time_limit if options.until_final else None
    if options.worker:
        return _work(wanted, options, ends_s)
    report = _Report()
    with progress(len(wanted)) as report_progress:
        try:
            for outcome in _outcomes(wanted, options.budget, ends_s):
                report.outcomes.append(outcome)
                report_progress(_in_words(outcome))
        except KeyboardInterrupt:
            report.is_interrupted = True
        except CommandError as error:
            report.failure = error
    return _end(report, _saved(), options.until_final)


def _work(wanted: Sequence[Problem], options: argparse.Namespace, ends_s: float | None) -> int:
    """Be the child that tunes with another number of threads: one line of JSON for each outcome."""
    asked, got = options.threads[0], torch.get_num_threads()
    if got != asked:
        raise CommandError(
            f"torch takes {got} threads here when OMP_NUM_THREADS={asked}, so there is no such problem"
        )
    try:
        for outcome in _here(wanted, options.budget, ends_s):
            print(outcome.as_line(), flush=True)
    finally:
        is_saved = _saved()
    return DONE if is_saved else _not_saved()


def _wanted(options: argparse.Namespace) -> list[Problem]:
    """Return the problems that shapes name and those of the file, each once.

    Raises:
        CommandError: when there are none, or the file cannot be used.
    """
    own = torch.get_num_threads()
    found = [replace(p, threads=count) for count in options.threads or [own] for p in problems(options)]
    if options.recorded:
        for p in _recorded(options.recorded):
            counts = options.threads or [min(p.threads, own)]
            found += [replace(p, threads=count) for count in counts]
    elif not options.shapes:
        raise CommandError("name a shape, such as 10x8x3x3, or a file of recorded problems by --from")
    return list(dict.fromkeys(found))


def _recorded(path: Path) -> list[Problem]:
    """Return the problems in a file that this machine can tune, the most frequent first; name the others."""
    try:
        counts = recorded.read(path)
    except FileNotFoundError:
        raise CommandError(
            f"{path} does not exist: `run --record` or autoinv.record write such a file"
        ) from None
    except ValueError as error:
        raise CommandError(str(error)) from None
    found = []
    for key in sorted(counts, key=lambda key: -counts[key]):
        p = Problem.parse(key)
        try:
            problem_of(p.shapes, p.op, p.dtype, p.device, p.layouts)
        except ValueError as error:
            print(f"autoinv: {key} is left out: {error}", file=sys.stderr)
        else:
            found.append(p)
    return found


def _outcomes(wanted: Sequence[Problem], budget_s: float | None, ends_s: float | None) -> Iterator[Outcome]:
    by_threads: dict[int, list[Problem]] = {}
    for p in wanted:
        by_threads.setdefault(p.threads, []).append(p)
    for threads, those in by_threads.items():
        is_own = threads == torch.get_num_threads()
        yield from (_here(those, budget_s, ends_s) if is_own else _in_child(threads, those, budget_s, ends_s))


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


def _end(report: _Report, is_saved: bool, until_final: bool) -> int:
    """Print what came out, and return the exit code."""
    found = [outcome.decision for outcome in report.outcomes if outcome.decision]
    if found:
        draw(merged(found, pins.opened_pins(settings.cache_dir()).entries(), alone=False))
    untimed = [outcome.problem for outcome in report.outcomes if outcome.decision is None]
    for problem in untimed:
        print(f"autoinv: {problem.key} is not tuned, for the reason above", file=sys.stderr)
    if report.is_interrupted:
        what = f"{len(found)} decision{'s' if len(found) != 1 else ''} {'kept' if is_saved else 'not saved'}"
        print(f"autoinv: interrupted; {what}", file=sys.stderr)
        return INTERRUPTED
    if report.failure:
        raise report.failure
    if not is_saved:
        return _not_saved()
    if until_final:
        unfinished = [d for d in found if not d.conclusive]
        for decision in unfinished:
            why = "timed on a busy processor" if decision.contended else "incomplete"
            print(f"autoinv: {decision.problem.key} is not final: {why}", file=sys.stderr)
        if unfinished or untimed:
            return NOT_FINAL
    return FAILED if untimed else DONE


def _here(
    problems: Sequence[Problem], budget_s: float | None, ends_s: float | None = None
) -> Iterator[Outcome]:
    """Tune in this process, with the threads it has; yield each outcome when it is there.

    Until ``ends_s`` a problem is tuned again and again, till its decision is conclusive.
    """
    met: list[events.DecisionEvent] = []
    unsubscribe = events.on_decision(met.append)
    try:
        for p in problems:
            met.clear()
            found = api.warm_problems([p], budget_s)
            pause_s = _LEAST_PAUSE_S
            while ends_s is not None and not (found and found[0].conclusive):
                if time.monotonic() + pause_s > ends_s:
                    break
                time.sleep(pause_s)  # what disturbs may pass
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
                if found and found[0].final:  # tuned as often as a program would; only `forget` makes it anew
                    _forget(p)
                found = api.warm_problems([p], budget_s) or found
            yield Outcome(p, found[0] if found else None, any(event.tuned for event in met))
    finally:
        unsubscribe()


def _forget(problem: Problem) -> None:
    planner = operation_call(problem.op).dispatcher.planner
    planner.file(problem).forget(lambda other: other == problem, SAVE_WAIT_S)
    planner.forget(lambda other: other == problem)


def _in_child(
    threads: int, problems: Sequence[Problem], budget_s: float | None, ends_s: float | None
) -> Iterator[Outcome]:
    """Tune in a child process that starts with so many threads; yield each outcome when it is there.

    Changing the number in this process would not do: torch 2.13 then fails in batched LU.

    Raises:
        CommandError: when the child fails, with what it errors last and its exit code.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
    ):
        # In order: the first is the most frequent.
        counts = {p.key: count for count, p in enumerate(reversed(problems), start=1)}
        listed = Path(folder, "problems.json")
        recorded.add(listed, counts, SAVE_WAIT_S)
        arguments = ["--from", str(listed), "--threads", str(threads), "--worker"]
        if budget_s is not None:
            arguments += ["--budget", repr(budget_s)]
        if ends_s is not None:
            left_s = max(0.0, ends_s - time.monotonic())
            arguments += ["--until-final", "--time-limit", f"{left_s:.3f}"]
        child = subprocess.Popen(
            [sys.executable, "-m", "autoinv.tune", "warm", *arguments],
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
    "process of its own. "
    "Exit code 3: with --until-final, some are not final. Exit code 4: the decisions could "
    "not be saved. Ctrl-C keeps what was finished, exit "
    "code 130.\n\n"
    "example: python -m autoinv.tune warm 10x8x3x3 1000x4x4 --dtype float32,float64 --threads 1,2",
)
