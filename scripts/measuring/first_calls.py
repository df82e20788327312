"""What a fresh process pays for its first calls, as JSON. Imports nothing of autoinv before the clock runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch

SHAPE = (10, 8, 3, 3)
CALLS = 2000
TURN = 100
KERNEL_TURN = 1000
"""Many, as the mean that all is compared with: a descheduling takes as long as thousands of calls."""


def first_contact(processes: str = "1") -> None:
    """Print what so many fresh processes paid, one after the other, each with an empty cache dir of its own.

    They are forked from one that has torch, and nothing of autoinv, in memory.
    """
    torch.randn(*SHAPE, dtype=torch.float64).mul_(1.0)
    for number in range(int(processes)):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.environ["AUTOINV_CACHE_DIR"] = f"{os.environ['AUTOINV_CACHE_DIR']}/{number}"
            print(json.dumps(contact()), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


def contact() -> dict[str, object]:
    """Return what this process pays: its first call, imports included, and its next ones beside the kernel's own."""
    A = torch.randn(*SHAPE, dtype=torch.float64)
    began = time.perf_counter()
    import autoinv

    autoinv.inv(A)
    first_s = time.perf_counter() - began

    from autoinv.ops.inv.operation import INV
    from autoinv.problem import Problem

    native = INV.strategy("native")
    assert native is not None
    kernel = native.bind(Problem.of("inv", A))
    ours_s = kernels_s = 0.0
    for _ in range(CALLS // TURN):
        ours_s += _seconds(lambda: autoinv.inv(A), TURN)
        kernels_s += _seconds(lambda: kernel(A), KERNEL_TURN) * TURN / KERNEL_TURN
    explanation = autoinv.explain(A)
    found = {"first_s": first_s, "ours_s": ours_s, "kernels_s": kernels_s}
    return {**found, "strategy": explanation.strategy, "source": explanation.source}


def _seconds(call: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - began


def cached(shape: str) -> None:
    """Print what the first call of this shape took, imports included, and what other unseen shapes took then."""
    A = torch.randn(*map(int, shape.split("x")), dtype=torch.float64)
    began = time.perf_counter()
    import autoinv

    autoinv.inv(A)
    first_s = time.perf_counter() - began
    later_s = []
    for batch in range(300, 340):
        B = torch.randn(batch, 4, 4, dtype=torch.float64)
        began = time.perf_counter()
        autoinv.inv(B)
        later_s.append(time.perf_counter() - began)
    print(json.dumps({"first_s": first_s, "later_s": later_s}))


if __name__ == "__main__":
    {"first_contact": first_contact, "cached": cached}[sys.argv[1]](*sys.argv[2:])
