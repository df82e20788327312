"""A check that nothing was timed or stored: while torch traces, fakes, transforms or captures."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from autoinv.ops.table import OPERATIONS


@contextmanager
def nothing_timed_or_stored(folder):
    """Fail when the block times a candidate, fills the memo, or writes a file into the cache dir."""

    def refuse(*args, **kwargs):
        pytest.fail("something was timed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoinv.tuning.timing.Stopwatch.seconds", refuse)
        yield
    assert {} == dict(OPERATIONS["inv"].dispatcher.memo)
    assert [] == sorted(folder.glob("decisions*"))
