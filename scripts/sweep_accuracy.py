"""How far the closed formulas can be trusted: the sweep behind their ``growth`` constants.

    python scripts/sweep_accuracy.py [--count 3000]

First table, per formula without its guard: the worst right or left residual (n eps) of the double precision
matrices that the rest of the guard lets through, by growth a^(n-1) / c. Second, per guarded strategy: its
worst family against torch.linalg.inv, and the share of gaussian matrices that LU does again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from autoinv.ops.inv.accuracy import inverse_residual
from autoinv.ops.inv.strategies import TABLE
from autoinv.ops.inv.strategies._guard import Guarded, trust_of
from autoinv.problem import DTYPES, Problem

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from families import FAMILIES, matrices, spread

GROWTHS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0)
FORMULAS = [strategy for strategy in TABLE if isinstance(strategy, Guarded)]


def everything(n: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """All families, and ten times as many with their singular values spread at random."""
    parts = [matrices(name, n, dtype, count, seed) for name in FAMILIES for seed in (1, 2)]
    return torch.cat([*parts, *(spread(n, dtype, 10 * count, seed) for seed in range(3))])


def by_growth(strategy: Guarded, A: torch.Tensor) -> str:
    """Residuals of the formula alone, by the growth that the guard would have to allow."""
    problem = Problem.of("inv", A)
    entries, adjugate, determinant = strategy.formula(problem)(A)
    X = (adjugate / determinant).view(*A.shape[1:], -1).permute(2, 0, 1)
    cells, below = [], torch.zeros(len(A), dtype=torch.bool)
    for growth in GROWTHS:
        kept = trust_of(problem, growth)(entries, adjugate, determinant) > 0
        band = kept & ~below
        right, left = inverse_residual(A[band], X[band])
        cells.append(f"{max(right, left):5.2f}")
        below = kept
    return " ".join(cells)


def worst_family(strategy: Guarded, n: int, dtype: torch.dtype, count: int) -> str:
    """The family whose residual uses most of what the rule allows, and how many gaussian matrices LU does."""
    worst = (0.0, "")
    for name in FAMILIES:
        A = matrices(name, n, dtype, count)
        try:
            expected = torch.linalg.inv(A)
        except torch.linalg.LinAlgError:
            continue
        A, expected = A[finite(expected)], expected[finite(expected)]
        X = strategy.bind(Problem.of("inv", A))(A)
        for side, got, theirs in zip(
            "RL", inverse_residual(A, X), inverse_residual(A, expected), strict=True
        ):
            worst = max(worst, (got / max(4 * theirs, 1.0), f"{side} {got:.2f}, torch {theirs:.2f}: {name}"))
    A = matrices("gaussian", n, dtype, 20 * count, seed=3)
    problem = Problem.of("inv", A)
    trusted = trust_of(problem, strategy.growth)(*strategy.formula(problem)(A)) > 0
    return f"{worst[0]:5.2f} of the limit ({worst[1]}); LU does {1 - trusted.double().mean():.3%} of gaussian"


def finite(X: torch.Tensor) -> torch.Tensor:
    return X.isfinite().all(-1).all(-1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=3000, help="matrices a family")
    count = parser.parse_args().count
    print("worst residual by growth up to", *(f"{growth:5.1f}" for growth in GROWTHS))
    for dtype in (torch.float64, torch.complex128):
        for n in (2, 3, 4):
            A = everything(n, dtype, count)
            for strategy in FORMULAS:
                if strategy.supports(Problem.of("inv", A)):
                    label = f"{strategy.name} {n}x{n} {str(dtype)[6:]}"
                    print(f"{label:30}", by_growth(strategy, A), f"  kept up to {strategy.growth}")
    print()
    for dtype in DTYPES.values():
        for n in (1, 2, 3, 4):
            for strategy in FORMULAS:
                if strategy.supports(Problem("inv", ((2, n, n),), dtype, "cpu", 1)):
                    label = f"{strategy.name} {n}x{n} {str(dtype)[6:]}"
                    print(f"{label:30}", worst_family(strategy, n, dtype, count), flush=True)


if __name__ == "__main__":
    main()
