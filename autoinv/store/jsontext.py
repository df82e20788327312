"""The text of a file of named entries: JSON that is never trusted, and how it is written."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping

from autoinv.store import disk

SCHEMA = 1
MAX_BYTES = 16 << 20
MAX_ENTRIES = 20_000

Entries = Mapping[str, object]
_MAX_DIGITS = 19
_MAX_DEPTH = 50
_BRACKETS_AND_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)


class CorruptError(ValueError):
    """Content that is no file of ours: to be quarantined."""


def parse(data: bytes, *, twice: Callable[[str], None] | None = None) -> dict[str, object]:
    """Return the document in these bytes; ``twice`` is called with each name that stands twice in one object.

    Raises:
        CorruptError: when they hold none of ours.
        disk.UnusableError: when a newer autoinv wrote it.
    """
    hook = None if twice is None else _pairs_hook(twice)
    try:
        document = json.loads(data.decode("utf-8"), parse_int=_parse_int, object_pairs_hook=hook)
    except RecursionError as error:
        if not _is_deep(data):  # our caller's recursion left no room: no fault of the file's
            raise disk.UnusableError("the program's recursion is too deep", transient=True) from error
        raise CorruptError("no JSON: nested too deep") from error
    except ValueError as error:
        raise CorruptError(f"no JSON: {type(error).__name__}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema < SCHEMA:
        raise CorruptError("no schema number")
    if schema > SCHEMA:
        raise disk.UnusableError(f"a newer autoinv wrote it (schema {schema}, this one knows {SCHEMA})")
    return dict(document)


def _parse_int(digits: str) -> float:
    """Read an integer; one of too many digits is no number: some Pythons take minutes to read it."""
    return int(digits) if len(digits) <= _MAX_DIGITS else math.nan


def _is_deep(data: bytes) -> bool:
    depth = 0
    for token in _BRACKETS_AND_STRINGS.finditer(data):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token.group(), 0)
        if depth > _MAX_DEPTH:
            return True
    return False


def _pairs_hook(twice: Callable[[str], None]) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    def hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen: dict[str, object] = {}
        for name, value in pairs:
            if name in seen:
                twice(name)
            seen[name] = value
        return seen

    return hook


def entries_of(document: Mapping[str, object], section: str) -> dict[str, object]:
    """Return the named section.

    Raises:
        CorruptError: when it is missing or no object.
    """
    entries = document.get(section)
    if not isinstance(entries, dict):
        raise CorruptError(f"no {section} in it")
    return entries


def fitting(old: Entries, new: Entries, section: str, header: Mapping[str, object]) -> tuple[Entries, bytes]:
    """Return the entries that fit into one file, and its bytes; the oldest go, what was just added stays."""
    count = min(len(new), MAX_ENTRIES)
    while True:
        entries = new if count == len(new) else _newest(old, new, count)
        data = serialised({**header, "schema": SCHEMA, section: entries})
        if len(data) <= MAX_BYTES:
            return entries, data
        count = count * 3 // 4


def _newest(old: Entries, new: Entries, count: int) -> Entries:
    def rank(key: str) -> tuple[bool, str]:
        entry = new[key]
        created = entry.get("created") if isinstance(entry, dict) else None
        return (new[key] != old.get(key), str(created))

    return {key: new[key] for key in sorted(new, key=rank, reverse=True)[:count]}


def serialised(document: Mapping[str, object]) -> bytes:
    """Write a document with sorted keys and one line an entry: people read, search and compare it.

    An entry that is no JSON, for a number in a field of somebody else's, is left out.
    """
    encode = json.JSONEncoder(sort_keys=True, allow_nan=False).encode
    separator = ",\n"
    sections: list[str] = []
    for name in sorted(document):
        value = document[name]
        if isinstance(value, Mapping) and value:
            lines = []
            for key in sorted(value):
                with contextlib.suppress(ValueError):
                    lines.append(f"  {encode(key)}: {encode(value[key])}")
            sections.append(f" {encode(name)}: {{\n{separator.join(lines)}\n }}")
        else:
            sections.append(f" {encode(name)}: {encode(value)}")
    return f"{{\n{separator.join(sections)}\n}}\n".encode()
