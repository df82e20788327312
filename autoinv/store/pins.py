"""Pins: the strategies that the user chose. No environment, thread count or layout changes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from autoinv.problem import Problem
from autoinv.store.checks import check_created, check_key, check_name, timestamp
from autoinv.store.table import Change, Kind, Table

FILE_NAME = "pins-v1.json"
SECTION = "pins"

Pin = dict[str, str]
"""What stands in the file under a key: strategy and created."""
Pins = dict[str, Pin]


def pin_key(problem: Problem) -> str:
    """Return what a pin holds for: a problem's key without threads and layout."""
    return problem.key.rsplit("/", 2)[0]


def problem_of(key: str) -> Problem:
    """Return one of the problems that a pin of this key holds for.

    Raises:
        ValueError: when the text is no pin's key.
    """
    operands = key.partition("/")[2].partition("/")[0].count(",") + 1
    return Problem.parse(f"{key}/threads=1/{','.join(['contiguous'] * operands)}")


def check_pin(key: str, entry: object) -> Pin:
    """Return the pin in an entry of the pins file.

    Raises:
        ValueError: with the reason, when anything in it is not what it should be.
    """
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    problem_of(check_key(key))
    return {"strategy": check_name(entry.get("strategy")), "created": check_created(entry.get("created"))}


def _merged(stored: Pin | None, change: Change[Pin]) -> Pin | None:
    """Return what the user chose last, whatever stands in the file."""
    del stored
    return change.value


_KIND: Kind[Pin] = Kind(
    SECTION,
    "pin",
    "Such pins are ignored, and dropped with the next change; pin anew what is missing.",
    check_pin,
    dict,
    _merged,
)


class PinsFile:
    """The pins of a folder. Safe to use from any thread; what cannot be saved holds for this process."""

    def __init__(self, folder: Path | None) -> None:
        """Prepare; no file is touched before something is asked."""
        self.path = None if folder is None else folder / FILE_NAME
        self._table = Table(self.path, _KIND, {})

    def get(self, problem: Problem) -> str | None:
        """Return the strategy that this problem is pinned to; looks at the file when it changed."""
        pin = self._table.look().get(pin_key(problem))
        return None if pin is None else pin["strategy"]

    def all(self) -> dict[str, str]:
        """Return every pin: strategy by key, sorted."""
        return {key: pin["strategy"] for key, pin in self.entries().items()}

    def entries(self) -> Pins:
        """Return every pin as it stands in the file, sorted by key."""
        return self._table.look().all()

    def set(self, problem: Problem, strategy: str, wait_s: float) -> bool:
        """Pin a problem, at once in this process; False when it could not be saved.

        Raises:
            ValueError: when the name is no strategy's.
        """
        return self.set_all([problem], strategy, wait_s)

    def set_all(self, problems: Iterable[Problem], strategy: str, wait_s: float) -> bool:
        """Pin several problems in one go, as `set` does one.

        Raises:
            ValueError: when the name is no strategy's.
        """
        fresh: Pin = {"strategy": check_name(strategy), "created": timestamp()}
        before = self._table.look()
        kept = {key: before.get(key) or fresh for key in map(pin_key, problems)}
        return self.change(
            {key: pin if pin["strategy"] == strategy else fresh for key, pin in kept.items()}, wait_s
        )

    def remove(self, problem: Problem, wait_s: float) -> bool:
        """Unpin a problem; return whether it was pinned. ``unsaved`` says whether that lasts."""
        key = pin_key(problem)
        is_pinned = self._table.look().get(key) is not None
        if is_pinned:
            self.change({key: None}, wait_s)
        return is_pinned

    @property
    def unsaved(self) -> int:
        """How many changes could not be saved yet; they are tried again with the next one."""
        return self._table.unsaved

    def change(self, changes: Mapping[str, Pin | None], wait_s: float) -> bool:
        """Put pins, or remove them where None stands, in one go; False when that could not be saved."""
        return self._table.change(lambda _: {key: Change(pin) for key, pin in changes.items()}, wait_s)


_opened: dict[Path | None, PinsFile] = {}


def opened_pins(folder: Path | None) -> PinsFile:
    """Return this process's one object for the pins in this folder."""
    return _opened.setdefault(folder, _opened.get(folder) or PinsFile(folder))
