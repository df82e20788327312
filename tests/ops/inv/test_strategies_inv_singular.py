"""Singular and not finite matrices: every strategy raises torch's error or gives torch's answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from contract import bound, every, random

from autoinv.ops.inv.strategies import TABLE
from autoinv.problem import DTYPES, Problem
from autoinv.strategy import Strategy

COUNTING = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
SINGULAR = {
    "zeros": torch.zeros(3, 3, dtype=torch.complex128),
    "zeros 1x1": torch.zeros(1, 1, dtype=torch.complex128),
    "zeros 4x4": torch.zeros(4, 4, dtype=torch.complex128),
    "zeros 16x16": torch.zeros(16, 16, dtype=torch.complex128),
    "equal rows": torch.tensor([[1.0, 2.0], [1.0, 2.0]], dtype=torch.complex128),
    "counting": torch.tensor(COUNTING, dtype=torch.complex128),
    "counting, transposed": torch.tensor(COUNTING, dtype=torch.complex128).mT.contiguous(),
    "not a number": torch.full((3, 3), torch.nan, dtype=torch.complex128),
    "infinite": torch.diag(torch.tensor([1.0, torch.inf, 1.0], dtype=torch.complex128)),
    "infinite 1x1": torch.full((1, 1), torch.inf, dtype=torch.complex128),
    "subnormal": torch.eye(2, dtype=torch.complex128) * 5e-324,
}


def outcome(call: Callable[[torch.Tensor], torch.Tensor], A: torch.Tensor) -> str | torch.Tensor:
    """The inverse, or the class and text of the error."""
    try:
        return call(A)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def assert_same_outcome(strategy: Strategy, A: torch.Tensor) -> None:
    expected, actual = outcome(torch.linalg.inv, A), outcome(bound(strategy, A), A.clone())
    if isinstance(expected, str):
        assert expected == actual
    else:
        assert isinstance(actual, torch.Tensor), actual
        torch.testing.assert_close(actual, expected.contiguous(), equal_nan=True)


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("strategy", TABLE, ids=lambda strategy: strategy.name)
def test_a_singular_or_not_finite_matrix_gives_torchs_error_or_torchs_answer(strategy, dtype, name):
    S = SINGULAR[name].to(dtype) if dtype.is_complex else SINGULAR[name].real.to(dtype)
    for batch, where in (((), ()), ((1,), (0,)), ((7,), (4,)), ((2, 3), (1, 1)), ((7,), slice(3, 5))):
        A = torch.eye(len(S), dtype=dtype).repeat(*batch, 1, 1) * 2
        A[where] = S
        if strategy.supports(Problem.of("inv", A)):
            assert_same_outcome(strategy, A)


@every(3, batch=(4300,))
def test_the_first_singular_matrix_of_a_large_batch_is_named(strategy, dtype, n):
    A = torch.eye(n, dtype=dtype).repeat(4300, 1, 1)
    A[4200] = A[4199] = 0
    assert_same_outcome(strategy, A)


@every(2, 3, 4, 6, batch=(1,))
def test_torch_alone_decides_which_integer_matrices_are_singular(strategy, dtype, n):
    generator = torch.Generator().manual_seed(n)
    A = torch.randint(-9, 10, (150, n, n), generator=generator).to(dtype)
    A[:, -1] = 2 * A[:, 0] - A[:, (n - 1) // 2]
    if dtype.is_complex:
        A = A + 1j * A.flip(0).flip(-1)
        A[:, -1] = 2 * A[:, 0] - A[:, (n - 1) // 2]
    for matrix in A[:, None]:
        assert_same_outcome(strategy, matrix)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@every(2, 3, 4, 8)
def test_a_matrix_that_is_not_finite_does_not_change_the_others(strategy, dtype, value, n):
    A = random((20, n, n), dtype)
    expected = bound(strategy, A)(A)
    A[13, 1, 0] = value
    actual = bound(strategy, A)(A)
    others = torch.arange(20) != 13
    assert torch.equal(expected[others], actual[others])
    assert_same_outcome(strategy, A[5:15])
