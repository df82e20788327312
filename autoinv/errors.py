"""Every warning and error text of autoinv's own, and the rule that a fault is reported once.

What torch.linalg.inv raises is raised by torch itself; nothing here imitates it.
"""

from __future__ import annotations

import logging
import warnings

from autoinv import fork

logger = logging.getLogger("autoinv")


class AutoinvWarning(RuntimeWarning):
    """Something of autoinv's own failed or is ignored; a call is answered all the same, by PyTorch's own if need be."""


_reported: set[str] = set()
_last: list[str] = []
_lock = fork.rlock()


def warn_once(kind: str, what: str, advice: str) -> None:
    """Say once a process what is wrong and what to do; never raise, not even under ``-W error``."""
    with _lock:
        if kind in _reported:
            return
        _reported.add(kind)
        message = f"autoinv: {what}. {advice}"
        _last[:] = [message]
    if not logger.isEnabledFor(logging.WARNING):
        return
    try:
        warnings.warn(message, AutoinvWarning, stacklevel=3)
    except AutoinvWarning:  # the filter is "error": a failed save must not end a training run
        logger.warning(message)


def last_warning() -> str | None:
    """Return the newest warning of this process, for the doctor's report."""
    return _last[0] if _last else None


def reset() -> None:
    """Forget what was reported, so that it is reported again."""
    _reported.clear()
    _last.clear()
