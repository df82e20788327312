"""``verify`` and ``prune``: looking after the files."""

from __future__ import annotations

import argparse
from pathlib import Path

from autoinv import api, settings
from autoinv.cli._command import BAD_ENTRIES, DONE, Command, CommandError, add_yes, confirm
from autoinv.store import decisions, exchange, pins


def _add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="*",
        help="decisions, pins or exports (default: all in the cache dir)",
    )


def _verify(options: argparse.Namespace) -> int:
    chosen = options.files or _ours()
    bad = False
    for path in chosen:
        try:
            faults = exchange.verify(path)
        except FileNotFoundError:
            raise CommandError(f"{path}: there is no such file") from None
        bad = bad or bool(faults)
        print(f"{path}: {'good' if not faults else f'{len(faults)} bad'}")
        for fault in faults:
            print(f"  {fault}")
    if not chosen:
        print(f"{settings.cache_dir() or 'no folder'}: no files yet")
    return BAD_ENTRIES if bad else DONE


def _ours() -> list[Path]:
    """Return the decisions of every environment, other environments' too, and the pins."""
    names = sorted(_names(settings.cache_dir()))
    return [path for path in names if _is_ours(path.name)]


def _is_ours(name: str) -> bool:
    return name == pins.FILE_NAME or (name.startswith(decisions.PREFIX) and name.endswith(".json"))


def _names(folder: Path | None) -> list[Path]:
    """Return what lies in the folder, nothing when it is not there.

    Raises:
        CommandError: when it cannot be listed.
    """
    try:
        return list(folder.iterdir()) if folder else []
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CommandError(f"{folder} cannot be listed: {error.strerror or error}") from None


def _add_prune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    add_yes(parser)


def _prune(options: argparse.Namespace) -> int:
    folder = settings.cache_dir()
    if folder is None:
        print("nothing to remove")
        return DONE
    _names(folder)  # or say that it cannot be listed
    live = {file.path.stem.removeprefix(decisions.PREFIX) for file in api.files() if file.path}
    if not options.dry_run:
        count = len(exchange.prune(folder, live, dry_run=True))
        confirm(f"This removes {count} of the files in {folder}; --dry-run lists them", options)
    gone = exchange.prune(folder, live, dry_run=options.dry_run)
    for path in gone:
        print(f"{'would remove' if options.dry_run else 'removed'} {path}")
    if not gone:
        print("nothing to remove")
    return DONE


VERIFY = Command(
    "verify",
    "check files entry by entry",
    _add_verify_arguments,
    _verify,
    "Changes nothing. Exit code 5: there are bad entries. Programs ignore them; the next save drops them.",
)
PRUNE = Command(
    "prune",
    "remove decisions of other environments, and stale temporary files",
    _add_prune_arguments,
    _prune,
    "An environment is another one when its processor, usable cores, versions or GPU are not those of this "
    "process: do not prune a folder that several kinds of machines or jobs share. Pins stay.",
)
