"""The five settings: default, then environment variable, then ``configure``, then ``using``.

Settings are the process's, not the thread's: they steer a memo that all threads share.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from autoinv import fork, lazy
from autoinv.errors import logger, warn_once


@dataclass(frozen=True)
class Settings:
    """What autoinv goes by. ``budget`` is in seconds; ``cache_dir`` None means the user's cache dir."""

    mode: str = "tune"
    strategy: str | None = None
    budget: float = 0.1
    cache_dir: Path | None = None
    log: str = "warning"


MODES = ("tune", "cached", "off")
LEVELS = ("debug", "info", "warning", "error", "critical")


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


PARSERS: Mapping[str, Callable[[object], object]] = {
    "mode": _mode,
    "strategy": _strategy,
    "budget": _budget,
    "cache_dir": _cache_dir,
    "log": _log,
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


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"AUTOINV_{name.upper()}"


def current() -> Settings:
    """Return the settings in force."""
    return resolved()[0]


def resolved() -> tuple[Settings, dict[str, str]]:
    """Return the settings in force, and each one's origin: default, environment or configure."""
    global _last
    configured, last = _configured, _last
    texts = [os.environ.get(name, "") for name in _VARIABLES]
    if last is not None and last[0] is configured and last[1] == texts:
        _, _, settings, origins = last
    else:
        settings, origins, lasts = _parsed(configured, texts)
        _last = (configured, texts, settings, origins) if lasts else None
    _set_level(None if origins["log"] == "default" else settings.log)
    return settings, origins.copy()


_VARIABLES = tuple(map(variable, PARSERS))
_last: tuple[Mapping[str, object], list[str], Settings, dict[str, str]] | None = None
"""The last answer of `resolved`, behind what was configured and the variables' texts that it was made from."""


def _parsed(configured: Mapping[str, object], texts: Iterable[str]) -> tuple[Settings, dict[str, str], bool]:
    """Return settings and origins, and whether they last: for the same arguments the same, and nothing to warn of."""
    values: dict[str, object] = {}
    origins = dict.fromkeys(PARSERS, "default")
    lasts = True
    for (name, parse), text in zip(PARSERS.items(), map(str.strip, texts), strict=True):
        if name in configured:
            values[name], origins[name] = configured[name], "configure"
        elif text:
            try:
                values[name], origins[name] = parse(text), "environment"
                if name == "cache_dir" and not Path(text).is_absolute():
                    lasts = False  # it follows the home or the working directory
            except ValueError as error:
                lasts = False
                warn_once(
                    f"setting {name}",
                    f"the environment variable {variable(name)} is ignored, because {error}",
                    "The default is used; correct the variable or unset it.",
                )
    # Each parser gives its field's type.
    return replace(Settings(), **values), origins, lasts  # type: ignore[arg-type]


_level_before: list[int] = []
"""The logger's level before a setting of ours changed it; empty while none has."""


def _set_level(name: str | None) -> None:
    """Give the logger the level that is set, or the one that it had before any was."""
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
        raise TypeError(f"no setting is called {unknown[0]!r}; the settings are {', '.join(PARSERS)}")
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
