"""On matrices that are hard to invert every strategy is as accurate as LU with partial pivoting."""

from __future__ import annotations

import itertools
from functools import lru_cache

import mpmath
import pytest
import torch
from families import FAMILIES, matrices, spread

from autoinv.ops.inv.accuracy import inverse_residual, reject_reason, residuals
from autoinv.ops.inv.strategies import TABLE
from autoinv.problem import DTYPES, Problem
from autoinv.strategy import Strategy

COUNTS = {1: 20, 2: 100, 3: 200, 4: 200, 8: 60, 17: 40}  # by n
SPREAD = {2: 2000, 3: 5000, 4: 5000}  # enough for the strategy that needs a large batch
IS_TORCHS_LU = ("batched", "flat", "vmap", "loop")  # a sample is enough for these

_LOST = [name for name in FAMILIES if name.startswith(("condition 1e+10", "condition 1e+14"))]
ROUNDED_AWAY = {torch.float32: _LOST, torch.complex64: _LOST}
"""Noise in single precision: beyond n = 4 it is singular or not by the address at which MKL finds it."""


@lru_cache(maxsize=4096)
def reference(name: str, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | str]:
    """A family without the matrices that torch calls singular, and torch's inverses of it."""
    A = matrices(name, n, dtype, COUNTS[n] if n <= 4 or name not in ROUNDED_AWAY.get(dtype, ()) else 0)
    X, info = torch.linalg.inv_ex(A)
    good = (info == 0) & X.isfinite().all(-1).all(-1)
    return A[good], X[good].contiguous()


def summary(A: torch.Tensor, X: torch.Tensor) -> dict[str, float]:
    """The worst right residual, and the left one that 19 of 20 matrices stay under.

    Not the worst left one: for LU it has a tail like 1 / x, so that two equally good programs often differ by
    more than four times in it.
    """
    right, left = residuals(A, X)
    return {"right": float(right.amax()), "left": float(left.quantile(0.95))}


def assert_as_good_as_torch(A: torch.Tensor, X: torch.Tensor, expected: torch.Tensor) -> None:
    """Each residual at most four times torch's own, or under one n eps."""
    theirs = summary(A, expected)
    for side, residual in summary(A, X).items():
        assert residual <= max(4 * theirs[side], 1), (
            f"{side} residual, n = {A.shape[-1]}, torch {theirs[side]}"
        )


def supporting(counts: dict[int, int]) -> list[object]:
    """Every strategy and dtype, with those n, of so many matrices, that it supports."""
    found = []
    for strategy, (name, dtype) in itertools.product(TABLE, DTYPES.items()):
        tried = counts.keys() & {3, 8} if strategy.name in IS_TORCHS_LU else counts
        fit = [n for n in tried if strategy.supports(_problem((1, counts[n], n, n), dtype))]
        if fit:
            found.append(pytest.param(strategy, fit, dtype, id=f"{strategy.name}-{name}"))
    return found


def _problem(shape: tuple[int, ...], dtype: torch.dtype) -> Problem:
    return Problem("inv", (shape,), dtype, "cpu", torch.get_num_threads())


def inverse(strategy: Strategy, A: torch.Tensor) -> torch.Tensor:
    """The strategy's inverse of ``(b, n, n)``, with a second batch dimension for those that need one."""
    return strategy.bind(Problem.of("inv", A[None]))(A[None])[0]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("strategy", "sizes", "dtype"), supporting(COUNTS))
def test_residuals_stay_within_four_times_torchs_or_one_unit(strategy, sizes, dtype, name):
    for n in sizes:
        A, expected = reference(name, n, dtype)
        if A.numel():
            assert_as_good_as_torch(A, inverse(strategy, A), expected)


@pytest.mark.parametrize(("strategy", "sizes", "dtype"), supporting(SPREAD))
def test_residuals_stay_within_the_bound_for_random_singular_values(strategy, sizes, dtype):
    for n in sizes:
        A = spread(n, dtype, SPREAD[n])
        assert_as_good_as_torch(A, inverse(strategy, A), torch.linalg.inv(A))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strategy", TABLE, ids=lambda strategy: strategy.name)
