"""One rank of a distributed program, for test_sync.py: what it does, as JSON on standard output."""

from __future__ import annotations

import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist

import autoinv
from autoinv.tuning.timing import Stopwatch

SHAPES = [(batch, n, n) for batch in (5, 100) for n in (2, 3, 4)]
NEIGHBOUR = (6, 3, 3)
"""No rank tuned it, but every rank tuned a neighbour of it."""


class NoisyStopwatch(Stopwatch):
    """Each rank measures other times for the same calls, all within about three times of each other."""

    def __init__(self, rank: int) -> None:
        self._random = random.Random(rank)
        self._times: dict[int, tuple[object, float]] = {}

    def cpu_share(self, wall_s: float, thread_s: float) -> float:
        return 1.0

    def seconds(self, call, repeats: int) -> float:
        call()
        return self._times.setdefault(id(call), (call, 1e-6 * 10 ** self._random.uniform(0, 0.5)))[1]


def choices() -> dict[str, str]:
    found = {}
    for shape in [*SHAPES, NEIGHBOUR]:
        X = autoinv.inv(torch.eye(shape[-1]).repeat(shape[0], 1, 1))
        assert torch.equal(X, torch.eye(shape[-1]).repeat(shape[0], 1, 1))
        known = autoinv.explain(torch.empty(shape))
        found["x".join(map(str, shape))] = known.strategy
    return found


def agree(rank: int) -> dict[str, object]:
    import autoinv.tuning.tuner

    noisy = NoisyStopwatch(rank)
    autoinv.tuning.tuner.stopwatch_for = lambda device: noisy
    if rank == 0:
        autoinv.pin((100, 4, 4), "loop")
    before = choices()
    count = autoinv.sync()
    after = choices()
    autoinv.tuning.tuner.tune = None  # a further tuning would raise
    again = choices()
    source = autoinv.explain(torch.empty(5, 3, 3)).source
    autoinv.pin((5, 3, 3), "vmap")
    return {
        "before": before,
        "after": after,
        "again": again,
        "count": count,
        "source": source,
        "pinned": autoinv.explain(torch.empty(5, 3, 3)).strategy,
        "second": autoinv.sync(),
        "repinned": autoinv.explain(torch.empty(5, 3, 3)).strategy,
    }


def miss(rank: int) -> dict[str, object]:
    """Rank 1 comes only when rank 0 has given up."""
    if rank == 1:
        while not dist.distributed_c10d._get_default_store().check(["rank 0 gave up"]):
            time.sleep(0.02)
    started_s = time.monotonic()
    try:
        autoinv.sync(timeout_s=0.5)
    except TimeoutError as error:
        message: object = str(error)
    else:
        message = None
    waited_s = time.monotonic() - started_s
    if rank == 0:
        dist.distributed_c10d._get_default_store().set("rank 0 gave up", "1")
    return {"message": message, "waited_s": waited_s, "then": autoinv.sync()}


if __name__ == "__main__":
    rank, world, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
    print(json.dumps({"missed": miss(rank), "agreed": agree(rank)}), flush=True)
    dist.barrier()  # rank 0 stays until all have read its result
    dist.destroy_process_group()
    os._exit(0)  # Python's own ending aborts now and then: https://github.com/pytorch/pytorch/issues/190489
