"""What `inv` costs where a gradient is wanted, compiled, mapped, or into ``out=``, beside torch.linalg.inv.

Bars, (80,3,3) float64, one thread, ratios of one run: forward with a gradient wanted 2.5 times as fast
as torch's; forward and backward by torch.autograd.grad 1.5 times; compiled by inductor and under
torch.vmap not slower; `inv(A, out=B)` on (10,8,3,3) at most 2.7 torch.empty_like, allocating nothing.
A row under its bar is timed three times in all, and its best ratio counts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import torch
from measuring import bench

import autoinv

TRIES = 3
ROUNDS = 41
PART_S = 1e-3


class Row(NamedTuple):
    """One comparison: ``ours`` over or under ``theirs``, and what is asked of the ratio."""

    name: str
    theirs: bench.Call
    ours: bench.Call
    bar: float
    is_multiple: bool = False  # of ours in units of theirs, at most the bar; else theirs over ours, at least


def matrices(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype) + 3 * torch.eye(shape[-1], dtype=dtype)


def tune(*operands: torch.Tensor) -> None:
    """Tune for each operand until the choice is final."""
    for A in operands:
        autoinv.warm(A.shape, dtype=A.dtype)
        for _ in range(3):
            autoinv.inv(A.detach())


def forward_and_backward(inv: Callable[..., torch.Tensor], A: torch.Tensor) -> bench.Call:
    G = matrices(*A.shape, dtype=A.dtype)
    return lambda: torch.autograd.grad(inv(A), A, G)


def gradient_rows() -> list[Row]:
    A, C, big = matrices(80, 3, 3), matrices(80, 3, 3, dtype=torch.complex128), matrices(80, 16, 16)
    tune(A, C, big)
    R, CR, BR = (x.clone().requires_grad_() for x in (A, C, big))
    theirs, ours = torch.linalg.inv, autoinv.inv
    return [
        Row("forward, gradient wanted", lambda: theirs(R), lambda: ours(R), 2.5),
        Row("forward and backward", forward_and_backward(theirs, R), forward_and_backward(ours, R), 1.5),
        Row("the same, (80,16,16)", forward_and_backward(theirs, BR), forward_and_backward(ours, BR), 1.0),
        Row("the same, complex128", forward_and_backward(theirs, CR), forward_and_backward(ours, CR), 0.0),
    ]


def transform_rows() -> list[Row]:
    A = matrices(80, 3, 3)
    tune(A)
    mapped = [torch.vmap(torch.linalg.inv), torch.vmap(autoinv.inv)]
    per_sample = [
        torch.vmap(torch.func.grad(lambda A, inv=inv: inv(A).sum()))
        for inv in (torch.linalg.inv, autoinv.inv)
    ]
    return [
        Row("vmap", lambda: mapped[0](A), lambda: mapped[1](A), 1.0),
        Row("vmap of grad", lambda: per_sample[0](A), lambda: per_sample[1](A), 0.0),
    ]


def compiled_rows() -> list[Row]:
    A = matrices(80, 3, 3)
    tune(A)
    compiled = [
        torch.compile(lambda A, inv=inv: inv(A) + 1, fullgraph=True)
        for inv in (torch.linalg.inv, autoinv.inv)
    ]
    return [Row("compiled by inductor", lambda: compiled[0](A), lambda: compiled[1](A), 1.0)]


def out_rows() -> list[Row]:
    A = matrices(10, 8, 3, 3)
    tune(A)
    out = torch.empty_like(A)
    inv, empty_like = autoinv.inv, torch.empty_like
    for _ in range(3):
        inv(A, out=out)
    return [
        Row("out=, in empty_like", lambda: empty_like(A), lambda: inv(A, out=out), 2.7, is_multiple=True),
        Row("out=A, in empty_like", lambda: empty_like(A), lambda: inv(out, out=out), 2.7, is_multiple=True),
    ]


def allocated_by_out() -> int:
    """Return how many allocations a call with a fitting out makes."""
    A = matrices(10, 8, 3, 3)
    out = torch.empty_like(A)
    for _ in range(3):
        autoinv.inv(A, out=out)
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(profile_memory=True, activities=[cpu]) as profile:
        autoinv.inv(A, out=out)
    return sum(event.cpu_memory_usage > 0 for event in profile.events())


def measured(row: Row) -> dict[str, object]:
    tries: list[dict[str, float]] = []
    while len(tries) < TRIES and not (tries and _is_met(row, _best(row, tries)["ratio"])):
        s = bench.medians(
            bench.interleaved({"theirs": row.theirs, "ours": row.ours}, rounds=ROUNDS, part_s=PART_S)
        )
        ratio = s["ours"] / s["theirs"] if row.is_multiple else s["theirs"] / s["ours"]
        tries.append({"theirs_s": s["theirs"], "ours_s": s["ours"], "ratio": ratio})
    best = _best(row, tries)
    return {"name": row.name, **best, "bar": row.bar, "met": _is_met(row, best["ratio"]), "tries": len(tries)}


def _best(row: Row, tries: list[dict[str, float]]) -> dict[str, float]:
    return (min if row.is_multiple else max)(tries, key=lambda t: t["ratio"])


def _is_met(row: Row, ratio: float) -> bool:
    return ratio <= row.bar if row.is_multiple else ratio >= row.bar


def shown(row: dict[str, object]) -> str:
    times = f"{float(str(row['theirs_s'])) * 1e6:>10.2f}{float(str(row['ours_s'])) * 1e6:>10.2f}"
    bar = f"{row['bar']:>7}" if row["bar"] else f"{'-':>7}"
    return f"{row['name']!s:<28}{times}{row['ratio']:>9.2f}{bar}  {'' if row['met'] else 'MISSED'}"


def main() -> int:
    options = bench.parser(str(__doc__)).parse_args()
    torch.set_num_threads(1)
    print(bench.describe())
    print(f"\n{'(80,3,3) float64, 1 thread':<28}{'torch us':>10}{'ours us':>10}{'ratio':>9}{'bar':>7}")
    rows = []
    with tempfile.TemporaryDirectory() as folder, autoinv.using(cache_dir=folder, budget=1.0):
        for make in (gradient_rows, transform_rows, out_rows, compiled_rows):
            for row in make():
                rows.append(measured(row))
                print(shown(rows[-1]), flush=True)
        allocations = allocated_by_out()
        chosen = {str(A): autoinv.explain(matrices(*A)).strategy for A in ((80, 3, 3), (10, 8, 3, 3))}
    print(f"{'out=, allocations':<28}{'':>20}{allocations:>9}{0:>7}  {'MISSED' if allocations else ''}")
    print("chosen: " + ", ".join(f"{shape} {strategy}" for shape, strategy in chosen.items()))
    bench.write_json(options.json, rows=rows, out_allocations=allocations, chosen=chosen)
    return 0 if all(row["met"] for row in rows) and not allocations else 1


if __name__ == "__main__":
    sys.exit(main())
