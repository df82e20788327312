"""Progress on standard error: a bar at a terminal, else one line for each thing done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str], None]


@contextmanager
def progress(total: int) -> Iterator[Report]:
    """Show how many of ``total`` things are done; call what is yielded with a few words on each."""
    if not sys.stderr.isatty():
        yield _lines(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # Drawn only when something is done: a thread that redraws it would disturb what is being timed.
    with Progress(*columns, console=Console(stderr=True, highlight=False), auto_refresh=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text, refresh=True)


def _lines(total: int) -> Report:
    done = 0

    def report(text: str) -> None:
        nonlocal done
        done += 1
        print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)

    return report
