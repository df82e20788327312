"""Loads the C++ kernels at first use. The layers above decide which problems they serve."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from autoinv import lazy

BEST = "best"
"""Stands for the widest instruction set that this machine can run."""

_extension: ModuleType | None = None
_missing: str | None = None
_tried = False
_when_loaded: list[Callable[[], None]] = []


def load() -> ModuleType | None:
    """Return the extension module, or None if this install has none (see `why_missing`)."""
    global _extension, _missing, _tried
    if not _tried:
        try:
            _extension = lazy.module("autoinv.native._native")
        except ImportError as error:
            _missing = _explain(error)
        _tried = True
        for callback in _when_loaded:
            callback()
    return _extension


def when_loaded(callback: Callable[[], None]) -> None:
    """Call this function once the kernels are loaded, or found missing."""
    _when_loaded.append(callback)


def use_isa(name: str) -> None:
    """Let the kernels use this instruction set, or the best, from now on; before they are loaded nothing happens.

    Raises:
        ValueError: when this machine cannot run it.
    """
    if _extension is not None:
        wanted = _extension.isas()[-1] if name == BEST else name
        if _extension.isa() != wanted:
            _extension.use_isa(wanted)


def why_missing() -> str | None:
    """Return one sentence that says why the extension is missing, or None if it is there."""
    load()
    return _missing


def _explain(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "the native kernels were not built when autoinv was installed (no usable C++ compiler?)"
    return f"the native kernels could not be loaded: {error}"
