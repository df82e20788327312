"""Every test has a cache dir of its own and starts with nothing remembered."""

from __future__ import annotations

import os

import pytest

from autoinv import errors, settings
from autoinv.ops.table import OPERATIONS
from autoinv.planning import agreement


@pytest.fixture(autouse=True)
def private_cache_dir(tmp_path_factory, monkeypatch):
    """A cache dir of this test's own; settings, memo and past warnings as in a new process."""
    for name in [name for name in os.environ if name.startswith("AUTOINV_") and name != "AUTOINV_ISA"]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AUTOINV_CACHE_DIR", str(folder))
    start_afresh()
    yield folder
    settings.configure(mode=None, strategy=None, budget=None, cache_dir=None, log=None, isa=None)
    start_afresh()


def start_afresh() -> None:
    """Forget all that this process tuned, remembered and warned of, as if it were a new one."""
    errors.reset()
    settings.read_variables_again()
    agreement.adopt((), {})
    for dispatcher in [call.dispatcher for call in OPERATIONS.values()]:
        dispatcher.planner.forget()
        dispatcher.forget()
