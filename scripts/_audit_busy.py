"""What does a tuning beside busy processes choose, is it marked, and does a later quiet process mend it?"""

from __future__ import annotations

import math
import time

import _bench
import _load
import torch
from _audit_quiet import BAD_REGRET, Quiet, operand, problem, quiet, settled, tell_bad, tuning

from autoinv.ops.inv.operation import INV
from autoinv.problem import Problem, format_shape
from autoinv.store.decisions import Decision

BUSY_OVER_IDLE_BAR = 3.0
MEAN_S = 0.5

Grid = list[tuple[tuple[int, ...], torch.dtype]]


def audit(bars: _bench.Bars, grid: Grid, tunings: int = 20) -> list[dict[str, object]]:
    rows = []
    for kind in _load.KINDS:
        print(f"\n{tunings} tunings of each problem beside two busy processes: {kind}")
        for shape, dtype in grid:
            p = problem(shape, dtype)
            rows.append({"beside": kind, **_audit_one(bars, p, kind, tunings)})
    return rows


def _audit_one(bars: _bench.Bars, p: Problem, kind: str, tunings: int) -> dict[str, object]:
    A = operand(p)
    with _load.busy(kind):
        decisions = [tuning(p) for _ in range(tunings)]
        names = {d.strategy for d in decisions}
        busy_s = {name: _mean_s(name, p, A) for name in names}
    idle_s = {name: _mean_s(name, p, A) for name in names}
    mended = [settled(p, d) for d in _one_of_each_contended(decisions)]
    now = quiet(p)
    label = f"{format_shape(p.shape)} {p.dtype_name} beside {kind}"
    unmarked = sum(now.regret(d.strategy) > BAD_REGRET and not d.contended for d in decisions)
    bars.at_most(f"{label}: bad choices without the mark", unmarked, 0)
    mended_regret = max((now.regret(d.strategy) for d in mended), default=0.0)
    bars.at_most(f"{label}: regret after a later quiet process", mended_regret, BAD_REGRET)
    worst = max(busy_s[name] / idle_s[name] for name in names)
    if now.has_calm:
        bars.at_most(f"{label}: busy mean of idle mean", worst, BUSY_OVER_IDLE_BAR)
    contended = sum(d.contended for d in decisions)
    _show(label, now, decisions, contended, unmarked, mended_regret, worst)
    tell_bad(now, [d for d in decisions if not d.contended] + mended)
    return {
        "problem": p.key,
        "contended": contended,
        "bad_unmarked": unmarked,
        "mended_regret": mended_regret,
        "busy_over_idle": worst,
        "calm_choice_possible": now.has_calm,
        "right": now.right,
    }


def _one_of_each_contended(decisions: list[Decision]) -> list[Decision]:
    """Return a decision for each strategy that a contended tuning chose: what later processes find."""
    return list({d.strategy: d for d in decisions if d.contended}.values())


def _show(
    label: str,
    now: Quiet,
    decisions: list[Decision],
    contended: int,
    unmarked: int,
    mended_regret: float,
    worst: float,
) -> None:
    worst_regret = max((now.regret(d.strategy) for d in decisions), default=math.nan)
    bar = f" (bar {BUSY_OVER_IDLE_BAR:g})" if now.has_calm else " (no bar: none calm is near the best)"
    print(
        f"{label:<46} contended {contended}/{len(decisions)}, worst regret {worst_regret:.1%}, bad and unmarked "
        f"{unmarked} (bar 0), mended to {mended_regret:.1%} (bar {BAD_REGRET:.0%}), busy mean {worst:.2f} of idle{bar}"
    )


def _mean_s(name: str, p: Problem, A: torch.Tensor) -> float:
    run = INV.strategy(name).bind(p)
    run(A)
    began = now = time.perf_counter()
    count = 0
    while now - began < MEAN_S:
        run(A)
        count += 1
        now = time.perf_counter()
    return (now - began) / count
