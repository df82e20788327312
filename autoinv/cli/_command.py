"""What a command is, how it fails, and how it asks before something is destroyed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

DONE, FAILED, BAD_INPUT, NOT_FINAL, NOT_SAVED, BAD_ENTRIES, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
"""Exit codes."""


class CommandError(Exception):
    """A command that ends here, with one line for the user who gave it."""

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        """Say what is wrong, and with which code to end."""
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Command:
    """One command; ``more`` are paragraphs below its help.

    ``run`` returns the exit code; or a function that does, of which nothing is caught: it runs a program of the user's.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | Callable[[], int]]
    more: str = ""


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add --yes."""
    parser.add_argument(
        "--yes", "-y", action="store_true", help="do not ask; needed where there is no terminal"
    )


def confirm(what: str, options: argparse.Namespace) -> None:
    """Return when the user agrees to ``what``, a sentence without its full stop.

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
