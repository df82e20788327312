"""Problems, decisions, files and child processes for the tests of the decisions file."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from autoinv.problem import Problem
from autoinv.store.decisions import Decision, DecisionsFile

ANOTHER_UID = 54321
HANG_S = 30
"""A child that runs so long hangs; what it waits for by right is a tenth of a second."""


@dataclass(frozen=True)
class Machine:
    """An environment as decisions.py sees one."""

    fingerprint: str = "0123456789abcdef"
    parts: dict[str, object] = field(default_factory=lambda: {"cpu_model": "test", "cores": 2}, hash=False)

    def as_dict(self) -> dict[str, object]:
        return self.parts


def problem(batch: int = 80, n: int = 3, threads: int = 2, layout: str = "contiguous") -> Problem:
    return Problem("inv", ((batch, n, n),), torch.float64, "cpu", threads, (layout,))


def decision(batch: int = 80, n: int = 3, **changes: object) -> Decision:
    parts: dict[str, object] = {
        "problem": problem(batch, n),
        "strategy": "closed_form",
        "seconds": {"closed_form": 2.4e-5, "batched": 2.3e-5, "loop": 1.3e-3},
        "rejected": {"bmm": "residual 31 is over 4"},
        "complete": True,
        "contended": False,
        "rounds": 24,
        "tunings": 1,
        "created": "2026-11-30T10:00:00Z",
    }
    return Decision(**{**parts, **changes})


def open_file(folder: Path | None, machine: Machine | None = None) -> DecisionsFile:
    """Return what a process that just started would hold."""
    return DecisionsFile(folder, machine or Machine())  # type: ignore[arg-type]


def batches(folder: Path) -> list[int]:
    """Return the batches of the decisions on disk, as a new process reads them."""
    return sorted(found.problem.batch for found in open_file(folder).all())


def leftovers(folder: Path) -> list[str]:
    """Return the names of temporary files."""
    return sorted(path.name for path in folder.glob(".*.tmp"))


def fork(work: Callable[[], object], uid: int | None = None) -> int:
    """Run ``work`` in a forked child, as another user if asked; return its process id. It exits 0 or 1."""
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        faulthandler.register(signal.SIGALRM, file=sys.__stderr__, chain=True)
        signal.alarm(HANG_S)
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def wait_for(child: int) -> int:
    """Return a child's exit status; minus the signal's number when one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work: Callable[[], object], uid: int | None = None) -> None:
    """Run ``work`` in a forked child and fail when it raises or hangs."""
    assert wait_for(fork(work, uid)) == 0


def as_ordinary_user(work: Callable[[], object]) -> None:
    """Run ``work`` as a user whom permissions bind: root passes them by nature."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        in_child(work, ANOTHER_UID)
    else:
        work()


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Give a folder that any user can reach, and an ordinary user owns."""
    with tempfile.TemporaryDirectory(prefix="autoinv-test-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            os.chown(folder, ANOTHER_UID, ANOTHER_UID)
        try:
            yield folder
        finally:
            with suppress(OSError):
                folder.chmod(0o700)
