"""The six settings: default, then environment variable, then ``configure``, then ``using``.

Settings are the process's, not the thread's: they steer a memo that all threads share. The variables are read once, at
first use, as torch reads its own: a program that changes a setting later calls ``configure``.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict, get_args

from autoinv import fork, lazy, native
from autoinv.errors import logger, show_log, warn_once


@dataclass(frozen=True)
class Settings:
    """What autoinv goes by. ``budget`` is in seconds; ``cache_dir`` None means the user's cache dir."""

    mode: str = "tune"
    strategy: str | None = None
    budget: float = 0.1
    cache_dir: Path | None = None
    log: str = "warning"
    isa: str = native.BEST


Mode = Literal["tune", "cached", "off"]
Level = Literal["debug", "info", "warning", "error", "critical"]
Isa = Literal["best", "baseline", "avx2", "avx512"]


class Changes(TypedDict, total=False):
    """What `configure` and `using` take; None unsets."""

    mode: Mode | None
    strategy: str | None
    budget: float | None
    cache_dir: str | os.PathLike[str] | None
    log: Level | None
    isa: Isa | None


MODES: tuple[str, ...] = get_args(Mode)
LEVELS: tuple[str, ...] = get_args(Level)
ISAS: tuple[str, ...] = get_args(Isa)


def _mode(value: object) -> str:
    if value not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {value!r}")
    return str(value)


def _strategy(value: object) -> str:
    if not (isinstance(value, str) and value.isidentifier()):
        raise ValueError(f"strategy is a strategy's name, such as native, not {value!r}")
    known = sorted(_strategy_names())
    if value not in known:
        raise ValueError(f"strategy is one of {', '.join(known)}, not {value!r}")
    return value


_strategy_names: Callable[[], Iterable[str]] = tuple


def take_strategy_names_from(names: Callable[[], Iterable[str]]) -> None:
    """Let this function say which names of strategies there are; the table of operations is above this module."""
    global _strategy_names
    _strategy_names = names


def _budget(value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]  # whatever float() takes is a number to us
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"budget is a number of seconds, 0 or more, not {value!r}")
    return seconds


def _cache_dir(value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value).strip() or "\0" in str(value):
        raise ValueError(f"cache_dir is the path of a folder, not {value!r}")
    try:
        return Path(value).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no home to expand ~ to, or no working directory any more
        raise ValueError(f"cache_dir {str(value)!r} cannot be made absolute: {error}") from None


def _log(value: object) -> str:
    if not isinstance(value, str) or value.lower() not in LEVELS:
        raise ValueError(f"log is one of {', '.join(LEVELS)}, not {value!r}")
    return value.lower()


def _isa(value: object) -> str:
    if value not in ISAS:
        raise ValueError(f"isa is one of {', '.join(ISAS)}, not {value!r}")
    extension = native.load() if value != native.BEST else None
    if extension is not None and value not in extension.isas():
        raise ValueError(f"isa is one that this machine runs, {', '.join(extension.isas())}, not {value!r}")
    return str(value)


PARSERS: Mapping[str, Callable[[object], object]] = {
    "mode": _mode,
    "strategy": _strategy,
    "budget": _budget,
    "cache_dir": _cache_dir,
    "log": _log,
    "isa": _isa,
}
"""Each returns the setting's value, and raises ValueError for what it does not take."""

_lock = fork.rlock()
_base: dict[str, object] = {}
"""What `configure` set."""
_overlays: list[Mapping[str, object]] = []
"""What each block of `using` sets, the youngest last; None in one hides what lies under it."""
_configured: dict[str, object] = {}
"""Both together; replaced as a whole, never changed."""
_listeners: list[Callable[[], None]] = []


_PREFIX = "AUTOINV_"


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def current() -> Settings:
    """Return the settings in force."""
    return resolved()[0]


def resolved() -> tuple[Settings, dict[str, str]]:
    """Return the settings in force, and each one's origin: default, environment or configure."""
    global _last
    configured, last = _configured, _last
    if last is None or last[0] is not configured:
        values: dict[str, object] = {**_from_environment(), **configured}
        origins = dict.fromkeys(PARSERS, "default") | dict.fromkeys(_from_environment(), "environment")
        origins |= dict.fromkeys(configured, "configure")
        # Each parser gives its field's type.
        last = _last = (configured, replace(Settings(), **values), origins)  # type: ignore[arg-type]
        native.use_isa(last[1].isa)
    _, settings, origins = last
    _set_level(None if origins["log"] == "default" else settings.log)
    return settings, origins.copy()


