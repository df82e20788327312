"""Which decisions are kept when the file's and this process's meet."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from autoinv import errors
from autoinv.store.decision import Decision, from_entry
from autoinv.store.table import Entries


def merged(
    entries: Entries,
    good: Entries,
    added: dict[str, Decision],
    gone: dict[str, Decision],
    path: Path | None,
) -> dict[str, object]:
    """Return the new entries: the good ones that were there, less those forgotten, ours where they win.

    ``good`` are entries that this process has checked before: checking costs 10 us, comparing a tenth of it.
    """
    kept: dict[str, object] = {}
    for key, entry in entries.items():
        if (key in good and good[key] == entry) or checked(key, entry, path) is not None:
            kept[key] = entry
    for key, decision in gone.items():
        if key in kept and from_entry(key, kept[key]) == decision:
            del kept[key]
    for key, decision in added.items():
        stored = from_entry(key, kept[key]) if key in kept else None
        best = winner(stored, decision)
        if best is not stored:
            kept[key] = best.entry()
    return kept


def checked(key: str, entry: object, path: Path | None) -> Decision | None:
    """Return the decision in an entry; None, and one warning, when it is a bad one."""
    try:
        return from_entry(key, entry)
    except ValueError as error:
        errors.warn_once(
            "bad entry",
            f"{path} holds a bad entry, {key[:80]!r}: {error}",
            "It is ignored, and dropped with the next save; `python -m autoinv.tune verify` lists all.",
        )
        return None


def winner(stored: Decision | None, challenger: Decision) -> Decision:
    """Return which of two decisions for one problem is kept. Tunings never count down; no clock is asked."""
    if stored is None:
        return challenger
    if not _outranks(challenger, stored):
        return stored
    return dataclasses.replace(challenger, tunings=max(stored.tunings, challenger.tunings))


def _outranks(challenger: Decision, stored: Decision) -> bool:
    """Whether newer evidence replaces older: a settled decision stays, until a re-tuning that is as good."""
    if challenger.tunings > stored.tunings:
        return challenger.quiet or not stored.quiet
    if stored.settled:
        return False
    return challenger.quiet or challenger.tunings == stored.tunings
