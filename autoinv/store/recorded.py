"""Recorded problems: those that programs met, with how often; a file that the user names, for `warm` to tune from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autoinv.errors import warn_once
from autoinv.problem import Problem
from autoinv.store import disk, jsontext
from autoinv.store.checks import check_key
from autoinv.store.table import Change, Kind, Table

SECTION = "problems"
_MAX_COUNT = 10**15

Counts = Mapping[str, int]
"""How often each problem was met, by its key."""


def check_count(key: str, entry: object) -> int:
    """Return how often the problem of an entry was met.

    Raises:
        ValueError: with the reason, when anything in it is not what it should be.
    """
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    Problem.parse(check_key(key))
    count = entry.get("count")
    if type(count) is not int or not 1 <= count <= _MAX_COUNT:
        raise ValueError("count is no whole number from 1 on")
    return count


def _entry(count: int) -> object:
    return {"count": count}


def _merged(stored: int | None, change: Change[int]) -> int:
    return min(_MAX_COUNT, (stored or 0) + (change.value or 0))


_KIND: Kind[int] = Kind(
    SECTION,
    "recorded problem",
    "Such entries are ignored, and dropped when more is recorded.",
    check_count,
    _entry,
    _merged,
)


def check_target(path: Path) -> None:
    """Check that problems can be added to what stands at this path, if anything does.

    Raises:
        ValueError: when it is no file of recorded problems, or none that this user may change.
    """
    try:
        _entries(path, any_owner=False)
    except FileNotFoundError:
        return


def add(path: Path, counts: Counts, wait_s: float) -> bool:
    """Add to the counts in a file, which is made when it is not there; warn and return False when that fails."""
    table = Table(path, _KIND, {}, elsewhere="Record into another file")
    return table.change(lambda _: {key: Change(count) for key, count in counts.items()}, wait_s)


def read(path: Path) -> dict[str, int]:
    """Return the counts in a file, from whatever machine; a bad entry is left out, with a warning.

    Raises:
        FileNotFoundError: when there is none.
        ValueError: when it is no file of recorded problems.
    """
    counts: dict[str, int] = {}
    bad: list[str] = []
    for key, entry in _entries(path, any_owner=True).items():
        try:
            counts[key] = check_count(key, entry)
        except ValueError as error:
            bad.append(f"{key[:80]!r}: {error}")
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        warn_once(
            f"bad entries in {path}",
            f"{path} holds a bad recorded problem, {bad[0]}{more}",
            "Such entries are ignored; record anew what is missing.",
        )
    return counts


def _entries(path: Path, *, any_owner: bool) -> dict[str, object]:
    try:
        document = jsontext.parse(disk.read(path, jsontext.MAX_BYTES, any_owner=any_owner))
        return jsontext.entries_of(document, SECTION)
    except disk.UnusableError as fault:
        raise ValueError(f"{path} cannot be used: {fault.reason}") from None
    except jsontext.CorruptError as fault:
        raise ValueError(f"{path} is no file of recorded problems ({fault})") from None
