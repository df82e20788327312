"""The contract of a strategy of `inv`: one suite over all of them, against torch.linalg.inv."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from autoinv.accuracy import reject_reason
from autoinv.problem import DTYPES, Problem
from autoinv.strategies.base import Strategy
from autoinv.strategies.inv import TABLE

BATCHES = ((), (1,), (7,), (2, 3), (1, 2, 1, 3))
SIZES = dict.fromkeys((1, 2, 3, 4, 5, 6, 8), BATCHES) | {16: ((), (2, 3)), 33: ((2, 2),)}
READS_ADDRESSES = (
    "native",
    "native_parallel",
)  # they are given plain memory: the dispatcher resolves lazy views

THREADS = torch.get_num_threads()


def every(*sizes: int, batch: tuple[int, ...] = (20,), dtypes: str = "") -> pytest.MarkDecorator:
    """Parametrise a test over every strategy, dtype and n that it supports."""
    found = [
        pytest.param(strategy, dtype, n, id=f"{strategy.name}-{name}-{n}")
        for strategy, (name, dtype), n in itertools.product(TABLE, DTYPES.items(), sizes)
        if dtypes in name and strategy.supports(Problem("inv", ((*batch, n, n),), dtype, "cpu", THREADS))
    ]
    return pytest.mark.parametrize(("strategy", "dtype", "n"), found)


def _sliced(A: torch.Tensor) -> torch.Tensor:
    n = A.shape[-1]
    wide = torch.full((2, *A.shape[:-2], n + 3, n + 2), torch.nan, dtype=A.dtype)
    wide[1, ..., 2 : n + 2, 1 : n + 1] = A
    return wide[1, ..., 2 : n + 2, 1 : n + 1]


def _every_other(A: torch.Tensor) -> torch.Tensor:
    return A.repeat_interleave(2, -1).repeat_interleave(2, -2)[..., ::2, ::2]


def _expanded(A: torch.Tensor) -> torch.Tensor:
    return A.reshape(-1, *A.shape[-2:])[0].expand(A.shape)


def _batch_last(A: torch.Tensor) -> torch.Tensor:
    return A.movedim((-2, -1), (0, 1)).contiguous().movedim((0, 1), (-2, -1))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda A: A,
    "transposed": lambda A: A.mT.contiguous().mT,
    "sliced with offset": _sliced,
    "every other entry": _every_other,
    "expanded": _expanded,
    "batch last": _batch_last,
    "conj view": lambda A: A.conj().resolve_conj().conj(),
    "neg view": lambda A: torch._neg_view(-A),
}


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def bound(strategy: Strategy, A: torch.Tensor) -> Callable[..., torch.Tensor]:
    problem = Problem.of("inv", A)
    assert strategy.supports(problem), problem.key
    return strategy.bind(problem)


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


def cases() -> list[object]:
    """Every strategy, dtype, size and layout that some batch shape makes sense for."""
    found = []
    for strategy, (name, dtype), n, layout in itertools.product(TABLE, DTYPES.items(), SIZES, LAYOUTS):
        shapes = [shape for batch in SIZES[n] if _applies(strategy, shape := (*batch, n, n), dtype, layout)]
        if shapes:
            found.append(
                pytest.param(strategy, shapes, dtype, layout, id=f"{strategy.name}-{name}-{n}-{layout}")
            )
    return found


def _applies(strategy: Strategy, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> bool:
    if layout == "conj view" and not dtype.is_complex:
        return False
    if shape[-1] > 16 and layout not in ("contiguous", "transposed", "sliced with offset"):
        return False
    if layout == "neg view" and strategy.name in READS_ADDRESSES:
        return False
    A = LAYOUTS[layout](torch.ones(shape, dtype=dtype))
    return strategy.supports(Problem.of("inv", A))


@pytest.mark.parametrize(("strategy", "shapes", "dtype", "layout"), cases())
def test_the_inverse_is_as_good_as_torchs_and_contiguous_in_every_layout(strategy, shapes, dtype, layout):
    for shape in shapes:
        A = LAYOUTS[layout](random(shape, dtype))
        before = A.clone()
        X = bound(strategy, A)(A)
        assert reject_reason(A, X, torch.linalg.inv(A).contiguous()) is None
        assert (X.shape, X.dtype, X.device) == (A.shape, A.dtype, A.device)
        assert X.is_contiguous() and not X.is_conj() and not X.is_neg()
        assert torch.equal(A, before)

        out = torch.full(shape, torch.nan, dtype=dtype)
        assert bound(strategy, A)(A, out=out) is out
        assert torch.equal(X, out)


@every(1, 2, 3, 4, 6, 16, 33, batch=(2, 5))
def test_the_output_may_be_the_input(strategy, dtype, n):
    A = random((2, 5, n, n), dtype)
    A[1, 1] = A[0, 0] * 1e-30
    if n > 1:
        A[1, 2, -1] = A[1, 2, 0]  # nearly singular: LU's share
        A[1, 2, -1, 0] += 1e-5
    expected = bound(strategy, A)(A)
    assert bound(strategy, A)(A, out=A) is A
    assert torch.equal(expected, A)


@pytest.mark.parametrize("count", [909, 910, 1819, 4096, 4097, 8193])
@every(1, 2, 3, 4, batch=(8193,), dtypes="float64")
def test_batches_around_a_step_lose_no_matrix(strategy, dtype, n, count):
    A = random((count, n, n), dtype)
    if strategy.may_be_slow(Problem.of("inv", A)) or not strategy.supports(Problem.of("inv", A)):
        return  # it takes no steps
    A[count // 2] = A[0] * 1e-200  # underflows in a formula
    X = bound(strategy, A)(A)
    assert reject_reason(A, X, torch.linalg.inv(A).contiguous()) is None


@pytest.mark.parametrize("shape", [(0, 3, 3), (4, 0, 0), (0, 0, 0), (2, 0, 4, 4), (0, 0)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("strategy", TABLE, ids=lambda strategy: strategy.name)
def test_an_empty_input_gives_an_empty_output(strategy, dtype, shape):
    A = torch.empty(shape, dtype=dtype)
    if not strategy.supports(Problem.of("inv", A)):
        assert strategy.name != "batched"
        return
    X = bound(strategy, A)(A)
    assert (shape, dtype, True) == (X.shape, X.dtype, X.is_contiguous())


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


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("strategy", TABLE, ids=lambda strategy: strategy.name)
def test_a_singular_or_odd_matrix_gives_torchs_error_or_torchs_answer(strategy, dtype, name):
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
def test_on_singular_integer_matrices_torch_alone_says_which_are(strategy, dtype, n):
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
def test_a_matrix_that_is_not_finite_harms_no_other(strategy, dtype, value, n):
    A = random((20, n, n), dtype)
    expected = bound(strategy, A)(A)
    A[13, 1, 0] = value
    actual = bound(strategy, A)(A)
    others = torch.arange(20) != 13
    assert torch.equal(expected[others], actual[others])
    assert_same_outcome(strategy, A[5:15])


def _low_precision() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


SURROUNDINGS = {
    "autocast": _low_precision,
    "inference mode": torch.inference_mode,
    "a default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@every(1, 2, 3, 4, 8, batch=(2, 20))
def test_the_surroundings_change_nothing(strategy, dtype, surroundings, n):
    A = random((2, 20, n, n), dtype)
    A[1, 3] *= 1e-20  # LU's share
    expected = bound(strategy, A)(A)
    with SURROUNDINGS[surroundings]():
        actual = bound(strategy, A)(A)
    assert torch.equal(expected, actual)
    assert actual.device.type == "cpu"


@every(2, 3, 4, batch=(5000,))
def test_a_lower_matmul_precision_changes_nothing(strategy, dtype, n):
    A = random((5000, n, n), dtype)
    run = bound(strategy, A)
    expected = run(A)
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(expected, run(A))
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_batched_call_is_left_alone_where_torch_breaks_it():
    broken = Problem("inv", ((2, 151, 151),), torch.float64, "cpu", 2)
    assert [strategy.name for strategy in TABLE if strategy.supports(broken)] == ["loop"]


def test_with_one_thread_no_strategy_opens_a_team():
    for shape in ((3, 3), (80, 3, 3), (2, 100_000, 4, 4), (200, 100, 100)):
        problem = Problem("inv", (shape,), torch.float64, "cpu", 1)
        candidates = [strategy for strategy in TABLE if strategy.supports(problem)]
        assert [strategy.name for strategy in candidates if strategy.opens_team(problem)] == []


@pytest.mark.parametrize(
    ("shape", "calm"),
    [
        ((3, 3), {"batched", "closed_form", "bmm", "loop"}),
        ((3, 3, 3), {"closed_form", "bmm", "loop"}),
        ((16, 16), {"batched", "loop"}),
        ((17, 17), set()),
        ((1300, 3, 3), {"closed_form", "loop"}),
    ],
    ids=str,
)
def test_what_torch_shares_among_threads_is_not_called_calm(shape, calm):
    problem = Problem("inv", (shape,), torch.complex128, "cpu", 2)
    candidates = [strategy for strategy in TABLE if strategy.supports(problem)]
    assert {strategy.name for strategy in candidates if not strategy.opens_team(problem)} == calm


def test_every_strategy_has_a_name_of_its_own_and_the_reference_comes_first():
    names = [strategy.name for strategy in TABLE]
    assert len(names) == len(set(names))
    assert names[0] == "batched"
