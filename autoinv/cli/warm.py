"""``warm``: tune shapes ahead of time, so that no program spends its own time on it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from autoinv import api, settings
from autoinv.api.problems import SAVE_WAIT_S
from autoinv.api.report import format_seconds
from autoinv.cli._arguments import (
    DONE,
    FAILED,
    INTERRUPTED,
    NOT_SAVED,
    CommandError,
    add_problem,
    budget,
    counts,
    problems,
)
from autoinv.cli._command import Command
from autoinv.cli._draw import draw
from autoinv.cli._known import merged
from autoinv.cli._progress import progress
from autoinv.cli._warming import Outcome, here, in_child
from autoinv.problem import Problem, format_shape
from autoinv.store import pins


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
    teams = options.threads or [torch.get_num_threads()]
    with progress(len(teams) * len(wanted)) as tell:
        try:
            for outcome in _outcomes(wanted, teams, options):
                report.outcomes.append(outcome)
                tell(_in_words(outcome))
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
        for outcome in here(wanted, options.budget):
            print(outcome.as_line(), flush=True)
    finally:
        is_saved = _saved()
    return DONE if is_saved else _not_saved()


def _outcomes(
    wanted: Sequence[Problem], teams: Sequence[int], options: argparse.Namespace
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
    for threads in teams:
        yield from here(wanted, options.budget) if threads == own else in_child(threads, arguments)


def _in_words(outcome: Outcome) -> str:
    p, decision = outcome.problem, outcome.decision
    what = f"{format_shape(p.shape)} {p.dtype_name}, {p.threads} thread{'s' if p.threads != 1 else ''}"
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


COMMAND = Command(
    "warm",
    "tune shapes now, so that no program has to",
    _add_arguments,
    _run,
    "Each shape is tuned for each dtype and thread count, and the decisions are kept. What is settled is not "
    "timed again; forget it first to have it so. A thread count other than this process's is tuned in a "
    "process of its own. Exit code 4: the decisions could not be saved. Ctrl-C keeps what was finished, exit "
    "code 130.\n\n"
    "example: python -m autoinv.tune warm 10x8x3x3 1000x4x4 --dtype float32,float64 --threads 1,2",
)
