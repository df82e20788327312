"""``export`` and ``import``: decisions taken from one machine to another."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path

from autoinv import settings
from autoinv.api.problems import SAVE_WAIT_S
from autoinv.cli._command import DONE, NOT_SAVED, Command, CommandError, add_yes, confirm
from autoinv.cli.show import file_of
from autoinv.ops.table import forget_plans
from autoinv.store import disk, exchange, jsontext, pins


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="where to write; an earlier export is replaced"
    )
    parser.add_argument(
        "--device", default="cpu", help="whose decisions: cpu, or cuda:N for a GPU's (default: cpu)"
    )
    add_yes(parser)


def _export(options: argparse.Namespace) -> int:
    target: Path = options.file.resolve()
    _check_target(target, options)
    file, pinned = file_of(options.device), pins.opened_pins(settings.cache_dir())
    try:
        count = exchange.export_to(target, file, pinned)
    except OSError as error:
        raise CommandError(f"{options.file} could not be written: {error.strerror or error}") from None
    print(f"{_many(count, 'decision')} and {_many(len(pinned.all()), 'pin')} written to {options.file}")
    return DONE


def _check_target(target: Path, options: argparse.Namespace) -> None:
    """Refuse what is no ordinary file, and ask before something else than an earlier export is replaced."""
    try:
        if not stat.S_ISREG(target.stat().st_mode):
            raise CommandError(f"{options.file} is no ordinary file; give the name of one to write")
        jsontext.parse(disk.read(target, jsontext.MAX_BYTES, any_owner=True))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CommandError(f"{options.file} cannot be written: {error.strerror or error}") from None
    except (disk.UnusableError, jsontext.CorruptError):
        confirm(f"{options.file} exists and is no export of autoinv's, and would be replaced", options)


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="what export wrote")
    parser.add_argument(
        "--any-environment",
        action="store_true",
        help="take decisions of other processors, versions or GPUs: legal here, but perhaps not the fastest",
    )
    parser.add_argument(
        "--device", default="cpu", help="where they go: cpu, or cuda:N for a GPU's (default: cpu)"
    )


def _import(options: argparse.Namespace) -> int:
    file, pinned = file_of(options.device), pins.opened_pins(settings.cache_dir())
    try:
        done = exchange.import_from(
            options.file, file, pinned, any_environment=options.any_environment, wait_s=SAVE_WAIT_S
        )
    except exchange.ImportRefusedError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{options.file} could not be read: {error.strerror or error}") from None
    if not done.saved:
        raise CommandError(
            f"what {options.file} holds could not be saved; `python -m autoinv.tune doctor` says more",
            NOT_SAVED,
        )
    forget_plans()
    print(f"{_many(done.decisions, 'decision')} and {_many(done.pins, 'pin')} taken from {options.file}")
    return DONE


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


EXPORT = Command(
    "export", "write this machine's decisions and pins to a file", _add_export_arguments, _export
)
IMPORT = Command(
    "import",
    "take in what export wrote, all of it or nothing",
    _add_import_arguments,
    _import,
    "It merges: final decisions and pins that are here already stay. One bad entry, and nothing is taken.",
)
