"""Decisions as tables, in the look of ``torch.utils.benchmark.Compare``, within the width there is.

rich is imported when something is drawn, no sooner.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from autoinv.cli._known import Known
from autoinv.ops.table import OPERATIONS

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 120
"""Columns where there is no terminal to ask and COLUMNS does not say."""
_STYLES = {"plain": "", "chosen": "bold green", "dim": "dim"}
_MARKS = {
    "~": "timed while the processor was busy; a later process tunes it again, three times at most",
    "?": "the budget ran out; a later process tunes it again, three times at most",
    "!": "pinned by the user",
}


UNITS = (("seconds (s)", 1.0), ("milliseconds (ms)", 1e-3), ("microseconds (us)", 1e-6))
CHOSEN = "*"
ABSENT = "-"

Piece = tuple[str, str]
"""Some text and its style: plain, chosen or dim."""
Line = list[Piece]


@dataclass(frozen=True)
class Row:
    """One problem: its label, the group it stands in, seconds per call by strategy, and the one chosen."""

    label: str
    group: str
    seconds: Mapping[str, float]
    chosen: str


@dataclass(frozen=True)
class _Spread:
    """How far a table is spread: spaces before a label, what stands between columns, headers cut at ``_``."""

    indent: int
    separator: str
    is_cut: bool

    def header(self, name: str) -> list[str]:
        """Return a column's header, a line an item."""
        head, underscore, tail = name.partition("_")
        return [head + underscore, tail] if self.is_cut and underscore else [name]


_SPREADS = (_Spread(6, "  |  ", False), _Spread(2, " | ", False), _Spread(2, " | ", True))
"""The widest first: Compare's own look wherever it fits."""


def draw(known: Sequence[Known]) -> None:
    """Print one table for each operation, dtype and device, and a legend of what stands in them."""
    console = _console()
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else _PIPED_WIDTH
    marks: set[str] = set()
    for _, group in groupby(sorted(known, key=_table_of), key=_table_of):
        members = sorted(group, key=_order)
        rows = [_row_of(each) for each in members]
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


def _row_of(each: Known) -> Row:
    layout = f" {each.layout}" if each.layout not in (None, "contiguous") else ""
    marks = _marks(each)
    count = each.threads
    group = "any threads" if count is None else f"{count} thread{'s' if count != 1 else ''}"
    return Row(f"{each.shape}{layout}{' ' * bool(marks)}{marks}", group, each.seconds, each.strategy)


def _strategies(op: str) -> list[str]:
    return OPERATIONS[op].operation.names() if op in OPERATIONS else []


def _columns(op: str, rows: Sequence[Row]) -> list[str]:
    """Return the strategies that were timed or chosen anywhere, in order of preference, unknown ones last."""
    seen = {name for row in rows for name in (*row.seconds, row.chosen)}
    known = [name for name in _strategies(op) if name in seen]
    return known + sorted(seen - set(known))


def drawn(title: str, rows: Sequence[Row], columns: Sequence[str], width: int) -> list[Line]:
    """Return the table's lines; columns that do not fit beside the others go below, with the labels again."""
    unit, size = _unit([s for row in rows for s in row.seconds.values()])
    for spread in _SPREADS:
        blocks = _blocks(spread, rows, columns, size, width)
        if len(blocks) == 1:
            break
    lines: list[Line] = []
    for block in blocks:
        lines += _block(title, spread, rows, block, size)
        lines.append([])
    return [*lines, [(f"Times are in {unit} a call.", "plain")]]


def number(seconds: float, size: float) -> str:
    """Write a time in units of ``size`` seconds: three digits, or all that stand before the point."""
    value = seconds / size
    digits = next((d for d, least in enumerate((99.95, 9.995, 0.9995)) if value >= least), 3)
    return f"{value:.{digits}f}"


def _unit(times: Sequence[float]) -> tuple[str, float]:
    least = min((s for s in times if s > 0), default=1e-6)
    return next((unit for unit in UNITS if least >= unit[1]), UNITS[-1])


def _cell(row: Row, column: str, size: float) -> str:
    text = number(row.seconds[column], size) if column in row.seconds else ABSENT
    return text + (CHOSEN if column == row.chosen else " ")


def _widths(spread: _Spread, rows: Sequence[Row], columns: Sequence[str], size: float) -> dict[str, int]:
    return {
        column: max(
            *(len(part) for part in spread.header(column)),
            *(len(_cell(row, column, size)) for row in rows),
            0,
        )
        for column in columns
    }


def _margin(spread: _Spread, rows: Sequence[Row]) -> int:
    return spread.indent + max(len(row.label) for row in rows)


def _blocks(
    spread: _Spread, rows: Sequence[Row], columns: Sequence[str], size: float, width: int
) -> list[Sequence[str]]:
    """Return the columns in groups that fit into the width, each of at least one."""
    widths = _widths(spread, rows, columns, size)
    blocks: list[list[str]] = [[]]
    used = _margin(spread, rows)
    for column in columns:
        more = len(spread.separator) + widths[column]
        if blocks[-1] and used + more > width:
            blocks.append([])
            used = _margin(spread, rows)
        blocks[-1].append(column)
        used += more
    return list(blocks)


def _block(
    title: str, spread: _Spread, rows: Sequence[Row], columns: Sequence[str], size: float
) -> list[Line]:
    widths = _widths(spread, rows, columns, size)
    margin = _margin(spread, rows)
    total = margin + sum(len(spread.separator) + w for w in widths.values())
    lines: list[Line] = [[(f"[{f' {title} ':-^{total - 2}}]", "plain")]]
    headers = {column: spread.header(column) for column in columns}
    for i in range(max(map(len, headers.values()), default=0)):
        parts = [f"{h[i] if i < len(h) else '':^{widths[c]}}" for c, h in headers.items()]
        lines.append([(spread.separator.join([" " * margin, *parts]).rstrip(), "plain")])
    group = None
    for row in rows:
        if row.group != group:
            group = row.group
            lines.append([(f"{f'{group}: ':-<{total}}", "plain")])
        lines.append(_row(spread, row, widths, margin, size))
    return lines


def _row(spread: _Spread, row: Row, widths: Mapping[str, int], margin: int, size: float) -> Line:
    line: Line = [(f"{' ' * spread.indent + row.label:<{margin}}", "plain")]
    for column, width in widths.items():
        kind = "chosen" if column == row.chosen else "plain" if column in row.seconds else "dim"
        line += [(spread.separator, "plain"), (f"{_cell(row, column, size):>{width}}", kind)]
    text, kind = line[-1]
    return [*line[:-1], (text.rstrip(), kind)]
