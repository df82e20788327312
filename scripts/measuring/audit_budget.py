"""Does a first call keep to its budget? Each in a process of its own, its slowest single call beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from measuring import bench

BUDGETS_S = (0.0, 0.02, 0.1, 1.0)
SHAPES = ("64x3x3", "100000x3x3", "200x120x120")
TRIES = 3
"""The best of so many counts: the machine takes the processor away whenever it likes."""
BAR_MS = 5.0
"""Over budget and slowest single call: for making the operands, the decision and its file."""

FIRST_CALL = """
import sys, time, torch, autoinv
from autoinv.ops.inv.operation import INV
calls_s = [0.0]  # seconds of every call of a strategy, whoever makes it

def timing(bind):
    def timed_bind(self, problem):
        run = bind(self, problem)
        def timed_run(*operands, **named):
            began = time.perf_counter()
            try:
                return run(*operands, **named)
            finally:
                calls_s.append(time.perf_counter() - began)
        return timed_run
    return timed_bind

for strategy in INV.table:
    type(strategy).bind = timing(type(strategy).bind)
A = torch.randn(*map(int, sys.argv[1].split("x")), dtype=torch.float64)
torch.linalg.inv(A[:1])
autoinv.explain(A)  # the imports and the file, which are not tuning
import autoinv.tuning.tuner
began = time.perf_counter(); torch.linalg.inv(A); torch_s = time.perf_counter() - began
began = time.perf_counter(); autoinv.inv(A); spent_s = time.perf_counter() - began
print(spent_s, max(calls_s), torch_s)
"""


def audit(bars: bench.Bars) -> list[dict[str, float | str]]:
    print(
        "\nFirst call in a process of its own, its imports done (ms); torch.linalg.inv's one call beside it"
    )
    print(
        f"{'shape':<14}{'budget':>8}{'spent':>9}{'slowest call':>14}{'overshoot':>11}{'torch':>9}{'tries':>7}"
    )
    rows = []
    for shape in SHAPES:
        for budget_s in BUDGETS_S:
            rows.append(row := _best_of(shape, budget_s * 1e3))
            print(
                f"{shape:<14}{row['budget_ms']:8.0f}{row['spent_ms']:9.1f}{row['slowest_call_ms']:14.1f}"
                f"{row['overshoot_ms']:11.1f}{row['torch_ms']:9.1f}{row['tries']:7}"
            )
            what = f"first call of {shape}, budget {budget_s * 1e3:g} ms: over budget and slowest call, ms"
            bars.at_most(what, row["overshoot_ms"], BAR_MS)
    return rows


def _best_of(shape: str, budget_ms: float) -> dict[str, float | str]:
    tried: list[dict[str, float | str]] = []
    while len(tried) < TRIES and (not tried or min(t["overshoot_ms"] for t in tried) > BAR_MS):
        spent_ms, slowest_ms, torch_ms = _first_call_ms(shape, budget_ms)
        tried.append(
            {
                "shape": shape,
                "budget_ms": budget_ms,
                "spent_ms": spent_ms,
                "slowest_call_ms": slowest_ms,
                "overshoot_ms": max(0.0, spent_ms - budget_ms - slowest_ms),
                "torch_ms": torch_ms,
            }
        )
    return {**min(tried, key=lambda t: t["overshoot_ms"]), "tries": len(tried)}


def _first_call_ms(shape: str, budget_ms: float) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        own = {"AUTOINV_BUDGET": str(budget_ms / 1e3), "AUTOINV_CACHE_DIR": folder, "PYTHONSAFEPATH": "1"}
        printed = subprocess.run(
            [sys.executable, "-c", FIRST_CALL, shape],
            env={**os.environ, **own},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    spent_s, slowest_s, torch_s = map(float, printed.split())
    return spent_s * 1e3, slowest_s * 1e3, torch_s * 1e3
