"""Is the tuner's choice right? Regret, flips, busy machines, budgets and neighbours, measured.

Regret is the chosen strategy's time over the time of what the rules would choose, minus 1. Both are times on a
machine that does nothing else; the rules (single-threaded before fast, and the 5 % of the reference included)
choose from the times of every strategy that supports the problem. Bars: uncontended, median at most 2 %, 95th
percentile at most 10 %, and no multithreaded strategy where a single-threaded one is clearly near the best; busy,
no choice with a regret over 10 % without the contended mark, later uncontended tunings correct it, and where a
single-threaded strategy is within 1.5 times of the best the busy mean of the choice is at most 3 times its idle
mean; the first call keeps to its budget but for one slowest call; a neighbour's choice costs at most 10 % over
the shape's own; large batches at most 10 %; quiet tunings are not marked contended; 200 random batch sizes cost at
most 26 tunings and a third of a second. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
import tempfile
import time

import torch
from measuring import audit_budget, audit_busy, bench
from measuring.audit_quiet import (
    UNCONTENDED_CPU_SHARE,
    flip_rate,
    problem_of,
    report_bad,
    time_every_strategy,
    tune_once,
)

import autoinv
from autoinv.problem import format_shape

GRID = [
    ((10, 8, 3, 3), torch.float64),
    ((3, 3), torch.float32),
    ((1000, 4, 4), torch.float32),
    ((80, 8, 8), torch.float64),
    ((1000, 12, 12), torch.float64),
    ((20_000, 6, 6), torch.float32),
    ((16, 32, 32), torch.float64),
    ((4, 80, 80), torch.float32),
    ((6, 100, 100), torch.float64),
    ((500, 3, 3), torch.complex128),
    ((64, 2, 2), torch.complex64),
]
BUSY_GRID = GRID[:4]
LARGE_GRID = [
    ((100_000, 3, 3), torch.float64),
    ((1_000_000, 3, 3), torch.float64),
    ((4_000_000, 3, 3), torch.float64),
    ((100_000, 8, 8), torch.float64),
    ((1_000_000, 4, 4), torch.float32),
    ((1000, 12, 12), torch.float64),
]
LARGE_TUNINGS = 10
MARKED_GRID = [(2000, 32, 32), (20_000, 8, 8), (16, 32, 32)]
MARKED_TUNINGS, MARKED_BAR = 20, 1
RANDOM_TUNINGS_BAR, RANDOM_S_BAR = 26, 1 / 3
MEDIAN_BAR, P95_BAR = 0.02, 0.10
NEIGHBOUR_TUNINGS_BAR, NEIGHBOUR_COST_BAR = 20, 0.10


def audit_regret(bars: bench.Bars, tunings: int) -> dict[str, object]:
    print(f"\nRegret of {tunings} cold tunings each, {torch.get_num_threads()} threads, beside nothing")
    print(
        f"{'problem':<26}{'chosen':<34}{'by the rules':<17}{'median':>8}{'worst':>8}{'threaded':>9}{'flips':>7}"
        f"{'ms':>8}{'contended':>11}{'cpu share':>10}"
    )
    rows = [_regret_of(problem_of(shape, dtype), tunings) for shape, dtype in GRID]
    every = sorted(r for row in rows for r in row["regrets"])
    median, p95 = statistics.median(every), every[max(0, round(0.95 * len(every)) - 1)]
    multithreaded = sum(row["multithreaded"] for row in rows)
    print(
        f"median regret {median:.1%} (bar 2 %), 95th percentile {p95:.1%} (bar 10 %), "
        f"multithreaded {multithreaded} (bar 0)"
    )
    least = min(float(row["cpu_share"]) for row in rows)
    bars.at_least(
        "uncontended: share of the processor beside the timings (below it something else ran)",
        least,
        UNCONTENDED_CPU_SHARE,
    )
    bars.at_most("uncontended: median regret", median, MEDIAN_BAR)
    bars.at_most("uncontended: 95th percentile of the regret", p95, P95_BAR)
    bars.at_most(
        "uncontended: multithreaded choices where a single-threaded one is near the best", multithreaded, 0
    )
    return {"median": median, "p95": p95, "rows": rows}


def _regret_of(p, tunings: int) -> dict:
    began = time.perf_counter()
    decisions = [tune_once(p) for _ in range(tunings)]
    spent_ms = (time.perf_counter() - began) / tunings * 1e3
    now = time_every_strategy(p)
    chosen = [d.strategy for d in decisions]
    regrets = [now.regret(name) for name in chosen]
    multithreaded = sum(map(now.is_needlessly_multithreaded, chosen))
    counts = ", ".join(f"{name} {count}" for name, count in collections.Counter(chosen).most_common())
    print(
        f"{format_shape(p.shape) + ' ' + p.dtype_name:<26}{counts:<34}{now.right:<17}"
        f"{statistics.median(regrets):8.1%}{max(regrets):8.1%}{multithreaded:9}{flip_rate(chosen):7.0%}{spent_ms:8.1f}"
        f"{sum(d.contended for d in decisions):8}/{tunings}{now.cpu_share:12.2f}"
    )
    report_bad(now, decisions)
    return {
        "problem": p.key,
        "cpu_share": now.cpu_share,
        "regrets": regrets,
        "multithreaded": multithreaded,
        "flips": flip_rate(chosen),
        "right": now.right,
        "uncontended_s": now.seconds,
    }


def audit_large(bars: bench.Bars) -> list[dict[str, object]]:
    print(f"\nRegret of {LARGE_TUNINGS} cold tunings of each large batch, {torch.get_num_threads()} threads")
    rows = [_regret_of(problem_of(shape, dtype), LARGE_TUNINGS) for shape, dtype in LARGE_GRID]
    for row in rows:
        bars.at_most(f"large: worst regret of {row['problem']}", max(row["regrets"]), P95_BAR)
    return rows


def audit_marks(bars: bench.Bars) -> dict[str, int]:
    """Count the quiet tunings that are marked contended because a thread slept in a pool or a team."""
    marked = {}
    print(f"\n{MARKED_TUNINGS} quiet tunings each, marked contended (bar {MARKED_BAR}):")
    for shape in MARKED_GRID:
        p = problem_of(shape, torch.float64)
        marked[p.key] = sum(tune_once(p).contended for _ in range(MARKED_TUNINGS))
        print(f"{format_shape(shape):<16}{marked[p.key]:4}")
        bars.at_most(f"quiet tunings of {p.key} marked contended", marked[p.key], MARKED_BAR)
    return marked


def audit_random_batches(bars: bench.Bars) -> dict[str, float]:
    """Call 3x3 with batch sizes as they come: how many tunings, and what they take."""
    sizes = torch.randint(1, 5001, (200,), generator=torch.Generator().manual_seed(2)).tolist()
    tunings: list[float] = []
    end = autoinv.on_decision(lambda event: tunings.append(event.spent_s) if event.tuned else None)
    with tempfile.TemporaryDirectory() as folder, autoinv.using(cache_dir=folder):
        for batch in sizes:
            autoinv.inv(torch.eye(3, dtype=torch.float64).repeat(batch, 1, 1))
    end()
    print(f"\n200 calls, 1 to 5000 matrices of 3x3: {len(tunings)} tunings, {sum(tunings):.3f} s in all")
    bars.at_most("random batch sizes: tunings", len(tunings), RANDOM_TUNINGS_BAR)
    bars.at_most("random batch sizes: seconds of tuning", sum(tunings), RANDOM_S_BAR)
    return {"tunings": len(tunings), "seconds": sum(tunings)}


def audit_neighbours(bars: bench.Bars) -> dict[str, float]:
    """Let batches of 1 to 1000 come in a mixed order; then time the served choice against the right one."""
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1)).add(1).tolist()
    costs, tuned = [], 0
    with tempfile.TemporaryDirectory() as folder, autoinv.using(cache_dir=folder):
        for batch in order:
            A = torch.eye(5).repeat(batch, 1, 1)
            autoinv.inv(A)
            tuned += autoinv.explain(A).source == "tuned"
        for batch in order[:20]:
            served = autoinv.explain(torch.eye(5).repeat(batch, 1, 1)).strategy
            costs.append(time_every_strategy(problem_of((batch, 5, 5), torch.float32)).regret(served))
    print(
        f"\n1000 batch sizes of 5x5 cost {tuned} tunings (bar {NEIGHBOUR_TUNINGS_BAR}); a neighbour's choice costs "
        f"at most {max(costs):.1%} over the shape's own right one (bar {NEIGHBOUR_COST_BAR:.0%})"
    )
    bars.at_most("tunings for 1000 batch sizes", tuned, NEIGHBOUR_TUNINGS_BAR)
    bars.at_most("a neighbour's choice over the shape's own", max(costs), NEIGHBOUR_COST_BAR)
    return {"tunings": tuned, "worst_cost": max(costs)}


def main() -> int:
    made = bench.parser(__doc__ or "")
    made.add_argument("--tunings", type=int, default=12, help="cold tunings of each problem")
    made.add_argument(
        "--only", choices=("regret", "large", "marks", "busy", "budget", "neighbours", "random")
    )
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments = made.parse_args()
    print(bench.describe())
    bars = bench.Bars()
    parts = {
        "regret": lambda: audit_regret(bars, arguments.tunings),
        "large": lambda: audit_large(bars),
        "marks": lambda: audit_marks(bars),
        "busy": lambda: audit_busy.audit(bars, BUSY_GRID),
        "budget": lambda: audit_budget.audit(bars),
        "neighbours": lambda: audit_neighbours(bars),
        "random": lambda: audit_random_batches(bars),
    }
    chosen = {name: part for name, part in parts.items() if arguments.only in (None, name)}
    results = {name: part() for name, part in chosen.items()}
    bench.write_json(arguments.json, **json.loads(json.dumps(results)), missed=bars.missed)
    return bars.exit_status()


if __name__ == "__main__":
    sys.exit(main())
