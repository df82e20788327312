"""What every entry has, and how it is checked: a key, a strategy's name, a time of creation."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_MAX_KEY_CHARACTERS = 400
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def check_key(key: str) -> str:
    """Return a key.

    Raises:
        ValueError: when it is longer than any problem needs.
    """
    if len(key) > _MAX_KEY_CHARACTERS:
        raise ValueError("its key is too long")
    return key


def check_name(name: object) -> str:
    """Return a strategy's name; whether there is such a strategy is not asked here.

    Raises:
        ValueError: when it is no short identifier.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("a strategy's name is no short identifier")
    return name


def check_created(created: object) -> str:
    """Return the time of creation.

    Raises:
        ValueError: when it is not written as ``2026-11-30T10:00:00Z``.
    """
    if not isinstance(created, str) or not _CREATED.fullmatch(created):
        raise ValueError("created is no time such as 2026-11-30T10:00:00Z")
    return created


def timestamp() -> str:
    """Return the present time, as an entry says when it was created."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
