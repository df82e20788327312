"""A plugin of pytest: all tests run with autoinv.patched() on, and it counts which of them invert."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import autoinv
from autoinv.api.recording import Recorder

COUNTS = os.environ.get("UNDER_PATCHED")
"""Where to write how many tests inverted, and how often they did; not patched where that is empty."""


class UnderPatched:
    def __init__(self) -> None:
        self.recorder = Recorder()
        self.tests = 0

    def calls(self) -> int:
        return sum(tally.calls for tally in self.recorder.tallies.values())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        before = self.calls()
        try:
            return (yield)
        finally:
            self.tests += self.calls() > before

    def pytest_sessionfinish(self) -> None:
        self.recorder.stop()
        Path(COUNTS or os.devnull).write_text(f"{self.tests} {self.calls()}")


def pytest_configure(config: pytest.Config) -> None:
    """Begin before the tests, and so the library, are imported: names that it takes from torch are ours too."""
    if COUNTS:
        autoinv.patched(all_threads=True).__enter__()
        plugin = UnderPatched()
        plugin.recorder.start()
        config.pluginmanager.register(plugin)
