"""What a call of autoinv.inv on a DTensor costs: its shards, one a rank, over two gloo processes of this machine.

Bar: at most what DTensor adds to a like operation (torch.neg) plus 1.3 times the call on the shard alone, at best of
the tries. Exits 1 when it is missed on either rank. Each rank has one thread, as under torchrun, whose processor time
is measured: what else the machine does counts little.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from measuring import bench

import autoinv

RANKS = 2
TRIES = 12
SHARD_BAR = 1.3
SHAPES = ((100, 3, 3), (10_000, 3, 3), (1000, 8, 8))
"""Of the shard on each rank."""
LEAST_S = 0.02
TORCH_CALLS = 20


def rank_main(rank: int, store: str) -> bool:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    held = True
    for batch, n, _ in SHAPES:
        A = torch.randn(RANKS * batch, n, n) + n * torch.eye(n)
        D = distribute_tensor(A, mesh, [Shard(0)])
        shard = D.to_local()
        autoinv.warm(shard.shape)
        calls: dict[str, bench.Call] = {
            "autoinv, shard": lambda shard=shard: autoinv.inv(shard),
            "autoinv, DTensor": lambda D=D: autoinv.inv(D),
            "neg, shard": lambda shard=shard: torch.neg(shard),
            "neg, DTensor": lambda D=D: torch.neg(D),
        }
        best: dict[str, float] = {}
        for _ in range(TRIES):
            for name, call in calls.items():
                seconds = processor_s(call)
                best[name] = min(best.get(name, seconds), seconds)
        dist.barrier()
        if has_a_rule(D):
            best["torch, DTensor"] = in_step_s(lambda D=D: torch.linalg.inv(D))
        added = best["neg, DTensor"] - best["neg, shard"]
        bar = added + SHARD_BAR * best["autoinv, shard"]
        held = held and best["autoinv, DTensor"] <= bar
        times = ", ".join(f"{name} {1e6 * seconds:.1f}" for name, seconds in best.items())
        shape = "x".join(map(str, shard.shape))
        print(f"rank {rank}, {shape} float32 a rank, us: {times}; bar {1e6 * bar:.1f}", flush=True)
    return held


def processor_s(call: bench.Call) -> float:
    """Return seconds of this thread a call."""
    repeats = bench.time_call(call, LEAST_S)[1]
    began = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - began) / repeats


def in_step_s(call: bench.Call) -> float:
    """Return seconds a call, the same number of calls on each rank: torch's gathers its check for singular ones."""
    began = time.perf_counter()
    for _ in range(TORCH_CALLS):
        call()
    return (time.perf_counter() - began) / TORCH_CALLS


def has_a_rule(D: torch.Tensor) -> bool:
    try:
        torch.linalg.inv(D)
    except NotImplementedError:  # torch 2.6
        return False
    return True


def main() -> int:
    print(bench.describe(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(Path(folder, "store"))],
                env={**os.environ, "AUTOINV_CACHE_DIR": str(Path(folder, str(rank))), "OMP_NUM_THREADS": "1"},
            )
            for rank in range(RANKS)
        ]
        codes = [rank.wait() for rank in ranks]
    print("the bar holds" if not any(codes) else "the bar is missed")
    return int(any(codes))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    code = int(not rank_main(int(sys.argv[1]), sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)  # gloo's threads may abort Python's own ending
