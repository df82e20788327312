"""The time of functions of real libraries with torch alone and patched, side by side in one run."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import kornia
import roma
import torch
from torch_kf import GaussianState
from torch_kf.ckf import constant_kalman_filter

import autoinv

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import bench

ROUNDS = 30
PART_S = 5e-3
CLOCK_S = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
"""With one thread all of a call is processor time, which does not count what other programs take."""
Patch = Callable[[], AbstractContextManager[object]]


def main() -> int:
    torch.manual_seed(0)
    bars = bench.Bars()
    everywhere = partial(autoinv.patched, all_threads=True)
    in_kornia = partial(autoinv.patched, modules=[kornia.core.utils])
    rows: list[tuple[str, bench.Call, Patch, float | None]] = [
        ("roma Linear.inverse (1000,3,3) float32", roma_inverse(), everywhere, 6.0),
        ("torch-kf mahalanobis (5000,2,2) float32", mahalanobis(5000, 2), everywhere, 3.0),
        ("torch-kf filter, 100 states of 6, 20 steps, float32", kalman_filter(), everywhere, None),
        ("kornia safe_inverse_with_mask (1000,3,3) float32", safe_inverse(1000), in_kornia, 1.2),
        ("kornia PinholeCamera.intrinsics_inverse (100,4,4) float32", intrinsics_inverse(), in_kornia, None),
        ("kornia warp_perspective (16,3,32,32) float32", warp(), in_kornia, None),
    ]
    print(bench.describe())
    clock = "processor time" if torch.get_num_threads() == 1 else "wall clock"
    print(f"{f'us a call, {clock}':<60} {'torch':>9} {'patched':>9} {'ratio':>6}")
    for name, call, patch, bar in rows:
        plain_s, autoinv_s = both_s(call, patch)
        print(
            f"{name:<60} {1e6 * plain_s:>9.1f} {1e6 * autoinv_s:>9.1f} {plain_s / autoinv_s:>6.2f}",
            flush=True,
        )
        if bar is not None:
            bars.at_least(name, plain_s / autoinv_s, bar)
    return bars.exit_status()


def both_s(call: bench.Call, patch: Patch) -> tuple[float, float]:
    """Return the median seconds a call, plain and patched, the two taking turns."""
    with patch():
        for _ in range(50):  # until the strategies are chosen
            call()
    repeats = bench.time_call(call, PART_S)[1]
    plain, patched = [], []
    for _ in range(ROUNDS):
        plain.append(seconds(call, repeats))
        with patch():
            patched.append(seconds(call, repeats))
    return statistics.median(plain), statistics.median(patched)


def seconds(call: bench.Call, repeats: int) -> float:
    began_s = CLOCK_S()
    for _ in range(repeats):
        call()
    return (CLOCK_S() - began_s) / repeats


def covariances(batch: int, n: int) -> torch.Tensor:
    factor = torch.randn(batch, n, n)
    return factor @ factor.mT + torch.eye(n)


def roma_inverse() -> bench.Call:
    linear = roma.Linear(torch.randn(1000, 3, 3) + 3 * torch.eye(3))
    return linear.inverse


def mahalanobis(batch: int, n: int) -> bench.Call:
    mean, measure, covariance = torch.randn(batch, n, 1), torch.randn(batch, n, 1), covariances(batch, n)
    return lambda: GaussianState(mean, covariance).mahalanobis(measure)  # a new state: it keeps its inverse


def kalman_filter() -> bench.Call:
    kf = constant_kalman_filter(0.1, 0.01, dim=3, order=1)
    start = GaussianState(torch.zeros(100, 6, 1), 50 * torch.eye(6).repeat(100, 1, 1))
    measures = torch.randn(20, 100, 3, 1)
    return lambda: kf.filter(start, measures)


def safe_inverse(batch: int) -> bench.Call:
    A = torch.randn(batch, 3, 3) + 3 * torch.eye(3)
    function = kornia.core.utils.safe_inverse_with_mask
    return lambda: function(A)


def intrinsics_inverse() -> bench.Call:
    intrinsics = torch.eye(4).repeat(100, 1, 1) * torch.tensor([300.0, 300, 1, 1])
    size = torch.full((100,), 32.0)
    pinhole = kornia.geometry.camera.PinholeCamera(intrinsics, torch.eye(4).repeat(100, 1, 1), size, size)
    return pinhole.intrinsics_inverse


def warp() -> bench.Call:
    picture, H = torch.rand(16, 3, 32, 32), torch.eye(3).repeat(16, 1, 1)
    return lambda: kornia.geometry.transform.warp_perspective(picture, H, (32, 32))


if __name__ == "__main__":
    sys.exit(main())
