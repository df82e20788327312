"""Every warning and error text of autoinv's own, and the rule that a fault is reported once.

What torch.linalg.inv raises is raised by torch itself; nothing here imitates it.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

from autoinv import fork

FROM_TORCH_OR_KERNELS = (RuntimeError, ValueError, TypeError, MemoryError)
"""What torch and the kernels raise (NotImplementedError, LinAlgError and OutOfMemoryError are RuntimeErrors). Only this
is caught around a strategy; anything else, a deadline that a signal handler raises, is the program's own."""

FROM_PLANNING = (*FROM_TORCH_OR_KERNELS, LookupError, AttributeError, ArithmeticError, ImportError, OSError)
"""What may go wrong on the way to a strategy: torch, the file, an import, a fault of autoinv's own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, which passes: Python's own error, a GPU's, or that of torch's allocator on the CPU."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and (
        type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    )


def is_foreign(error: BaseException) -> bool:
    """Whether a signal handler of the program raised this as its deadline: a TimeoutError that names no system call."""
    return isinstance(error, TimeoutError) and error.errno is None


class ignoring_os_errors:  # noqa: N801 - used as contextlib.suppress is
    """A block that an error of the system ends early; a deadline of the program's own passes through."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Say whether the error ends here."""
        return isinstance(error, OSError) and not is_foreign(error)


logger = logging.getLogger("autoinv")


class AutoinvWarning(RuntimeWarning):
    """Something of autoinv's own failed or is ignored; a call is answered all the same, by PyTorch's own if need be."""


class StderrHandler(logging.Handler):
    """Writes to what ``sys.stderr`` is at the time: a notebook's, or the one above a progress bar.

    The one that shows the log of a program that does not configure logging is silent once another handler is there.
    """

    def __init__(self, *, alone: bool = False) -> None:
        super().__init__()
        self.alone = alone

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, in a line of its own."""
        others = [*logging.getLogger().handlers, *(h for h in logger.handlers if h is not self)]
        if self.alone and any(not isinstance(handler, logging.NullHandler) for handler in others):
            return
        try:
            print(f"autoinv: {self.format(record)}" if self.alone else self.format(record), file=sys.stderr)
        except Exception:  # as every handler does
            self.handleError(record)


_when_alone = StderrHandler(alone=True)


def show_log(is_wanted: bool) -> None:
    """Show the log on standard error where the program does not configure logging, or leave that off again."""
    if is_wanted and _when_alone not in logger.handlers:
        logger.addHandler(_when_alone)
    elif not is_wanted and _when_alone in logger.handlers:
        logger.removeHandler(_when_alone)


_PACKAGE = str(Path(__file__).parent)
_reported: set[str] = set()
_last: list[str] = []
_lock = fork.rlock()


def warn_once(kind: str, what: str, advice: str) -> None:
    """Say once a process what is wrong and what to do; never raise, not even under ``-W error``."""
    with _lock:
        if kind in _reported:
            return
        _reported.add(kind)
        message = f"autoinv: {what.rstrip('.')}. {advice}"
        _last[:] = [message]
    if not logger.isEnabledFor(logging.WARNING):
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # up to the line of the program that called
    place = (frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<unknown>"))
    try:
        warnings.warn_explicit(
            message, AutoinvWarning, *place, registry=frame.f_globals.setdefault("__warningregistry__", {})
        )
    except AutoinvWarning:  # the filter is "error": a failed save must not end a training run
        logger.warning(message)


def last_warning() -> str | None:
    """Return the newest warning of this process, for the doctor's report."""
    return _last[0] if _last else None


def reset() -> None:
    """Forget what was reported, so that it is reported again."""
    _reported.clear()
    _last.clear()
