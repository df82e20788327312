"""A plan: the strategy for a problem, and where the knowledge comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoinv.planning.untimed import Untimed
from autoinv.store.decisions import Decision
from autoinv.strategy import Strategy

Source = Literal["pin", "sync", "file", "neighbour", "tuned", "default", "reference"]


@dataclass(frozen=True)
class Plan:
    """The strategy for a problem and where the knowledge comes from.

    ``final`` is False for one that serves now but is to be asked for again: at the next call, or where ``untimed``
    is given when that says so. ``fresh`` says that strategies were timed for it just now.
    """

    strategy: Strategy
    source: Source
    why: str
    decision: Decision | None = None
    final: bool = True
    fresh: bool = False
    untimed: Untimed | None = None