def test_permutations_are_inverted_exactly(strategy, dtype):
    for n in COUNTS:
        A = matrices("permutation", n, dtype, 20)
        problem = Problem.of("inv", A)
        if strategy.supports(problem):
            assert torch.equal(A.mT, strategy.bind(problem)(A)), n


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_residual_agrees_with_fifty_digits(dtype):
    A = spread(3, dtype, 5)
    X = torch.linalg.inv(A) * (1 + 1e-12)  # far above what computing the residual itself loses
    right, left = inverse_residual(A, X)
    with mpmath.workdps(50):
        exact = [_exact_residual(a, x) for a, x in zip(A.tolist(), X.tolist(), strict=True)]
    assert max(side[0] for side in exact) == pytest.approx(right, rel=1e-2)
    assert max(side[1] for side in exact) == pytest.approx(left, rel=1e-2)


def _exact_residual(a: list[list[complex]], x: list[list[complex]]) -> tuple[float, float]:
    A, X, n = mpmath.matrix(a), mpmath.matrix(x), len(a)
    unit = mpmath.mnorm(A, mpmath.inf) * mpmath.mnorm(X, mpmath.inf) * n * torch.finfo(torch.float64).eps
    right, left = (mpmath.mnorm(P - mpmath.eye(n), mpmath.inf) / unit for P in (A * X, X * A))
    return float(right), float(left)


def test_the_transpose_of_an_inverse_is_rejected():
    A = spread(3, torch.float64, 50)
    X = torch.linalg.inv(A).contiguous()
    assert "right residual" in str(reject_reason(A, X.mT.contiguous(), X))


def test_a_single_wrong_matrix_is_rejected_and_the_text_says_by_how_much():
    A = matrices("orthogonal", 3, torch.float32, 50)
    X = torch.linalg.inv(A).contiguous()
    wrong = X.clone()
    wrong[17] *= 1 + 1e-4
    reason = reject_reason(A, wrong, X)
    assert reason is not None and reason.startswith("right residual ") and "is over" in reason


def test_a_result_that_is_not_finite_is_rejected_unless_torch_overflows_too():
    A = matrices("gaussian", 3, torch.float32, 10)
    X = torch.linalg.inv(A).contiguous()
    broken = X.clone()
    broken[4, 1, 1] = torch.nan
    assert reject_reason(A, broken, X) == "right residual inf is over 1"
    assert reject_reason(A, broken, broken) is None
    assert inverse_residual(A, broken)[0] == torch.inf


def test_a_result_of_another_shape_dtype_or_layout_is_rejected():
    A = matrices("gaussian", 3, torch.float32, 10)
    X = torch.linalg.inv(A).contiguous()
    assert reject_reason(A, X.double(), X) == "returned (10, 3, 3) torch.float64 on cpu"
    assert reject_reason(A, X[:5], X) == "returned (5, 3, 3) torch.float32 on cpu"
    assert reject_reason(A, X.mT, X) == "returned a tensor that is not contiguous"


def test_an_empty_result_is_not_rejected():
    for shape in ((0, 3, 3), (4, 0, 0), (0, 0)):
        empty = torch.empty(shape)
        assert reject_reason(empty, empty, empty) is None
        assert inverse_residual(empty, empty) == (0.0, 0.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e150, 1e300])
def test_the_scale_of_a_matrix_does_not_change_its_residual(scale):
    A = spread(4, torch.float64, 20) * scale
    right, left = inverse_residual(A, torch.linalg.inv(A))
    assert right < 1
    assert left < 100


def test_the_residual_is_the_same_in_every_torch_mode():
    A = spread(3, torch.float32, 64)
    X = torch.linalg.inv(A)
    expected = inverse_residual(A, X)
    state = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu"), torch.device("meta"):
        assert inverse_residual(A, X) == expected
    assert torch.equal(torch.get_rng_state(), state)
