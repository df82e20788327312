"""Asking before something is destroyed."""

from __future__ import annotations

import argparse
import sys

from autoinv.cli._arguments import CommandError


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add --yes."""
    parser.add_argument(
        "--yes", "-y", action="store_true", help="do not ask; needed where there is no terminal"
    )


def confirm(what: str, options: argparse.Namespace) -> None:
    """Return when the person agrees to ``what``, a sentence without its full stop.

    Raises:
        CommandError: when they do not, or there is no terminal to ask at and no --yes.
    """
    if options.yes:
        return
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{what}. There is no terminal to ask at: add --yes to do it")
    print(f"{what}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")
