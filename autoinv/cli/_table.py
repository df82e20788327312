"""Times by strategy, in the look of ``torch.utils.benchmark.Compare``, within the width there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
class _Style:
    """How far a table is spread: spaces before a label, what stands between columns, headers cut at ``_``."""

    indent: int
    separator: str
    is_cut: bool

    def header(self, name: str) -> list[str]:
        """Return a column's header, a line an item."""
        head, underscore, tail = name.partition("_")
        return [head + underscore, tail] if self.is_cut and underscore else [name]


_STYLES = (_Style(6, "  |  ", False), _Style(2, " | ", False), _Style(2, " | ", True))
"""The widest first: Compare's own look wherever it fits."""


def drawn(title: str, rows: Sequence[Row], columns: Sequence[str], width: int) -> list[Line]:
    """Return the table's lines; columns that do not fit beside the others go below, with the labels again."""
    unit, size = _unit([s for row in rows for s in row.seconds.values()])
    for style in _STYLES:
        blocks = _blocks(style, rows, columns, size, width)
        if len(blocks) == 1:
            break
    lines: list[Line] = []
    for block in blocks:
        lines += _block(title, style, rows, block, size)
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


def _widths(style: _Style, rows: Sequence[Row], columns: Sequence[str], size: float) -> dict[str, int]:
    return {
        column: max(
            *(len(part) for part in style.header(column)), *(len(_cell(row, column, size)) for row in rows), 0
        )
        for column in columns
    }


def _margin(style: _Style, rows: Sequence[Row]) -> int:
    return style.indent + max(len(row.label) for row in rows)


def _blocks(
    style: _Style, rows: Sequence[Row], columns: Sequence[str], size: float, width: int
) -> list[Sequence[str]]:
    """Return the columns in groups that fit into the width, each of at least one."""
    widths = _widths(style, rows, columns, size)
    blocks: list[list[str]] = [[]]
    used = _margin(style, rows)
    for column in columns:
        more = len(style.separator) + widths[column]
        if blocks[-1] and used + more > width:
            blocks.append([])
            used = _margin(style, rows)
        blocks[-1].append(column)
        used += more
    return list(blocks)


def _block(title: str, style: _Style, rows: Sequence[Row], columns: Sequence[str], size: float) -> list[Line]:
    widths = _widths(style, rows, columns, size)
    margin = _margin(style, rows)
    total = margin + sum(len(style.separator) + w for w in widths.values())
    lines: list[Line] = [[(f"[{f' {title} ':-^{total - 2}}]", "plain")]]
    headers = {column: style.header(column) for column in columns}
    for i in range(max(map(len, headers.values()), default=0)):
        parts = [f"{h[i] if i < len(h) else '':^{widths[c]}}" for c, h in headers.items()]
        lines.append([(style.separator.join([" " * margin, *parts]).rstrip(), "plain")])
    group = None
    for row in rows:
        if row.group != group:
            group = row.group
            lines.append([(f"{f'{group}: ':-<{total}}", "plain")])
        lines.append(_row(style, row, widths, margin, size))
    return lines


def _row(style: _Style, row: Row, widths: Mapping[str, int], margin: int, size: float) -> Line:
    line: Line = [(f"{' ' * style.indent + row.label:<{margin}}", "plain")]
    for column, width in widths.items():
        kind = "chosen" if column == row.chosen else "plain" if column in row.seconds else "dim"
        line += [(style.separator, "plain"), (f"{_cell(row, column, size):>{width}}", kind)]
    text, kind = line[-1]
    return [*line[:-1], (text.rstrip(), kind)]
