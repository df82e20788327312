"""Decisions as tables on standard output; rich is imported when something is drawn, no sooner."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from autoinv.cli._known import Known
from autoinv.cli._table import ABSENT, CHOSEN, Line, Row, drawn
from autoinv.ops.table import DISPATCHERS

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 120
"""Columns where there is no terminal to ask and COLUMNS does not say."""
_STYLES = {"plain": "", "chosen": "bold green", "dim": "dim"}
_MARKS = {
    "~": "timed while the processor was busy; a later process tunes it again, three times at most",
    "?": "the budget ran out; a later process tunes it again, three times at most",
    "!": "pinned by a person",
}


def draw(known: Sequence[Known]) -> None:
    """Print one table for each operation, dtype and device, and a legend of what stands in them."""
    console = _console()
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else _PIPED_WIDTH
    marks: set[str] = set()
    for _, group in groupby(sorted(known, key=_table_of), key=_table_of):
        members = sorted(group, key=_order)
        rows = [_row(each) for each in members]
        columns = _columns(members[0].op, rows)
        first = members[0]
        _print(console, drawn(f"{first.op} of {first.dtype} on {first.device}", rows, columns, width))
        marks |= {mark for each in members for mark in _marks(each)}
        untimed = [name for name in _strategies(first.op) if name not in columns]
        if untimed:
            _print(console, _wrapped(f"Not timed in full: {', '.join(untimed)} (explain says why).", width))
        _print(console, [[]])
    legend = [f"{CHOSEN} chosen", f"{ABSENT} not timed in full (explain says why)"]
    legend += [f"{mark} {meaning}" for mark, meaning in _MARKS.items() if mark in marks]
    _print(console, [line for text in legend for line in _wrapped(text, width)])


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False)


def _print(console: Console, lines: Iterable[Line]) -> None:
    from rich.text import Text

    for line in lines:
        console.print(Text.assemble(*((text, _STYLES[kind]) for text, kind in line)), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[Line]:
    return [[(line, "plain")] for line in textwrap.wrap(text, width, subsequent_indent="  ")]


def _table_of(each: Known) -> tuple[str, str, str]:
    return each.op, each.device, each.dtype


def _order(each: Known) -> tuple[int, tuple[int, ...], str]:
    sizes = tuple(int(size) for size in each.shape.replace(",", "x").split("x"))
    return each.threads or 0, (sizes[-1], *sizes), each.layout or ""


def _marks(each: Known) -> str:
    return "~" * each.contended + "?" * (not each.complete) + "!" * each.pinned


def _row(each: Known) -> Row:
    layout = f" {each.layout}" if each.layout not in (None, "contiguous") else ""
    marks = _marks(each)
    count = each.threads
    group = "any threads" if count is None else f"{count} thread{'s' if count != 1 else ''}"
    return Row(f"{each.shape}{layout}{' ' * bool(marks)}{marks}", group, each.seconds, each.strategy)


def _strategies(op: str) -> list[str]:
    return DISPATCHERS[op].operation.names() if op in DISPATCHERS else []


def _columns(op: str, rows: Sequence[Row]) -> list[str]:
    """Return the strategies that were timed or chosen anywhere, in order of preference, unknown ones last."""
    seen = {name for row in rows for name in (*row.seconds, row.chosen)}
    known = [name for name in _strategies(op) if name in seen]
    return known + sorted(seen - set(known))