_last: tuple[Mapping[str, object], Settings, dict[str, str]] | None = None
"""The last answer of `resolved`, behind what was configured."""
_read: Mapping[str, object] | None = None
"""The values of the variables, once they were read."""


def _from_environment() -> Mapping[str, object]:
    """Return the values that the environment variables have at first use; a bad one is reported and left out."""
    global _read
    if _read is None:  # two threads that get here read the same, and each fault is reported once
        _read = {name: value for name in PARSERS if (value := _parsed_variable(name)) is not None}
        _report_mistyped()
    return _read


def _parsed_variable(name: str) -> object:
    text = os.environ.get(variable(name), "").strip()
    try:
        return PARSERS[name](text) if text else None
    except ValueError as error:
        warn_once(
            f"setting {name}",
            f"the environment variable {variable(name)} is ignored, because {error}",
            "The default is used; correct the variable or unset it.",
        )
        return None


def _report_mistyped() -> None:
    """Warn of variables that are no setting's, and nearly bear the name of one's."""
    known = {variable(name) for name in PARSERS}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known and (near := nearest(name, known)):
            warn_once(
                f"variable {name}",
                f"the environment variable {name} is ignored, because no setting is called so",
                f"Did you mean {near}?",
            )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that this one was probably meant to be, if there is one."""
    import difflib  # only where something was mistyped

    return next(iter(difflib.get_close_matches(name, list(known), 1, 0.8)), None)


def read_variables_again() -> None:
    """Read the environment variables at the next use, as a new process does."""
    global _read, _last
    _read = _last = None


_level_before: list[int] = []
"""The logger's level before a setting of ours changed it; empty while none has."""


def _set_level(name: str | None) -> None:
    """Give the logger the level that is set, or the one that it had before any was."""
    show_log(name in ("debug", "info"))
    if name is not None:
        _level_before[:] = _level_before or [logger.level]
        level = getattr(logging, name.upper())
        if logger.level != level:  # setLevel empties the caches of all loggers
            logger.setLevel(level)
    elif _level_before:
        logger.setLevel(_level_before.pop())


def check(changes: Mapping[str, object]) -> dict[str, object]:
    """Return the changes with every value parsed; None stays None and means "no longer configured".

    Raises:
        ValueError: for a value that the setting does not take.
        TypeError: for a name that is no setting.
    """
    unknown = sorted(set(changes) - set(PARSERS))
    if unknown:
        near = nearest(unknown[0], PARSERS)
        meant = f"did you mean {near!r}?" if near else f"the settings are {', '.join(PARSERS)}"
        raise TypeError(f"no setting is called {unknown[0]!r}; {meant}")
    return {name: None if value is None else PARSERS[name](value) for name, value in changes.items()}


def configure(**changes: object) -> None:
    """Set settings for this process; None returns one to its environment variable or default."""
    parsed = check(changes)
    with _lock:
        _base.update(parsed)
        _combine()
    _notify()


@contextmanager
def using(**changes: object) -> Iterator[Settings]:
    """Set settings for this process while the block runs; then take away these, whatever was set meanwhile."""
    overlay = check(changes)
    try:
        with _lock:
            _overlays.append(overlay)
            _combine()
        _notify()
        yield current()
    finally:
        with _lock:
            _overlays[:] = [other for other in _overlays if other is not overlay]
            _combine()
        _notify()


def _combine() -> None:
    global _configured
    both = dict(_base)
    for overlay in _overlays:
        both.update(overlay)
    _configured = {name: value for name, value in both.items() if value is not None}


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` after every change of the settings."""
    _listeners.append(listener)


def _notify() -> None:
    resolved()  # sets the level of the logger
    for listener in _listeners:
        listener()


def cache_dir() -> Path | None:
    """Return the folder of the decisions, whether or not it exists; None when there is no such place."""
    chosen = current().cache_dir
    if chosen is not None:
        return chosen
    try:
        with lazy.importing:
            import platformdirs  # 2.5 ms, and only needed without a configured folder

        folder = Path(platformdirs.user_cache_dir("autoinv", appauthor=False))
    except (ImportError, RuntimeError, OSError, KeyError):
        folder = Path("~")
    if folder.is_absolute() and "~" not in folder.parts:
        return folder
    # platformdirs up to 4.9.4 gives a literal ~/.cache without HOME, newer ones raise (platformdirs 416)
    warn_once(
        "no cache dir",
        "there is no user cache dir here (HOME unset, or XDG_CACHE_HOME not absolute?), so decisions last as long "
        "as this process",
        "Set AUTOINV_CACHE_DIR to a folder that may be written.",
    )
    return None


native.when_loaded(lambda: native.use_isa(current().isa))
