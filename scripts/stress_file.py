"""Kill writers of the decisions file at random for as long as you like, and count what was lost.

    python scripts/stress_file.py [--seconds 20] [--writers 3] [--readers 2]

Several processes save decisions, acknowledge each in a pipe, and get SIGKILL at random moments; others
read the bare file all the while. At the end every acknowledged decision must be there and every read must
have parsed: exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from autoinv import environment
from autoinv.problem import Problem
from autoinv.store.decisions import Decision, DecisionsFile

MACHINE = dataclasses.replace(environment.of("cpu"), cpu_model="stress")
LONGEST_LIFE_S = 0.3


def decision(batch: int) -> Decision:
    problem = Problem("inv", ((batch, 3, 3),), torch.float64, "cpu", 2)
    return Decision(problem, "batched", {"batched": 1e-5}, {}, True, False, 3, 1, "2026-01-01T00:00:00Z")


def save_for_ever(folder: Path, first: int, pipe: int) -> None:
    file = DecisionsFile(folder, MACHINE)
    batch = first
    while True:
        if file.put(decision(batch), 5.0):
            os.write(pipe, b"%d\n" % batch)
        batch += 1


def read_until(path: Path, until_s: float, pipe: int) -> None:
    seen: set[str] = set()
    reads = bad = 0
    while time.monotonic() < until_s:
        try:
            now = set(json.loads(path.read_bytes())["decisions"])
            bad += not seen <= now
            seen = now
        except (ValueError, KeyError, OSError):
            bad += 1
        reads += 1
    os.write(pipe, b"%d %d\n" % (reads, bad))


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return child


def run(folder: Path, seconds: float, writers: int, readers: int) -> tuple[int, set[int], int, int]:
    """Return kills, acknowledged batches, reads and bad reads."""
    until_s = time.monotonic() + seconds
    file = DecisionsFile(folder, MACHINE)
    assert file.put(decision(1), 5.0)
    assert file.path is not None
    path, acknowledged, kills, first = file.path, {1}, 0, 1000
    reports, report = os.pipe()
    watching = [fork(lambda: read_until(path, until_s, report)) for _ in range(readers)]
    while time.monotonic() < until_s:
        out, into = os.pipe()
        born = []
        for _ in range(writers):
            born.append(fork(lambda start=first, pipe=into: save_for_ever(folder, start, pipe)))  # type: ignore[misc]
            first += 1000
        os.close(into)
        for child in born:
            time.sleep(random.uniform(0.0, LONGEST_LIFE_S))
            os.kill(child, signal.SIGKILL)
            kills += 1
        for child in born:
            os.waitpid(child, 0)
        with os.fdopen(out) as lines:
            acknowledged |= {int(line) for line in lines}
    for child in watching:
        os.waitpid(child, 0)
    os.close(report)
    with os.fdopen(reports) as lines:
        counts = [tuple(map(int, line.split())) for line in lines]
    return kills, acknowledged, sum(reads for reads, _ in counts), sum(bad for _, bad in counts)


def main() -> int:
    parser = argparse.ArgumentParser(description="kill writers of the decisions file at random")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--readers", type=int, default=2)
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        print("this system cannot fork", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="autoinv-stress-") as name:
        folder = Path(name)
        kills, acknowledged, reads, bad = run(folder, options.seconds, options.writers, options.readers)
        kept = {found.problem.batch for found in DecisionsFile(folder, MACHINE).all()}
        stale = len(list(folder.glob(".*.tmp")))
        quarantined = len(list(folder.glob("*.corrupt")))
    lost = acknowledged - kept
    print(f"{kills} kills in {options.seconds:g} s: {options.writers} writers, {options.readers} readers")
    print(
        f"{len(acknowledged)} acknowledged, {len(kept)} kept, {len(lost)} lost, {stale} stale temporary files"
    )
    print(f"{reads} reads, {bad} of them bad, {quarantined} files quarantined")
    return 1 if lost or bad or quarantined else 0


if __name__ == "__main__":
    sys.exit(main())
