"""Every test has a cache dir of its own and starts with nothing remembered."""

from __future__ import annotations

import os

import pytest

from autoinv import errors, settings
from autoinv.ops.table import DISPATCHERS
from autoinv.planning import agreement


@pytest.fixture(autouse=True)
def private_cache_dir(tmp_path_factory, monkeypatch):
    """A cache dir of this test's own; settings, memo and told warnings as in a new process."""
    for name in [name for name in os.environ if name.startswith("AUTOINV_") and name != "AUTOINV_ISA"]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AUTOINV_CACHE_DIR", str(folder))
    start_afresh()
    yield folder
    settings.configure(mode=None, strategy=None, budget=None, cache_dir=None, log=None)
    start_afresh()


def start_afresh() -> None:
    """Forget what this process learnt, told and remembered, as a new process would have it."""
    errors.reset()
    agreement.adopt((), {})
    for dispatcher in DISPATCHERS.values():
        dispatcher.planner.forget()
        dispatcher.forget()
