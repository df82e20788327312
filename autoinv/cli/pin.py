"""``pin``, ``unpin`` and ``forget``: the user decides instead of the tuner."""

from __future__ import annotations

import argparse

from autoinv import api, settings
from autoinv.cli._arguments import add_kind, add_problem, problems, shape
from autoinv.cli._command import DONE, NOT_SAVED, Command, CommandError, add_yes, confirm
from autoinv.ops.table import OPERATIONS, strategy_names
from autoinv.store import pins
from autoinv.store.pins import pin_key


def _add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    add_problem(parser, every_dtype=True)
    names = ", ".join(strategy_names())
    parser.add_argument("strategy", metavar="STRATEGY", help=f"one of {names}")


def _pin(options: argparse.Namespace) -> int:
    wanted = problems(options)
    operation = OPERATIONS[options.op].operation
    strategy = operation.strategy(options.strategy)
    if strategy is None:
        raise CommandError(
            f"{options.op} has no strategy {options.strategy!r}; it has {', '.join(operation.names())}"
        )
    if options.dtype is None:
        wanted = [problem for problem in wanted if strategy.supports(problem)] or wanted[:1]
    for problem in wanted:  # all or none
        if not strategy.supports(problem):
            raise CommandError(f"{strategy.name} does not support {problem.key}; pin one that does")
    for problem in wanted:
        api.pin(problem.shapes, strategy.name, problem.op, problem.dtype, problem.device)
        _check_saved()
        print(f"{pin_key(problem)} is pinned to {strategy.name}")
    return DONE


def _unpin(options: argparse.Namespace) -> int:
    for problem in problems(options):
        was = api.unpin(problem.shapes, problem.op, problem.dtype, problem.device)
        _check_saved()
        print(f"{pin_key(problem)} {'is no longer pinned' if was else 'was not pinned'}")
    return DONE


def _check_saved() -> None:
    file = pins.opened_pins(settings.cache_dir())
    if file.unsaved:
        raise CommandError(
            f"{file.path or 'the pins file'} could not be saved; `python -m autoinv.tune doctor` says more",
            NOT_SAVED,
        )


def _add_forget_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shape", metavar="SHAPE", type=shape, nargs="?", help="such as 10x8x3x3")
    parser.add_argument("--all", action="store_true", help="every shape; asks first")
    add_kind(parser, dtype=None)
    add_yes(parser)


def _forget(options: argparse.Namespace) -> int:
    if options.all == (options.shape is not None):
        raise CommandError("forget takes either a SHAPE or --all")
    if options.all:
        confirm("This forgets every decision of this machine; pins stay", options)
    try:
        counts = [
            api.forget(options.shape, op=options.op, dtype=dtype, device=options.device)
            for dtype in options.dtype or [None]
        ]
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error).partition("\n")[0]) from None
    if any(file.unsaved for file in api.files()):
        raise CommandError(
            "the file could not be saved; `python -m autoinv.tune doctor` says more", NOT_SAVED
        )
    print(f"{sum(counts)} decision{'s' if sum(counts) != 1 else ''} forgotten")
    return DONE


PIN = Command(
    "pin",
    "decide yourself which strategy a shape runs by",
    _add_pin_arguments,
    _pin,
    "A pin holds for every thread count and layout, without --dtype for every dtype "
    "that the strategy supports, and survives upgrades, until unpin.\n\n"
    "example: python -m autoinv.tune pin 10x8x3x3 native --dtype float64",
)
UNPIN = Command("unpin", "take a pin away", lambda parser: add_problem(parser, every_dtype=True), _unpin)
FORGET = Command(
    "forget",
    "forget decisions, so that they are made anew",
    _add_forget_arguments,
    _forget,
    "Pins stay (see unpin). Programs that run already keep what they have in memory.\n\n"
    "examples: python -m autoinv.tune forget 10x8x3x3\n          python -m autoinv.tune forget --all --yes",
)
