"""Is the tuner's choice right? Regret, flips, busy machines, budgets and neighbours, measured.

Regret is the chosen strategy's quiet time over the quiet time of what the rules would choose from
quiet times (the calm rule and the 5 % rule included), minus 1. Bars: quiet, median at most 2 %, 95th
percentile at most 10 %; busy, no choice with a regret over 10 % without the contended mark, a later
quiet tuning mends it, and where a serial strategy is within 1.5 times of the best the busy mean of the
choice is at most 3 times its idle mean; the first call stays in its budget but for one slowest call;
a neighbour's choice costs at most 10 % over the shape's own.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import _bench
import _load
import torch

import autoinv
from autoinv.choice import CALM_WITHIN, choose
from autoinv.ops._inv_operation import INV
from autoinv.problem import Problem, format_shape
from autoinv.synthetic import dense_stride
from autoinv.tuner import tune

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
QUIET_ROUNDS = 15
BUDGETS_S = (0.0, 0.02, 0.1, 1.0)
BUDGET_SHAPES = ((64, 3, 3), (100_000, 3, 3), (200, 120, 120))

FIRST_CALL = """
import sys, time, torch, autoinv
A = torch.randn(*map(int, sys.argv[1].split("x")), dtype=torch.float64)
torch.linalg.inv(A[:1])
autoinv.explain(A)  # the imports and the file, which are not tuning
began = time.perf_counter(); torch.linalg.inv(A); torch_s = time.perf_counter() - began
began = time.perf_counter(); autoinv.inv(A); print(time.perf_counter() - began, torch_s)
"""


def problem(shape: tuple[int, ...], dtype: torch.dtype) -> Problem:
    return Problem("inv", (shape,), dtype, "cpu", torch.get_num_threads())


def one_tuning(p: Problem):
    return tune(INV, p, [dense_stride(p.shape, p.layout)], 0.1)


def quiet_times(p: Problem, names: set[str]) -> dict[str, list[float]]:
    """Time the strategies well: long rounds, the sides taking turns."""
    (A,) = INV.operands(p, [dense_stride(p.shape, p.layout)])
    runs = {name: INV.strategy(name).bind(p) for name in sorted(names)}
    return _bench.interleaved(
        {name: (lambda run=run: run(A)) for name, run in runs.items()}, QUIET_ROUNDS, 4e-3
    )


def rules_choice(p: Problem, times: dict[str, list[float]]) -> str:
    calm = {name for name in times if not INV.strategy(name).opens_team(p)}
    return choose(times, INV.reference(p).name, calm, contended=False)[0]


def regret(p: Problem, chosen: str, times: dict[str, list[float]]) -> float:
    middle = _bench.medians(times)
    return max(0.0, middle[chosen] / middle[rules_choice(p, times)] - 1)


def audit_regret(tunings: int) -> dict[str, object]:
    print(f"\nRegret of {tunings} cold tunings each, {torch.get_num_threads()} threads, beside nothing")
    print(f"{'problem':<26}{'chosen':<34}{'median':>8}{'worst':>8}{'flips':>7}{'ms':>8}{'contended':>11}")
    every, flips = [], []
    for shape, dtype in GRID:
        p = problem(shape, dtype)
        began = time.perf_counter()
        decisions = [one_tuning(p) for _ in range(tunings)]
        spent_ms = (time.perf_counter() - began) / tunings * 1e3
        times = quiet_times(p, {name for d in decisions for name in d.seconds})
        regrets = [regret(p, d.strategy, times) for d in decisions]
        counts = collections.Counter(d.strategy for d in decisions)
        flips.append(1 - counts.most_common(1)[0][1] / tunings)
        every += regrets
        chosen = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(
            f"{format_shape(shape) + ' ' + p.dtype_name:<26}{chosen:<34}{statistics.median(regrets):8.1%}"
            f"{max(regrets):8.1%}{flips[-1]:7.0%}{spent_ms:8.1f}{sum(d.contended for d in decisions):8}/{tunings}"
        )
    p95 = sorted(every)[max(0, round(0.95 * len(every)) - 1)]
    print(f"median regret {statistics.median(every):.1%} (bar 2 %), 95th percentile {p95:.1%} (bar 10 %)")
    return {"median": statistics.median(every), "p95": p95, "flips": flips}


def audit_busy(tunings: int = 20) -> list[dict[str, object]]:
    rows = []
    for kind in _load.KINDS:
        print(f"\n{tunings} tunings of each problem beside two busy processes: {kind}")
        for shape, dtype in GRID[:4]:
            p = problem(shape, dtype)
            (A,) = INV.operands(p, [dense_stride(p.shape, p.layout)])
            with _load.busy(kind):
                decisions = [one_tuning(p) for _ in range(tunings)]
                names = {d.strategy for d in decisions}
                busy_s = {name: _mean_s(INV.strategy(name).bind(p), A) for name in names}
            idle_s = {name: _mean_s(INV.strategy(name).bind(p), A) for name in names}
            mended = one_tuning(p)
            times = quiet_times(p, {n for d in [*decisions, mended] for n in d.seconds})
            middle = _bench.medians(times)
            has_calm = any(
                not INV.strategy(n).opens_team(p) and s <= CALM_WITHIN * min(middle.values())
                for n, s in middle.items()
            )
            unmarked = sum(regret(p, d.strategy, times) > 0.10 and not d.contended for d in decisions)
            worst = max(busy_s[d.strategy] / idle_s[d.strategy] for d in decisions)
            row = {
                "problem": p.key,
                "beside": kind,
                "contended": sum(d.contended for d in decisions),
                "bad_unmarked": unmarked,
                "mended_regret": regret(p, mended.strategy, times),
                "busy_over_idle": worst,
                "calm_choice_possible": has_calm,
            }
            bar = " (bar 3)" if has_calm else ""
            print(
                f"{format_shape(shape) + ' ' + p.dtype_name:<26} contended {row['contended']}/{tunings}, bad and "
                f"unmarked {unmarked} (bar 0), regret mended to {row['mended_regret']:.1%}, "
                f"busy mean {worst:.2f} of idle{bar}"
            )
            rows.append(row)
    return rows


def _mean_s(run, A: torch.Tensor, for_s: float = 0.5) -> float:
    run(A)
    began = time.perf_counter()
    count = 0
    while time.perf_counter() - began < for_s:
        run(A)
        count += 1
    return (time.perf_counter() - began) / count


def audit_budget() -> list[dict[str, float | str]]:
    rows = []
    print(
        "\nFirst call in a process of its own (ms), its imports done; torch.linalg.inv's one call beside it"
    )
    for shape in BUDGET_SHAPES:
        for budget_s in BUDGETS_S:
            with tempfile.TemporaryDirectory() as folder:
                env = {
                    **os.environ,
                    "AUTOINV_BUDGET": str(budget_s),
                    "AUTOINV_CACHE_DIR": folder,
                    "PYTHONSAFEPATH": "1",
                }
                printed = subprocess.run(
                    [sys.executable, "-c", FIRST_CALL, format_shape(shape)],
                    env=env,
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            spent_s, torch_s = map(float, printed.split())
            spent_ms, torch_ms = spent_s * 1e3, torch_s * 1e3
            print(
                f"{format_shape(shape):<14} budget {budget_s * 1e3:6.0f}: {spent_ms:8.1f}   torch {torch_ms:8.1f}"
            )
            rows.append(
                {"shape": format_shape(shape), "budget_s": budget_s, "spent_s": spent_s, "torch_s": torch_s}
            )
    return rows


def audit_neighbours() -> dict[str, float]:
    """Let batches of 1 to 1000 come in a mixed order; then time the served choice against the shape's own."""
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1)).add(1).tolist()
    costs, tuned = [], 0
    with tempfile.TemporaryDirectory() as folder, autoinv.using(cache_dir=folder):
        for batch in order:
            A = torch.eye(5).repeat(batch, 1, 1)
            autoinv.inv(A)
            tuned += autoinv.explain(A).source == "tuned"
        for batch in order[:20]:
            p = problem((batch, 5, 5), torch.float32)
            served = autoinv.explain(torch.eye(5).repeat(batch, 1, 1)).strategy
            own = one_tuning(p)
            middle = _bench.medians(quiet_times(p, {served, own.strategy}))
            costs.append(max(0.0, middle[served] / middle[own.strategy] - 1))
    print(
        f"\n1000 batch sizes of 5x5 cost {tuned} tunings (bar about 20); a neighbour's choice costs at most "
        f"{max(costs):.1%} over the shape's own (bar 10 %)"
    )
    return {"tunings": tuned, "worst_cost": max(costs)}


def main() -> None:
    made = _bench.parser(__doc__ or "")
    made.add_argument("--tunings", type=int, default=12, help="cold tunings of each problem")
    made.add_argument("--only", choices=("regret", "busy", "budget", "neighbours"))
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments = made.parse_args()
    print(_bench.describe())
    parts = {
        "regret": lambda: audit_regret(arguments.tunings),
        "busy": audit_busy,
        "budget": audit_budget,
        "neighbours": audit_neighbours,
    }
    chosen = {name: part for name, part in parts.items() if arguments.only in (None, name)}
    results = {name: part() for name, part in chosen.items()}
    _bench.write_json(arguments.json, **json.loads(json.dumps(results)))


if __name__ == "__main__":
    sys.exit(main())
