"""Every warning and error text of autoinv's own, and the rule that a fault is told once.

What torch.linalg.inv raises is raised by torch itself; nothing here imitates it.
"""

from __future__ import annotations

import logging
import warnings

from autoinv import fork

logger = logging.getLogger("autoinv")


class AutoinvWarning(RuntimeWarning):
    """Something of autoinv's own failed; the answer was still computed, by PyTorch's own call."""


_told: set[str] = set()
_last: list[str] = []
_lock = fork.Lock(reentrant=True)


def warn_once(kind: str, what: str, advice: str) -> None:
    """Say once a process what is wrong and what to do; never raise, not even under ``-W error``."""
    with _lock:
        if kind in _told:
            return
        _told.add(kind)
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
    """Forget what was told, so that it is told again."""
    _told.clear()
    _last.clear()
