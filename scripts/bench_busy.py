"""The founding report: what a call costs while other processes keep the cores busy.

(10,8,3,3) float64, two threads, mean over many calls: idle, beside two Python spinners, and beside
two processes that multiply matrices with two threads each. Bar: the mean of autoinv.inv under load
is at most 3 times its own idle mean. torch.linalg.inv and a Python loop over it stand beside it.
Exits 1 when the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from measuring import bench, load

import autoinv

SHAPE = (10, 8, 3, 3)
BAR = 3.0
TURNS = 40
TURN_S = 0.05


def mean_s(call: bench.Call, for_s: float) -> tuple[float, int]:
    """Return seconds a call, the mean over as many as fit, and how many that were."""
    began = now = time.perf_counter()
    count = 0
    while now - began < for_s:
        for _ in range(10):
            call()
        count += 10
        now = time.perf_counter()
    return (now - began) / count, count


def means_us() -> dict[str, float]:
    """Return the mean microseconds a call of each way, the ways taking turns."""
    A = torch.randn(*SHAPE, dtype=torch.float64)
    flat = A.view(-1, 3, 3)
    ways: dict[str, bench.Call] = {
        "autoinv.inv": lambda: autoinv.inv(A),
        "torch.linalg.inv": lambda: torch.linalg.inv(A),
        "loop": lambda: [torch.linalg.inv(M) for M in flat],
    }
    for call in ways.values():
        call()
    total = dict.fromkeys(ways, 0.0)
    calls = dict.fromkeys(ways, 0)
    for _ in range(TURNS):
        for name, call in ways.items():
            mean, count = mean_s(call, TURN_S)
            total[name] += mean * count
            calls[name] += count
    return {name: total[name] / calls[name] * 1e6 for name in ways}


def child() -> None:
    print(
        json.dumps(
            {**means_us(), "strategy": autoinv.explain(torch.randn(*SHAPE, dtype=torch.float64)).strategy}
        )
    )


def measured(threads: int, folder: str) -> dict[str, float | str]:
    return json.loads(bench.in_child(str(Path(__file__)), ["--child"], threads, AUTOINV_CACHE_DIR=folder))


def table(threads: int = 2) -> list[dict[str, object]]:
    """Measure idle and beside each load, and print a row each."""
    rows: list[dict[str, object]] = []
    print(f"mean us a call, {SHAPE} float64, {threads} threads, {TURNS} turns of {TURN_S * 1e3:.0f} ms each")
    print(
        f"{'beside':<18}{'autoinv.inv':>14}{'of its idle':>13}{'torch.linalg.inv':>18}{'of ours':>10}{'loop':>10}"
    )
    with tempfile.TemporaryDirectory() as folder:
        measured(threads, folder)  # tunes, and once more if the machine was contended
        idle = measured(threads, folder)
        for kind in (None, *load.KINDS):
            if kind is None:
                found = idle
            else:
                with load.busy(kind):
                    found = measured(threads, folder)
            ours, theirs = float(found["autoinv.inv"]), float(found["torch.linalg.inv"])
            ratio = ours / float(idle["autoinv.inv"])
            print(
                f"{kind or 'nothing (idle)':<18}{ours:14.2f}{ratio:12.2f}x{theirs:18.1f}{theirs / ours:9.0f}x"
                f"{float(found['loop']):10.0f}   ({found['strategy']})"
            )
            rows.append({"beside": kind, "of_its_idle": ratio, **found})
    return rows


def main() -> int:
    made = bench.parser(__doc__ or "")
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.child:
        child()
        return 0
    print(bench.describe())
    rows = table()
    bars = bench.Bars()
    for row in rows:
        if row["beside"] is not None:
            what = f"mean of autoinv.inv beside {row['beside']}, of its own idle mean"
            bars.at_most(what, float(str(row["of_its_idle"])), BAR)
    worst = max(float(str(row["of_its_idle"])) for row in rows)
    print(f"worst: {worst:.2f} times its own idle mean (bar {BAR})")
    bench.write_json(arguments.json, rows=rows, missed=bars.missed)
    return bars.exit_status()


if __name__ == "__main__":
    sys.exit(main())
