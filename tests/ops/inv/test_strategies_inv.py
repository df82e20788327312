"""The contract of a strategy of `inv`: one suite over all of them, against torch.linalg.inv."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from contract import bound, every, random

from autoinv.ops.inv.accuracy import reject_reason
from autoinv.ops.inv.strategies import TABLE
from autoinv.problem import DTYPES, Problem
from autoinv.strategy import Strategy

BATCHES = ((), (1,), (7,), (2, 3), (1, 2, 1, 3))
SIZES = dict.fromkeys((1, 2, 3, 4, 5, 6, 8), BATCHES) | {16: ((), (2, 3)), 33: ((2, 2),)}
READS_ADDRESSES = ("native", "native_parallel")  # the dispatcher resolves lazy views for them


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
        A[1, 2, -1] = A[1, 2, 0]  # nearly singular: left to LU
        A[1, 2, -1, 0] += 1e-5
    expected = bound(strategy, A)(A)
    assert bound(strategy, A)(A, out=A) is A
    assert torch.equal(expected, A)


@pytest.mark.parametrize("count", [909, 910, 1819, 4096, 4097, 8193])
@every(1, 2, 3, 4, batch=(8193,), dtypes="float64")
def test_batches_around_a_step_lose_no_matrix(strategy, dtype, n, count):
    A = random((count, n, n), dtype)
    if strategy.may_be_slow(Problem.of("inv", A)) or not strategy.supports(Problem.of("inv", A)):
        return  # it does not work in steps
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


def _low_precision() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


MODES = {
    "autocast": _low_precision,
    "inference mode": torch.inference_mode,
    "a default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES)
@every(1, 2, 3, 4, 8, batch=(2, 20))
def test_torch_modes_do_not_change_the_result(strategy, dtype, mode, n):
    A = random((2, 20, n, n), dtype)
    A[1, 3] *= 1e-20  # left to LU
    expected = bound(strategy, A)(A)
    with MODES[mode]():
        actual = bound(strategy, A)(A)
    assert torch.equal(expected, actual)
    assert actual.device.type == "cpu"


@every(2, 3, 4, batch=(5000,))
def test_a_lower_matmul_precision_does_not_change_the_result(strategy, dtype, n):
    A = random((5000, n, n), dtype)
    run = bound(strategy, A)
    expected = run(A)
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(expected, run(A))
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_batched_call_is_not_used_where_it_is_broken():
    broken = Problem("inv", ((2, 151, 151),), torch.float64, "cpu", 2)
    assert [strategy.name for strategy in TABLE if strategy.supports(broken)] == ["loop"]


def test_with_one_thread_no_strategy_is_multithreaded():
    for shape in ((3, 3), (80, 3, 3), (2, 100_000, 4, 4), (200, 100, 100)):
        problem = Problem("inv", (shape,), torch.float64, "cpu", 1)
        candidates = [strategy for strategy in TABLE if strategy.supports(problem)]
        assert [strategy.name for strategy in candidates if strategy.is_multithreaded(problem)] == []


@pytest.mark.parametrize(
    ("shape", "single_threaded"),
    [
        ((3, 3), {"batched", "closed_form", "bmm", "loop"}),
        ((3, 3, 3), {"closed_form", "bmm", "loop"}),
        ((16, 16), {"batched", "loop"}),
        ((17, 17), set()),
        ((1300, 3, 3), {"closed_form", "loop"}),
    ],
    ids=str,
)
def test_a_strategy_is_multithreaded_exactly_where_torch_shares_its_work(shape, single_threaded):
    problem = Problem("inv", (shape,), torch.complex128, "cpu", 2)
    candidates = [strategy for strategy in TABLE if strategy.supports(problem)]
    assert {
        strategy.name for strategy in candidates if not strategy.is_multithreaded(problem)
    } == single_threaded


def test_every_strategy_has_a_name_of_its_own_and_the_reference_comes_first():
    names = [strategy.name for strategy in TABLE]
    assert len(names) == len(set(names))
    assert names[0] == "batched"
