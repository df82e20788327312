"""First contact: what a fresh process pays beside busy processes, with nothing in its cache.

(10,8,3,3) float64, two threads, beside 1, 3 and 6 spinners or processes that multiply matrices, with and without
compiled Python files, for three budgets. Bars: calls 2 to 2000 take at most 3 times what the serial kernel takes under
the same load, measured in turns with them; none is left on PyTorch's own call; a quiet process that reads the file
afterwards chooses within 10 % of the best; the first call beside 6 spinners, imports included, takes at most 0.6 s. In
mode ``cached`` the first call of an unseen shape takes at most 1.1 times a first call from the file, and later unseen
shapes 1 ms. A problem that is not timed yet costs at most 1.2 of a memo hit. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from measuring import bench, load
from measuring.first_calls import CALLS, SHAPE

LOADS = (1, 3, 6)
BUDGETS = (0.005, 0.02, 0.1)
KERNEL_BAR, REGRET_BAR, FIRST_CALL_BAR_S = 3.0, 0.10, 0.6
CACHED_BAR, UNSEEN_BAR_S, UNTIMED_BAR = 1.1, 1e-3, 1.2
REPEATS = 9
CONTACTS = 10
CHILD = Path(__file__).parent / "measuring" / "first_calls.py"


def later() -> None:
    """Print how far the choice of a quiet process with this cache dir is from the best."""
    from measuring.audit_quiet import problem_of, time_every_strategy

    import autoinv

    A = torch.randn(*SHAPE, dtype=torch.float64)
    for _ in range(5):
        autoinv.inv(A)
    chosen = autoinv.explain(A).strategy
    print(
        json.dumps(
            {"strategy": chosen, "regret": time_every_strategy(problem_of(SHAPE, A.dtype)).regret(chosen)}
        )
    )


def in_child(what: str, folder: str | Path, package: str | None = None, **variables: str) -> list[dict]:
    """Return the JSON lines that a child with this cache dir prints."""
    if package:
        variables = {**variables, "PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1"}
    script, arguments = (str(CHILD), what.split()) if what != "later" else (__file__, ["--later"])
    text = bench.in_child(script, arguments, 2, AUTOINV_CACHE_DIR=str(folder), **variables)
    return [json.loads(line) for line in text.splitlines()]


def package_without_compiled_files(place: str) -> str:
    """Copy the installed package without its compiled Python files, and return the folder that it is in."""
    code = "import autoinv; print(autoinv.__path__[0])"
    installed = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    shutil.copytree(
        installed.stdout.strip(), Path(place, "autoinv"), ignore=shutil.ignore_patterns("__pycache__")
    )
    return place


def audit_busy(bars: bench.Bars) -> list[dict[str, object]]:
    """Audit every load, budget and kind of install."""
    print(
        f"\n{CONTACTS} fresh processes each, {SHAPE} float64, 2 threads, calls 2 to {CALLS}, of the kernel's own mean"
    )
    print(
        f"{'beside':<20}{'compiled':>9}{'budget':>8}{'first call (worst)':>20}{'us':>8}{'of kernel':>11}{'regret':>8}"
    )
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as bare:
        package = package_without_compiled_files(bare)
        for kind in load.KINDS:
            for processes in LOADS:
                with tempfile.TemporaryDirectory() as folder:
                    rows += _audit_load(bars, kind, processes, folder, package)
    return rows


def _audit_load(
    bars: bench.Bars, kind: str, processes: int, folder: str, package: str
) -> list[dict[str, object]]:
    cells: list[tuple[bool, float, Path, list[dict]]] = []
    with load.busy(kind, processes, at_most_s=600.0):
        for compiled in (True, False):
            for budget in BUDGETS:
                place = Path(folder, f"{compiled}-{budget}")
                bare = None if compiled else package
                what = f"first_contact {CONTACTS}"
                cells.append(
                    (compiled, budget, place, in_child(what, place, bare, AUTOINV_BUDGET=str(budget)))
                )
    return [_judge(bars, f"{processes} {kind}", *cell) for cell in cells]


def _judge(
    bars: bench.Bars, beside: str, compiled: bool, budget: float, place: Path, contacts: list[dict]
) -> dict[str, object]:
    ours_s, kernels_s = (sum(c[name] for c in contacts) for name in ("ours_s", "kernels_s"))
    first_s = statistics.median(c["first_s"] for c in contacts)
    worst_s = max(c["first_s"] for c in contacts)
    (later,) = in_child("later", place / "0")
    label = f"beside {beside}, budget {budget}, {'with' if compiled else 'without'} .pyc"
    bars.at_most(f"{label}: calls, of the kernel's own mean", ours_s / kernels_s, KERNEL_BAR)
    left = sum(c["strategy"] == "batched" for c in contacts)
    bars.at_most(f"{label}: processes left on PyTorch's own call", left, 0)
    bars.at_most(f"{label}: regret of a later quiet process", later["regret"], REGRET_BAR)
    if beside == f"{max(LOADS)} spinners" and compiled:
        bars.at_most(f"{label}: seconds of the first call", first_s, FIRST_CALL_BAR_S)
    us = ours_s / len(contacts) / CALLS * 1e6
    chosen = dict(collections.Counter(f"{c['strategy']} ({c['source']})" for c in contacts))
    print(
        f"{beside:<20}{'yes' if compiled else 'no':>9}{budget:>8}{first_s:>11.3f} ({worst_s:.3f}){us:>9.1f}"
        f"{ours_s / kernels_s:>10.2f}x{later['regret']:>8.1%}   {chosen}, later {later['strategy']}"
    )
    return {"beside": beside, "compiled": compiled, "budget": budget, "contacts": contacts, "later": later}


def audit_cached(bars: bench.Bars) -> dict[str, object]:
    """Audit mode ``cached``: unseen shapes beside known ones, in fresh processes that take turns."""
    known: list[float] = []
    unseen: list[float] = []
    later_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        in_child("first_contact", folder)
        for _ in range(REPEATS):
            known.append(in_child("cached 10x8x3x3", f"{folder}/0", AUTOINV_MODE="cached")[0]["first_s"])
            (found,) = in_child("cached 12x5x3x3", f"{folder}/0", AUTOINV_MODE="cached")
            unseen.append(found["first_s"])
            later_s += found["later_s"]
    ratio = statistics.median(unseen) / statistics.median(known)
    worst_s = sorted(later_s)[round(0.99 * len(later_s)) - 1]
    print(
        f"\nmode cached, medians of {REPEATS}: first call from the file {statistics.median(known) * 1e3:.1f} ms, of an "
        f"unseen shape {statistics.median(unseen) * 1e3:.1f} ms ({ratio:.2f} times); later unseen shapes "
        f"{statistics.median(later_s) * 1e6:.0f} us, 99 % within {worst_s * 1e6:.0f} us"
    )
    bars.at_most("cached: first call of an unseen shape, of one from the file", ratio, CACHED_BAR)
    bars.at_most("cached: seconds of a later unseen shape, 99th percentile", worst_s, UNSEEN_BAR_S)
    return {"known_s": known, "unseen_s": unseen, "later_s": later_s}


def audit_untimed(bars: bench.Bars) -> float:
    """Time a hit of a problem whose default serves against one of the same kernel that is final."""
    import autoinv
    from autoinv.ops.inv import CALL
    from autoinv.planning.untimed import Untimed, provisional

    A = torch.randn(*SHAPE, dtype=torch.float64)
    B = torch.randn(8, 10, 3, 3, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder, autoinv.using(cache_dir=folder, strategy="native"):
        for X in (A, B):
            autoinv.inv(X)
        memo = CALL.dispatcher.memo
        (key,) = [key for key in memo if key[0] == B.shape]
        memo[key] = provisional(memo[key], Untimed(), 1e9, print)
        times = bench.medians(
            bench.interleaved({"final": lambda: autoinv.inv(A), "untimed": lambda: autoinv.inv(B)})
        )
    ratio = times["untimed"] / times["final"]
    print(f"\na hit of an untimed problem {times['untimed'] * 1e6:.2f} us, of a memo hit {ratio:.2f}")
    bars.at_most("a hit of an untimed problem, of a memo hit", ratio, UNTIMED_BAR)
    return ratio


def main() -> int:
    made = bench.parser(__doc__ or "")
    made.add_argument("--later", action="store_true", help=argparse.SUPPRESS)
    arguments = made.parse_args()
    if arguments.later:
        later()
        return 0
    print(bench.describe())
    bars = bench.Bars()
    untimed = audit_untimed(bars)
    quiet = audit_cached(bars)
    rows = audit_busy(bars)
    bench.write_json(arguments.json, untimed=untimed, cached=quiet, busy=rows, missed=bars.missed)
    return bars.exit_status()


if __name__ == "__main__":
    sys.exit(main())
