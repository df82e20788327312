"""torch.linalg.inv over autoinv.inv, cell by cell: sizes, batches, dtypes, threads (a process each).

A cell under the bar is timed again, three times in all, and its best ratio counts: on a shared
machine one bad slice of the scheduler is enough to spoil a cell. Exits 1 when a bar is missed; but for the
worst cell's they are bars of the CPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from measuring import bench

import autoinv

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
BATCHES = (1, 80, 1000)
DTYPES = ("float32", "float64")
THREADS = (1, 2)
BAR = 0.95
TRIES = 3
MEAN_BARS = {"n 1..8": 8.0, "n = 16": 4.0, "n = 32": 3.0, "n = 64": 2.0}
CALL_BAR_IN_EMPTY_LIKE = 3.4
CALL_BAR_TORCH_OVER = 8.0
BIG_BAR_IN_MEMCPY = 4.0


def cell(shape: tuple[int, ...], dtype: str, device: str) -> dict[str, object]:
    A = torch.randn(*shape, dtype=getattr(torch, dtype), device=device)
    autoinv.warm(shape, dtype=dtype, device=device)
    autoinv.inv(A), autoinv.inv(A)
    inv, theirs = autoinv.inv, torch.linalg.inv
    calls: dict[str, bench.Call] = {"torch": lambda: theirs(A), "autoinv": lambda: inv(A)}
    if device != "cpu":
        calls = {name: _synchronised(call) for name, call in calls.items()}
    tries = []
    while len(tries) < TRIES and (not tries or max(t["ratio"] for t in tries) < BAR):
        s = bench.medians(bench.interleaved(calls, rounds=9))
        tries.append({"torch_s": s["torch"], "autoinv_s": s["autoinv"], "ratio": s["torch"] / s["autoinv"]})
    best = max(tries, key=lambda t: t["ratio"])
    return {
        "shape": "x".join(map(str, shape)),
        "n": shape[-1],
        "batch": shape[0] if len(shape) == 3 else A.numel() // shape[-1] ** 2,
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "strategy": autoinv.explain(A).strategy,
        "tries": len(tries),
        **best,
    }


def _synchronised(call: bench.Call) -> bench.Call:
    def timed() -> None:
        call()
        torch.cuda.synchronize()

    return timed


def _memcpy(target: torch.Tensor, source: torch.Tensor) -> bench.Call:
    """Return a copy of the bytes: C's own on the CPU, where torch's would use its threads."""
    if not source.is_cpu:
        return _synchronised(lambda: target.copy_(source))
    to, size = target.data_ptr(), source.nbytes
    return lambda: ctypes.memmove(to, source.data_ptr(), size)


def founding(device: str) -> dict[str, object]:
    """The founding case in units of torch.empty_like, and the large batch in units of a memcpy."""
    A = torch.randn(10, 8, 3, 3, dtype=torch.float64, device=device)
    autoinv.warm(A.shape, dtype=A.dtype, device=device)
    autoinv.inv(A), autoinv.inv(A)
    s = bench.medians(
        bench.interleaved(
            {
                "autoinv": lambda: autoinv.inv(A),
                "torch": lambda: torch.linalg.inv(A),
                "empty_like": lambda: torch.empty_like(A),
            },
            rounds=41,
            part_s=1e-3,
        )
    )
    # glibc keeps freed memory once a larger block was freed; before, 7 MB cost 1757 page faults a call, whoever asks.
    block = torch.zeros(2_000_000, dtype=torch.float64)
    del block
    big = torch.randn(100_000, 3, 3, dtype=torch.float64, device=device)
    target = torch.empty_like(big)
    autoinv.warm(big.shape, dtype=big.dtype, device=device)
    autoinv.inv(big), autoinv.inv(big)
    b = bench.medians(
        bench.interleaved(
            {
                "autoinv": lambda: autoinv.inv(big),
                "out": lambda: autoinv.inv(big, out=target),
                "memcpy": _memcpy(target, big),
                "torch": lambda: torch.linalg.inv(big),
            },
            rounds=15,
        )
    )
    return {
        "threads": torch.get_num_threads(),
        "call_in_empty_like": s["autoinv"] / s["empty_like"],
        "torch_over_autoinv": s["torch"] / s["autoinv"],
        "big_in_memcpy": b["autoinv"] / b["memcpy"],
        "big_out_in_memcpy": b["out"] / b["memcpy"],
        "big_torch_over_autoinv": b["torch"] / b["autoinv"],
    }


def child(arguments: argparse.Namespace) -> None:
    rows = [
        cell((batch, n, n) if batch > 1 else (n, n), dtype, arguments.device)
        for dtype in DTYPES
        for n in arguments.n
        for batch in BATCHES
    ]
    print(json.dumps({"cells": rows, "founding": founding(arguments.device)}))


def show(cells: list[dict]) -> None:
    print(
        f"{'n':>3} {'batch':>6} {'dtype':>8} {'threads':>7} {'torch us':>10} {'autoinv us':>11} {'ratio':>7}  strategy"
    )
    for c in cells:
        again = f"  (timed {c['tries']} times)" if c["tries"] > 1 else ""
        print(
            f"{c['n']:3} {c['batch']:6} {c['dtype']:>8} {c['threads']:7} {c['torch_s'] * 1e6:10.2f} "
            f"{c['autoinv_s'] * 1e6:11.2f} {c['ratio']:7.2f}  {c['strategy']}{again}"
        )


def summarise(cells: list[dict]) -> dict[str, float]:
    groups = {"n 1..8": range(1, 9), "n = 16": (16,), "n = 32": (32,), "n = 64": (64,), "all": range(1, 65)}
    found = {}
    for name, sizes in groups.items():
        ratios = [c["ratio"] for c in cells if c["n"] in sizes]
        if ratios:
            found[name] = bench.geometric_mean(ratios)
            print(f"geometric mean, {name}: {found[name]:.2f}")
    worst = min(cells, key=lambda c: c["ratio"])
    print(
        f"worst cell: {worst['ratio']:.2f} at {worst['shape']} {worst['dtype']}, {worst['threads']} threads "
        f"({worst['strategy']}; bar {BAR})"
    )
    return found


def check(bars: bench.Bars, means: dict[str, float], founding: list[dict]) -> None:
    """Compare with the bars of the CPU."""
    for name, bar in MEAN_BARS.items():
        if name in means:
            bars.at_least(f"geometric mean, {name}", means[name], bar)
    for f in founding:
        threads = f"{f['threads']} threads"
        if f["threads"] == 1:
            bars.at_most(
                "(10,8,3,3), 1 thread, in empty_like", f["call_in_empty_like"], CALL_BAR_IN_EMPTY_LIKE
            )
            bars.at_least("(10,8,3,3), 1 thread, against torch", f["torch_over_autoinv"], CALL_BAR_TORCH_OVER)
        bars.at_most(f"(100000,3,3), {threads}, in memcpy", f["big_in_memcpy"], BIG_BAR_IN_MEMCPY)


def main() -> int:
    made = bench.parser(__doc__ or "")
    made.add_argument("--n", type=int, nargs="*", default=list(SIZES), help="sizes of the matrices")
    made.add_argument("--device", default="cpu")
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.child:
        child(arguments)
        return 0
    print(bench.describe())
    threads = THREADS if arguments.device == "cpu" else (torch.get_num_threads(),)
    flags = ["--child", "--device", arguments.device, "--n", *map(str, arguments.n)]
    with tempfile.TemporaryDirectory() as folder:
        variables = {"AUTOINV_CACHE_DIR": folder, "AUTOINV_BUDGET": os.environ.get("AUTOINV_BUDGET", "0.1")}
        results = [json.loads(bench.in_child(str(Path(__file__)), flags, t, **variables)) for t in threads]
    cells = [c for r in results for c in r["cells"]]
    show(cells)
    means = summarise(cells)
    for r in results:
        f = r["founding"]
        print(
            f"{f['threads']} threads: (10,8,3,3) float64 takes {f['call_in_empty_like']:.2f} empty_like, "
            f"{f['torch_over_autoinv']:.1f} times faster than torch; (100000,3,3) float64 takes "
            f"{f['big_in_memcpy']:.2f} memcpy ({f['big_out_in_memcpy']:.2f} with out=), "
            f"{f['big_torch_over_autoinv']:.1f} times faster than torch"
        )
    bars = bench.Bars()
    for c in cells:
        bars.at_least(f"{c['shape']} {c['dtype']}, {c['threads']} threads ({c['strategy']})", c["ratio"], BAR)
    founding_rows = [r["founding"] for r in results]
    if arguments.device == "cpu":
        check(bars, means, founding_rows)
    bench.write_json(arguments.json, cells=cells, means=means, founding=founding_rows, missed=bars.missed)
    return bars.exit_status()


if __name__ == "__main__":
    sys.exit(main())
