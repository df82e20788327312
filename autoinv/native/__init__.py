"""Loads the C++ kernels at first use. The layers above decide which problems they serve."""

from __future__ import annotations

import os
import warnings
from types import ModuleType

from autoinv import lazy

_extension: ModuleType | None = None
_missing: str | None = None
_tried = False


def load() -> ModuleType | None:
    """Return the extension module, or None if this install has none (see `why_missing`)."""
    global _extension, _missing, _tried
    if not _tried:
        try:
            _extension = lazy.module("autoinv.native._native")
        except ImportError as error:
            _missing = _explain(error)
        else:
            _use_isa_from_environment(_extension)
        _tried = True
    return _extension


def why_missing() -> str | None:
    """Return one sentence that says why the extension is missing, or None if it is there."""
    load()
    return _missing


def _explain(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "the native kernels were not built when autoinv was installed (no usable C++ compiler?)"
    return f"the native kernels could not be loaded: {error}"


def _use_isa_from_environment(extension: ModuleType) -> None:
    name = os.environ.get("AUTOINV_ISA")
    if not name:
        return
    try:
        extension.use_isa(name)
    except ValueError:
        warnings.warn(
            f"AUTOINV_ISA={name!r} is not an instruction set that this machine can run; "
            f"using {extension.isa()} (possible: {', '.join(extension.isas())}).",
            RuntimeWarning,
            stacklevel=3,
        )
