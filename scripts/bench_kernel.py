"""The C++ kernels alone, in cache: ns a matrix, GFLOP/s, GB/s, shares of the FMA peak and of memcpy.

Peak, memcpy and kernel are timed in turns within each round; figures are medians over the rounds. An inverse
counts as 2 n^3 operations, and as one read and one write of its bytes.
"""

from __future__ import annotations

import ctypes
import statistics
import sys

import torch
from measuring import bench

from autoinv import native

CODES = {"float64": 1, "float32": 0}
ROUNDS = 9
PART_S = 1e-3


def measure(extension: object, n: int, dtype: str, batch: int) -> dict[str, object]:
    """Return the figures of one size and dtype; the cost of an empty call is taken off."""
    code, A = CODES[dtype], torch.randn(batch, n, n, dtype=getattr(torch, dtype))
    A += 3 * torch.eye(n, dtype=A.dtype)
    X = torch.empty_like(A)
    source, target, size = A.data_ptr(), X.data_ptr(), A.numel() * A.element_size()
    inv, fma = extension.inv, extension.measure_fma
    calls: dict[str, bench.Call] = {
        "kernel": lambda: inv(source, target, code, n, batch),
        "empty": lambda: inv(source, target, code, n, 0),
        "memcpy": lambda: ctypes.memmove(target, source, size),
        "no memcpy": lambda: ctypes.memmove(target, source, 0),
        "fma": lambda: fma(code, 10_000),
    }
    operations = fma(code, 10_000)
    times = bench.interleaved(calls, rounds=ROUNDS, part_s=PART_S)
    s = {name: statistics.median(values) for name, values in times.items()}
    kernel_s = (s["kernel"] - s["empty"]) / batch
    memcpy_s = max(s["memcpy"] - s["no memcpy"], 1e-10) / batch
    gflops, peak = 2 * n**3 / kernel_s / 1e9, operations / s["fma"] / 1e9
    return {
        "isa": extension.isa(),
        "dtype": dtype,
        "n": n,
        "batch": batch,
        "ns": kernel_s * 1e9,
        "gflops": gflops,
        "gb_per_s": 2 * size / batch / kernel_s / 1e9,
        "share_of_fma_peak": gflops / peak,
        "peak_gflops": peak,
        "times_memcpy": kernel_s / memcpy_s,
    }


def show(row: dict) -> None:
    print(
        f"{row['isa']:>8} {row['dtype']:>8} {row['n']:3} {row['ns']:10.1f} {row['gflops']:8.2f} "
        f"{row['gb_per_s']:7.2f} {row['share_of_fma_peak']:8.1%} {row['times_memcpy']:9.1f}",
        flush=True,
    )


def main() -> int:
    made = bench.parser(__doc__ or "")
    made.add_argument("--n", type=int, nargs="*", default=list(range(1, 65)), help="sizes of the matrices")
    made.add_argument("--batch", type=int, default=80, help="matrices a call")
    made.add_argument("--isa", nargs="*", help="instruction sets (default: the best one)")
    arguments = made.parse_args()
    extension = native.load()
    if extension is None:
        print(native.why_missing(), file=sys.stderr)
        return 1
    print(bench.describe())
    print(f"{arguments.batch} matrices a call; memcpy of the same bytes")
    print(
        f"{'set':>8} {'dtype':>8} {'n':>3} {'ns/matrix':>10} {'GFLOP/s':>8} {'GB/s':>7} {'of peak':>8} {'x memcpy':>9}"
    )
    rows = []
    for isa in arguments.isa or [extension.isa()]:
        extension.use_isa(isa)
        for dtype in CODES:
            for n in arguments.n:
                rows.append(measure(extension, n, dtype, arguments.batch))
                show(rows[-1])
    bench.write_json(arguments.json, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
