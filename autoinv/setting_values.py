"""What each setting takes: from an environment variable's text, or as given to ``configure``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

MODES = ("tune", "cached", "off")
LEVELS = ("debug", "info", "warning", "error", "critical")


def _mode(value: object) -> str:
    if value not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {value!r}")
    return str(value)


def _strategy(value: object) -> str:
    if not (isinstance(value, str) and value.isidentifier()):
        raise ValueError(f"strategy is a strategy's name, such as native, not {value!r}")
    return value


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
