"""What a call of autoinv.inv costs beside the strategy that it runs, in units of torch.empty_like.

Bars: at most 1.1 above the strategy for a contiguous tensor on the CPU; `inv_ex` at most 1.6 above `inv`; a call under
a device context at most 1.5 above one without; with torch's strides, as under `patched()`, a call at most 1.05 times
the plain one for n <= 8; `import autoinv` at most 15 ms over `import torch`; a first call that
finds its decision in the file at most 30 ms; both at best of the runs. Exits 1 when one is missed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import statistics
import subprocess
import sys
import tempfile

import torch
from measuring import bench

import autoinv
from autoinv.ops.inv import CALL, inv_as_torch
from autoinv.planning.dispatch import key_of
from autoinv.strategy import Run

TRIES = 3
ABOVE_BAR = 1.1
INV_EX_BAR = 1.6
DEVICE_BAR = 1.5
STRIDES_BAR = 1.05
IMPORT_BAR_MS = 15.0
FIRST_CALL_BAR_MS = 30.0
RUNS = 6
CALLS_UNTIL_MEMOISED = 20
"""A busy machine serves a choice a few times, each to be tuned again, before the memo holds it."""

FIRST_CALL = """
import time, torch
A = torch.randn(10, 8, 3, 3, dtype=torch.float64)
torch.empty_like(A)
began = time.perf_counter()
import autoinv
imported = time.perf_counter()
autoinv.inv(A)
answered = time.perf_counter()
autoinv.inv(A)
print(imported - began, answered - imported, autoinv.explain(A).source)
"""


def calls(n: int, batch: tuple[int, ...], view: bool) -> dict[str, bench.Call]:
    A = torch.randn(*batch, n, n, dtype=torch.float64)
    A = A.mT if view else A
    autoinv.warm(A.shape, dtype=torch.float64)
    inv, empty_like = autoinv.inv, torch.empty_like
    run = memoised(A)
    return {
        "autoinv.inv": lambda: inv(A),
        "strategy": lambda: run(A),
        "empty_like": lambda: empty_like(A),
        "linalg.inv": lambda: torch.linalg.inv(A),
    }


def memoised(A: torch.Tensor) -> Run:
    """Call until the memo holds what runs for this very tensor, and return that."""
    for _ in range(CALLS_UNTIL_MEMOISED):
        autoinv.inv(A)
        run = CALL.dispatcher.memo.get(key_of(A))
        if run is not None:
            return run
    raise RuntimeError(f"{CALLS_UNTIL_MEMOISED} calls left the memo without {tuple(A.shape)}: each one plans")


def best_of_tries(ways: dict[str, bench.Call]) -> tuple[dict[str, float], float]:
    """Return the medians and what `inv` costs above the strategy; over the bar it is timed three times in all."""
    tries = []
    while len(tries) < TRIES and (not tries or min(above for _, above in tries) > ABOVE_BAR):
        s = bench.medians(bench.interleaved(ways, rounds=41, part_s=1e-3))
        tries.append((s, (s["autoinv.inv"] - s["strategy"]) / s["empty_like"]))
    return min(tries, key=lambda found: found[1])


def hot_path(bars: bench.Bars) -> list[dict[str, object]]:
    rows = []
    print(f"{'case':<28}{'inv':>9}{'strategy':>10}{'empty_like':>12}{'above':>8}{'whole':>8}   torch/inv")
    for name, n, batch, view in (
        ("(10,8,3,3) contiguous", 3, (10, 8), False),
        ("(3,3) contiguous", 3, (), False),
        ("(80,4,4) contiguous", 4, (80,), False),
        ("(10,8,3,3) transposed", 3, (10, 8), True),
    ):
        s, above = best_of_tries(calls(n, batch, view))
        whole = s["autoinv.inv"] / s["empty_like"]
        ratio = s["linalg.inv"] / s["autoinv.inv"]
        ns = {k: v * 1e9 for k, v in s.items()}
        print(
            f"{name:<28}{ns['autoinv.inv']:9.0f}{ns['strategy']:10.0f}{ns['empty_like']:12.0f}"
            f"{above:8.2f}{whole:8.2f}   {ratio:.1f}"
        )
        if not view:
            bars.at_most(f"{name}: above the strategy, in empty_like", above, ABOVE_BAR)
        rows.append({"case": name, "ns": ns, "above": above, "whole": whole, "torch_over_inv": ratio})
    return rows


IN_A_ROW = 50
"""Calls within one device context, as entering it takes longer than a call."""


def in_a_row(call: bench.Call, under: contextlib.AbstractContextManager[object]) -> bench.Call:
    def called() -> None:
        with under:
            for _ in range(IN_A_ROW):
                call()

    return called


def other_calls(bars: bench.Bars) -> dict[str, object]:
    """`inv_ex`, a device context and torch's names inside `patched`, each against `inv` in the same rounds."""
    A = torch.randn(10, 8, 3, 3, dtype=torch.float64)
    inv, inv_ex, empty_like = autoinv.inv, autoinv.inv_ex, torch.empty_like
    autoinv.warm(A.shape, dtype=torch.float64)
    memoised(A)
    device, nowhere = torch.device("cpu"), contextlib.nullcontext()
    with autoinv.patched():
        torch_inv, torch_inv_ex = torch.linalg.inv, torch.linalg.inv_ex
        calls: dict[str, bench.Call] = {
            "inv": lambda: inv(A),
            "empty_like": lambda: empty_like(A),
            "inv_ex": lambda: inv_ex(A),
            "linalg.inv, patched": lambda: torch_inv(A),
            "inverse, patched": lambda: torch.Tensor.inverse(A),
            "linalg.inv_ex, patched": lambda: torch_inv_ex(A),
        }
        ways = {name: in_a_row(call, nowhere) for name, call in calls.items()}
        ways |= {f"{name}, device": in_a_row(calls[name], device) for name in ("inv", "inv_ex")}
        tries: list[tuple[dict[str, float], dict[str, float]]] = []
        while len(tries) < TRIES and (not tries or not _keeps_bars(tries[-1][1])):
            measured = bench.medians(bench.interleaved(ways, rounds=41, part_s=2e-3))
            s = {name: seconds / IN_A_ROW for name, seconds in measured.items()}
            tries.append((s, {name: (s[name] - s[base]) / s["empty_like"] for name, base in BASES.items()}))
    s, above = next((tried for tried in tries if _keeps_bars(tried[1])), tries[-1])
    for name, amount in above.items():
        bar = f"(bar {BARS[name]:g})" if name in BARS else ""
        print(f"{name:<28}{s[name] * 1e9:9.0f} ns, {amount:5.2f} empty_like above {BASES[name]} {bar}")
        if name in BARS:
            bars.at_most(f"{name}: above {BASES[name]}, in empty_like", amount, BARS[name])
    return {"ns": {name: seconds * 1e9 for name, seconds in s.items()}, "above": above}


