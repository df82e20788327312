"""``show`` and ``explain``: what is known, of everything or of one shape. Neither times anything."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

import torch

from autoinv import api, environment, settings
from autoinv.cli._arguments import add_layout, add_problem, count, problems
from autoinv.cli._command import DONE, Command, CommandError
from autoinv.cli._known import Known, merged
from autoinv.cli._table import draw
from autoinv.store import decisions, pins
from autoinv.store.decisions import DecisionsFile
from autoinv.store.jsontext import SCHEMA


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document, for programs")
    parser.add_argument("--device", help="cpu, cuda or cuda:N only (default: all)")


def _show(options: argparse.Namespace) -> int:
    file = file_of(options.device or "cpu")
    known = [
        each for each in _known() if options.device in (None, each.device, each.device.partition(":")[0])
    ]
    if options.json:
        document = {
            "schema": SCHEMA,
            "file": str(file.path) if file.path else None,
            "environment": file.environment,
            "decisions": [each.as_dict() for each in known],
        }
        print(json.dumps(document, indent=1))
        return DONE
    if known:
        draw(known)
    else:
        print("Nothing is known yet: warm a shape, or call autoinv.inv.")
    print(f"File: {file.path or 'none, there is no folder for it'}")
    return DONE


def _known() -> list[Known]:
    found = [decision for file in api.files() for decision in file.all()]
    return merged(found, pins.opened_pins(settings.cache_dir()).entries())


def file_of(device: str) -> DecisionsFile:
    """Return the decisions of a device's environment.

    Raises:
        CommandError: when there is no such device.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise CommandError(f"{device!r} is no device that torch knows; try cpu or cuda:0") from None
    if kind == "cpu":
        return decisions.opened(settings.cache_dir(), environment.of("cpu"))
    if kind != "cuda" or not torch.cuda.is_available():
        raise CommandError(f"{device} is not available here")
    return decisions.opened(settings.cache_dir(), environment.of(device))


def _add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    add_problem(parser, every_dtype=True)
    add_layout(parser)
    parser.add_argument(
        "--threads", type=count, metavar="T", help="of the program (default: torch's number here)"
    )


def _explain(options: argparse.Namespace) -> int:
    threads = options.threads
    asked_all = [dataclasses.replace(p, threads=threads or p.threads) for p in problems(options)]
    if options.dtype is None:  # those of which something is known, float32 where nothing is
        known = [p for p in asked_all if api.explain_problem(p).source != "default"]
        asked_all = known or asked_all[:1]
    for i, asked in enumerate(asked_all):
        sys.stdout.write("\n" * (i > 0) + f"{api.explain_problem(asked)}\n")
    return DONE


SHOW = Command(
    "show",
    "print all decisions and pins of this machine",
    _add_arguments,
    _show,
    "The document of --json holds schema, file, environment and decisions. Each of these has op, shape, "
    "dtype, device, threads, layout, strategy, seconds (a call, by strategy), rejected (why not), pinned, "
    "complete, contended and created. File and environment are those of --device, or of the CPU. A pin that "
    "no decision belongs to has null for threads and layout.",
)
EXPLAIN = Command(
    "explain",
    "say what would run for a shape, why, and how fast each way was",
    _add_explain_arguments,
    _explain,
    "example: python -m autoinv.tune explain 10x8x3x3 --dtype float64 --threads 1",
)
