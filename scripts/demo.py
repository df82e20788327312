"""The founding case: (10,8,3,3) float64, tuned in one process, remembered in the next, as fast on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import bench_busy
from measuring import bench

CHILD = """
import time
import torch, autoinv
from autoinv.tuning import tuner

tunings, tune = [], tuner.tune
tuner.tune = lambda *a, **k: (tunings.append(1), tune(*a, **k))[1]
A = torch.randn(10, 8, 3, 3, dtype=torch.float64)
began = time.perf_counter()
X = autoinv.inv(A)
first_ms = (time.perf_counter() - began) * 1e3
for _ in range(1000):
    autoinv.inv(A)
print(f"first call {first_ms:.1f} ms, tunings in this process: {len(tunings)}")
print(f"largest difference from torch.linalg.inv: {(X - torch.linalg.inv(A)).abs().max().item():.1e}")
print(autoinv.explain(A))
"""


def process(folder: str) -> None:
    env = {**os.environ, "AUTOINV_CACHE_DIR": folder, "OMP_NUM_THREADS": "2", "PYTHONSAFEPATH": "1"}
    print(
        subprocess.run(
            [sys.executable, "-c", CHILD], env=env, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    )


def main() -> None:
    print(bench.describe())
    with tempfile.TemporaryDirectory() as folder:
        print("\n1. A first process meets the shape, times every strategy and keeps the decision\n")
        process(folder)
        print("2. A second process finds it in the file (it tunes again only if the first was contended)\n")
        process(folder)
    print("3. The same beside two busy processes\n")
    bench_busy.table()


if __name__ == "__main__":
    main()
