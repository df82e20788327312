"""What does a tuning beside busy processes choose, is it marked, and does a later uncontended process correct it?"""

from __future__ import annotations

import math
import time

import torch

from autoinv.operation import Operands
from autoinv.ops.inv.operation import INV
from autoinv.problem import Problem, format_shape
from autoinv.store.decisions import Decision
from measuring import bench, load
from measuring.audit_quiet import (
    BAD_REGRET,
    QuietTimes,
    operands_of,
    problem_of,
    report_bad,
    time_every_strategy,
    tune_once,
    tune_until_final,
)

BUSY_OVER_IDLE_BAR = 3.0
MEAN_S = 0.5

Grid = list[tuple[tuple[int, ...], torch.dtype]]


def audit(bars: bench.Bars, grid: Grid, tunings: int = 20) -> list[dict[str, object]]:
    rows = []
    for kind in load.KINDS:
        print(f"\n{tunings} tunings of each problem beside two busy processes: {kind}")
        for shape, dtype in grid:
            p = problem_of(shape, dtype)
            rows.append({"beside": kind, **_audit_one(bars, p, kind, tunings)})
    return rows


def _audit_one(bars: bench.Bars, p: Problem, kind: str, tunings: int) -> dict[str, object]:
    operands = operands_of(p)
    with load.busy(kind):
        decisions = [tune_once(p) for _ in range(tunings)]
        names = {d.strategy for d in decisions}
        busy_s = {name: _mean_s(name, p, operands) for name in names}
    idle_s = {name: _mean_s(name, p, operands) for name in names}
    corrected = [tune_until_final(p, d) for d in _one_of_each_contended(decisions)]
    now = time_every_strategy(p)
    label = f"{format_shape(p.shape)} {p.dtype_name} beside {kind}"
    unmarked = sum(now.regret(d.strategy) > BAD_REGRET and not d.contended for d in decisions)
    bars.at_most(f"{label}: bad choices without the mark", unmarked, 0)
    corrected_regret = max((now.regret(d.strategy) for d in corrected), default=0.0)
    bars.at_most(f"{label}: regret after a later uncontended process", corrected_regret, BAD_REGRET)
    worst = max(busy_s[name] / idle_s[name] for name in names)
    if now.is_single_threaded_near:
        bars.at_most(f"{label}: busy mean of idle mean", worst, BUSY_OVER_IDLE_BAR)
    contended = sum(d.contended for d in decisions)
    _show(label, now, decisions, contended, unmarked, corrected_regret, worst)
    report_bad(now, [d for d in decisions if not d.contended] + corrected)
    return {
        "problem": p.key,
        "contended": contended,
        "bad_unmarked": unmarked,
        "corrected_regret": corrected_regret,
        "busy_over_idle": worst,
        "single_threaded_is_near_the_best": now.is_single_threaded_near,
        "right": now.right,
    }


def _one_of_each_contended(decisions: list[Decision]) -> list[Decision]:
    """Return a decision for each strategy that a contended tuning chose: what later processes find."""
    return list({d.strategy: d for d in decisions if d.contended}.values())


def _show(
    label: str,
    now: QuietTimes,
    decisions: list[Decision],
    contended: int,
    unmarked: int,
    corrected_regret: float,
    worst: float,
) -> None:
    worst_regret = max((now.regret(d.strategy) for d in decisions), default=math.nan)
    bar = (
        f" (bar {BUSY_OVER_IDLE_BAR:g})"
        if now.is_single_threaded_near
        else " (no bar: no single-threaded one is near the best)"
    )
    print(
        f"{label:<46} contended {contended}/{len(decisions)}, worst regret {worst_regret:.1%}, bad and unmarked "
        f"{unmarked} (bar 0), corrected to {corrected_regret:.1%} (bar {BAD_REGRET:.0%}), "
        f"busy mean {worst:.2f} of idle{bar}"
    )


def _mean_s(name: str, p: Problem, operands: Operands) -> float:
    run = INV.strategy(name).bind(p)
    run(*operands)
    began = now = time.perf_counter()
    count = 0
    while now - began < MEAN_S:
        run(*operands)
        count += 1
        now = time.perf_counter()
    return (now - began) / count
