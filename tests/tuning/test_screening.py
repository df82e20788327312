"""The screening of the candidates, and the operands that they are screened on."""

from __future__ import annotations

import pytest
import torch
from fakes import FakeStopwatch, FakeStrategy, fake_operation

from autoinv.ops.inv.operation import INV
from autoinv.problem import Problem
from autoinv.tuning.operands import dense_stride, random_operand, sliced
from autoinv.tuning.screening import screen
from autoinv.tuning.timing import race
from autoinv.tuning.tuner import tune


@pytest.fixture
def watch():
    return FakeStopwatch()


def problem(*shape, layout="contiguous"):
    return Problem("inv", (shape,), torch.float64, "cpu", 2, (layout,))


def test_single_threaded_strategies_are_screened_before_a_reference_that_takes_the_whole_budget(watch):
    batched = FakeStrategy("batched", watch, 60e-3, multithreaded=True)
    operation = fake_operation([batched, FakeStrategy("native", watch, 1e-3)], INV)
    decision = tune(operation, problem(64, 3, 3), [dense_stride((64, 3, 3), "contiguous")], 0.1, watch)
    assert decision.strategy == "native"


def test_a_candidate_is_compared_with_the_reference_whichever_ran_first(watch):
    strategies = [
        FakeStrategy("batched", watch, 1e-5, multithreaded=True),
        FakeStrategy("sloppy", watch, 1e-6, wrong=True),
    ]
    screened = screen(fake_operation(strategies, INV), problem(64, 3, 3), watch, watch.wall_s() + 1)
    assert "residual" in screened.rejected["sloppy"]
    assert set(screened.slice_s) == {"batched"}


def test_times_extrapolated_from_a_slice_decide_but_are_not_shown_as_measured(watch):
    strategies = [
        FakeStrategy("batched", watch, 1e-3, each_matrix=True),
        FakeStrategy("flat", watch, 1e-4, each_matrix=True),
    ]
    shape = (100_000, 3, 3)
    decision = tune(
        fake_operation(strategies, INV), problem(*shape), [dense_stride(shape, "contiguous")], 0.5, watch
    )
    assert (decision.strategy, decision.seconds, decision.complete) == ("flat", {}, False)
    assert decision.rejected["flat"].startswith("only seen on 64 of 100000 matrices: 6.4e+03 us")


def test_a_clear_lead_needs_the_same_candidate_in_three_consecutive_rounds(watch):
    turns = {"a": iter([1, 9, 1, 1, 1, 1]), "b": iter([9, 1, 9, 9, 9, 9])}

    def call(name):
        return lambda: watch.advance(next(turns[name]) * 1e-3)

    result = race(
        {"a": call("a"), "b": call("b")},
        {"a": 1e-3, "b": 1e-3},
        watch,
        deadline_s=watch.wall_s() + 9,
        most_rounds=6,
    )
    assert result.count == 5  # b led the second round, so the count began anew at the third


def test_a_clock_that_goes_back_measures_the_smallest_time():
    class Backwards(FakeStopwatch):
        def wall_s(self):
            self.now_s -= 1e-6
            return self.now_s

    assert Backwards().seconds(lambda: None, 1) == 1e-9


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((10, 8, 3, 3), (72, 9, 3, 1)),
        ((10, 3, 3), (90, 6, 2)),
        ((5, 4, 4), (16, 1, 4)),
        ((4, 3, 3), (0, 3, 1)),
    ],
)
def test_operands_have_the_callers_shape_and_strides(shape, stride):
    A = random_operand(shape, stride, torch.float32, "cpu")
    assert (A.shape, A.stride()) == (shape, stride)
    assert A.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((2, 3, 3), (190_000_000, 3, 1)), ((2000, 3, 3), (14_400, 120, 1)), ((3, 2, 2), (1, 10**9, 10**7))],
)
def test_operands_for_a_small_part_of_a_large_storage_are_small(shape, stride):
    A = random_operand(shape, stride, torch.float32, "cpu")
    assert A.shape == shape
    assert A.untyped_storage().nbytes() < 10_000_000
    narrowed = A.stride()
    assert sorted(range(3), key=lambda d: stride[d]) == sorted(range(3), key=lambda d: narrowed[d])
    assert not A.is_contiguous()
    assert A.unique().numel() > A.numel() // 4  # no two elements share memory


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((10, 8, 3, 3), (8, 8, 3, 3)),
        ((100_000, 3, 3), (64, 3, 3)),
        ((3, 3), (3, 3)),
        ((9, 200, 200), (2, 200, 200)),
    ],
)
def test_a_slice_keeps_the_dims_and_few_matrices(shape, expected):
    assert sliced(INV, problem(*shape)).shapes == (expected,)