BASES = {
    "inv_ex": "inv",
    "inv, device": "inv",
    "inv_ex, device": "inv_ex",
    "linalg.inv, patched": "inv",
    "inverse, patched": "inv",
    "linalg.inv_ex, patched": "linalg.inv, patched",
}
"""What each call is held against."""
BARS = {
    "inv_ex": INV_EX_BAR,
    "inv, device": DEVICE_BAR,
    "inv_ex, device": DEVICE_BAR,
    "linalg.inv_ex, patched": INV_EX_BAR,
}


def _keeps_bars(above: dict[str, float]) -> bool:
    return all(above[name] <= bar for name, bar in BARS.items())


def strides(bars: bench.Bars) -> list[dict[str, object]]:
    """Time `inv` and the same with torch's strides, by the native kernels where there are any."""
    rows: list[dict[str, object]] = []
    print(f"{'case':<28}{'inv':>9}{'as torch':>10}{'times':>8}")
    for dtype, shape in itertools.product(
        (torch.float64, torch.float32), ((3, 3), (10, 8, 3, 3), (80, 4, 4), (80, 8, 8), (80, 16, 16))
    ):
        A = torch.randn(shape, dtype=dtype)
        ways: dict[str, bench.Call] = {
            "inv": functools.partial(autoinv.inv, A),
            "as torch": functools.partial(inv_as_torch, A),
        }
        tries = []
        while len(tries) < TRIES and (not tries or min(times for _, times in tries) > STRIDES_BAR):
            parts = bench.interleaved(ways, rounds=41, part_s=1e-3)
            times = statistics.median(a / b for a, b in zip(parts["as torch"], parts["inv"], strict=True))
            tries.append((bench.medians(parts), times))
        s, times = min(tries, key=lambda found: found[1])
        name = f"{tuple(shape)} {str(dtype).removeprefix('torch.')}".replace(", ", ",")
        print(f"{name:<28}{s['inv'] * 1e9:9.0f}{s['as torch'] * 1e9:10.0f}{times:8.3f}")
        if shape[-1] <= 8:
            bars.at_most(f"{name}: with torch's strides, in calls of inv", times, STRIDES_BAR)
        rows.append({"case": name, "ns": {k: v * 1e9 for k, v in s.items()}, "times": times})
    return rows


