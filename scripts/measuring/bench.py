"""What the benchmarks share: interleaved timing, bars, the machine in words, JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autoinv import environment, native

Call = Callable[[], object]


def parser(text: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return made


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    extension = native.load()
    found = dict(environment.of("cpu").as_dict())
    found["build"] = extension.build() if extension else native.why_missing()
    found["python"] = sys.version.split()[0]
    return found


def describe() -> str:
    m = machine()
    build = m["build"]
    kernels = f"{build['compiler']}, {build[str(m['native'])].strip()}" if isinstance(build, dict) else build
    return (
        f"{m['cpu_model']}, {m['cores']} cores, torch {m['torch']} ({m['blas']}), Python {m['python']}\n"
        f"autoinv {m['autoinv']}, {m['native']} kernels: {kernels}"
    )


def write_json(path: Path | None, **figures: object) -> None:
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **figures}, indent=1, default=str) + "\n")


def time_call(call: Call, least_s: float) -> tuple[float, int]:
    """Return seconds a call and how many calls make up about ``least_s``."""
    call()
    repeats = 1
    while True:
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        spent = time.perf_counter() - started
        if spent >= least_s / 4 or repeats >= 1_000_000:
            return spent / repeats, max(1, round(least_s * repeats / max(spent, 1e-9)))
        repeats *= 4


def interleaved(calls: dict[str, Call], rounds: int = 15, part_s: float = 2e-3) -> dict[str, list[float]]:
    """Return seconds a call, one number a round, the sides taking turns within each round."""
    repeats = {name: time_call(call, part_s)[1] for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = calls[name]
            started = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - started) / repeats[name])
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def geometric_mean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def in_child(script: str, arguments: list[str], threads: int, **variables: str) -> str:
    """Run a script of ours in a process with so many threads and return what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **variables}
    done = subprocess.run(
        [sys.executable, script, *arguments], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


@dataclass
class Bars:
    """What a run must keep to: compares, and remembers each bar that was missed. No number misses every bar."""

    checked: int = 0
    missed: list[str] = field(default_factory=list)

    def at_most(self, what: str, value: float, bar: float) -> None:
        self._check(value <= bar, f"{what}: {value:.4g}, bar at most {bar:g}")

    def at_least(self, what: str, value: float, bar: float) -> None:
        self._check(value >= bar, f"{what}: {value:.4g}, bar at least {bar:g}")

    def _check(self, is_met: bool, text: str) -> None:
        self.checked += 1
        if not is_met:
            self.missed.append(text)

    def exit_status(self) -> int:
        """Print which bars were missed and return the process's exit status; nothing checked is a failure too."""
        print(f"{self.checked} bars checked, {len(self.missed)} missed")
        for text in self.missed:
            print(f"MISSED {text}")
        return 0 if self.checked and not self.missed else 1
