"""Imports at first use, safe against a fork in another thread.

A child forked while another thread imports a module finds it half imported, and waits for ever when it
imports it too: the thread that would finish is not there. So a fork waits for imports under this lock:

    with lazy.importing:
        from filelock import FileLock
"""

from __future__ import annotations

import importlib
import threading
from types import ModuleType

from autoinv import fork

importing = threading.RLock()
"""Held while importing; reentrant, as what is imported may import and a signal handler may fork."""
fork.wait_for(importing)


def module(name: str) -> ModuleType:
    """Return a module, imported now if it was not before."""
    with importing:
        return importlib.import_module(name)