def first_calls(bars: bench.Bars) -> dict[str, object]:
    """Import and first call in processes of their own; the second and later ones find the decision in the file."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "AUTOINV_CACHE_DIR": folder, "OMP_NUM_THREADS": "1", "AUTOINV_BUDGET": "1"}
        env["PYTHONSAFEPATH"] = "1"  # the package that this process has, not one in the working directory
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        printed = [
            subprocess.run(
                [sys.executable, "-c", FIRST_CALL], env=env, check=True, capture_output=True, text=True
            )
            for _ in range(RUNS)
        ]
    split = [p.stdout.split() for p in printed]
    imports = sorted(float(a) * 1e3 for a, _, _ in split)
    firsts = [(float(a) + float(b)) * 1e3 for a, b, source in split[1:] if source == "file"]
    print(
        f"import autoinv after torch: {imports[0]:.1f} ms at best, {imports[len(imports) // 2]:.1f} median "
        f"(bar {IMPORT_BAR_MS:g} at best)"
    )
    bars.at_most("import autoinv after torch, ms at best", imports[0], IMPORT_BAR_MS)
    best = min(firsts, default=float("nan"))  # no process found its decision in the file: missed
    bars.at_most("import and first call from the file, ms at best", best, FIRST_CALL_BAR_MS)
    if firsts:
        middle = sorted(firsts)[len(firsts) // 2]
        print(
            f"import and first call from the file: {best:.1f} ms at best, {middle:.1f} median "
            f"(bar {FIRST_CALL_BAR_MS:g} at best)"
        )
    return {"import_ms": imports, "import_and_first_call_ms": firsts}


def main() -> int:
    arguments = bench.parser(__doc__ or "").parse_args()
    print(bench.describe())
    bars = bench.Bars()
    print(
        f"ns a call, median of interleaved rounds, {torch.get_num_threads()} threads; above, whole in empty_like"
    )
    with tempfile.TemporaryDirectory() as folder, autoinv.using(cache_dir=folder, budget=1.0):
        rows = hot_path(bars)
        others = other_calls(bars)
    with tempfile.TemporaryDirectory() as folder, autoinv.using(cache_dir=folder, strategy="native"):
        with_strides = strides(bars)
    first = first_calls(bars)
    bench.write_json(
        arguments.json,
        hot_path=rows,
        other_calls=others,
        strides=with_strides,
        first=first,
        missed=bars.missed,
    )
    return bars.exit_status()


if __name__ == "__main__":
    sys.exit(main())
