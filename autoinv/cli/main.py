"""The command line of ``python -m autoinv`` and ``python -m autoinv.tune``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from autoinv.cli import COMMANDS
from autoinv.cli._command import FAILED, INTERRUPTED, CommandError
from autoinv.errors import AutoinvWarning, StderrHandler, logger
from autoinv.version import __version__

_DESCRIPTION = "Tune, show and look after the decisions by which autoinv chooses its strategies."
_CODES = """`COMMAND --help` says more. Decisions live in your user's cache folder, or in AUTOINV_CACHE_DIR.

Exit codes: 0 done, 1 failed, 2 bad input, 3 not all final (warm), 4 could not save, 5 bad entries (verify),
130 interrupted."""
_PIPE_CLOSED = 141
"""What a shell reports of a program that a closed pipe ended."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; the usage is long, and `--help` shows it."""
        raise CommandError(f"{message} (try: {self.prog} --help)")


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m autoinv.tune") -> int:
    """Run one command and return its exit code; prints, and raises nothing but what a program raises that it runs."""
    with _plain_warnings(), _log():
        try:
            options = parser(prog).parse_args(argv)
            code: int | Callable[[], int] = options.run(options)
            sys.stdout.flush()
        except CommandError as error:
            return _say(str(error), error.code)
        except KeyboardInterrupt:
            return _say("interrupted", INTERRUPTED)
        except SystemExit as end:  # after --help or --version
            return int(end.code or 0)
        except BrokenPipeError:  # `... | head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _PIPE_CLOSED
        except (MemoryError, RuntimeError) as error:
            if "memory" not in f"{type(error).__name__} {error}".lower():
                return _unexpected(error)
            return _say("there is not enough memory for that: take a smaller batch, or free some", FAILED)
        except Exception as error:
            return _unexpected(error)
    return code if isinstance(code, int) else code()


def _unexpected(error: Exception) -> int:
    logger.debug("the command failed", exc_info=error)
    what = f"{type(error).__name__}: {error}".partition("\n")[0]
    return _say(f"failed with {what}; set AUTOINV_LOG=debug to see where, and report it", FAILED)


def parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = _Parser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_filled(_CODES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"autoinv {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for command in COMMANDS:
        own = commands.add_parser(
            command.name,
            help=command.summary,
            description=_filled(f"{command.summary[0].upper()}{command.summary[1:]}."),
            epilog=_filled(command.more),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    return top


def _filled(text: str) -> str:
    """Wrap paragraphs as argparse wraps its own; examples stay as they are."""
    width = shutil.get_terminal_size().columns - 2
    paragraphs = text.split("\n\n")
    return "\n\n".join(p if p.startswith("example") else textwrap.fill(p, width) for p in paragraphs)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show a warning of ours as one line, without the place in the code: it means nothing to the user here."""

    def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
        if issubclass(category, AutoinvWarning):
            print(message, file=sys.stderr)
        else:
            shown(message, category, *rest)  # type: ignore[arg-type]  # as it came

    with warnings.catch_warnings():
        warnings.simplefilter("always", AutoinvWarning)  # each is given once by itself
        shown, warnings.showwarning = warnings.showwarning, show  # type: ignore[assignment]  # fewer names
        yield


@contextmanager
def _log() -> Iterator[None]:
    """Show what is logged, above a progress bar: a program configures its log itself, a command is one."""
    handler = StderrHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _say(message: str, code: int) -> int:
    print(f"autoinv: {message}", file=sys.stderr)
    return code
