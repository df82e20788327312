"""Two processes that keep the processor busy, and end when asked or after their time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

SPINNER = """
import time
ends = time.monotonic() + float({seconds})
while time.monotonic() < ends:
    sum(range(10000))
"""
PRODUCTS = """
import time, torch
A = torch.randn(600, 600)
ends = time.monotonic() + float({seconds})
while time.monotonic() < ends:
    A @ A
"""
KINDS = {"spinners": SPINNER, "matrix products": PRODUCTS}
STARTED_S = {"spinners": 0.3, "matrix products": 4.0}
"""How long a load takes to get going: importing torch is slow on a busy machine."""


@contextlib.contextmanager
def busy(kind: str, processes: int = 2, at_most_s: float = 120.0) -> Iterator[None]:
    """Keep the processor busy while the block runs, with processes that end by themselves in any case."""
    code = KINDS[kind].format(seconds=at_most_s)
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        time.sleep(STARTED_S[kind])
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
