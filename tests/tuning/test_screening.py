"""The screening of the candidates, and the operands that they are screened on."""

from __future__ import annotations

import pytest
import torch
from fakes import FakeStopwatch, FakeStrategy, fake_operation

from autoinv.ops.inv.operation import INV
from autoinv.problem import Problem
from autoinv.tuning.operands import dense_stride, random_operand, slices
from autoinv.tuning.screening import screen
from autoinv.tuning.timing import CpuShare, race
from autoinv.tuning.tuner import NothingTimedError, tune


@pytest.fixture
def watch():
    return FakeStopwatch()


def problem(*shape, layout="contiguous"):
    return Problem("inv", (shape,), torch.float64, "cpu", 2, (layout,))


@pytest.mark.parametrize("budget_s", [0.005, 0.1])
def test_the_default_and_then_the_reference_are_seen_though_that_takes_the_whole_budget(watch, budget_s):
    batched = FakeStrategy("batched", watch, 60e-3, multithreaded=True)
    strategies = [batched, FakeStrategy("flat", watch, 2e-3), FakeStrategy("native", watch, 1e-3)]
    operation = fake_operation(strategies, INV, defaults=("native",))
    decision = tune(operation, problem(64, 3, 3), [dense_stride((64, 3, 3), "contiguous")], budget_s, watch)
    assert decision.strategy == "native"
    assert batched.calls == [(64, 3, 3)]
    assert "batched" in {**decision.seconds, **decision.rejected}


def test_a_default_that_is_inaccurate_is_found_out_with_the_least_budget(watch):
    strategies = [FakeStrategy("batched", watch, 60e-3), FakeStrategy("native", watch, 1e-3, wrong=True)]
    operation = fake_operation(strategies, INV, defaults=("native",))
    decision = tune(operation, problem(64, 3, 3), [dense_stride((64, 3, 3), "contiguous")], 0.005, watch)
    assert decision.strategy == "batched"
    assert "residual" in decision.rejected["native"]


class Launched(FakeStrategy):
    """Takes as long for 64 matrices as for many: a launch, or a team's waking, and then a little for each."""

    def __init__(self, name, watch, launch_s, each_s):
        super().__init__(name, watch, 0.0)
        self._launch_s, self._each_s = launch_s, each_s

    def bind(self, problem):
        self._seconds = max(self._launch_s, self._each_s * problem.batch)
        return super().bind(problem)


@pytest.mark.parametrize("batch", [1_000, 30_000, 50_000, 100_000, 1_000_000, 30_000_000])
def test_what_only_pays_on_large_batches_is_chosen_there(watch, batch):
    strategies = [Launched("batched", watch, 80e-6, 6e-9), Launched("fused", watch, 120e-6, 0.1e-9)]
    p = Problem("inv", ((batch, 1, 1),), torch.float32, "cpu", 1)
    decision = tune(fake_operation(strategies, INV), p, [(1, 1, 1)], 0.1, watch)
    assert decision.strategy == ("batched" if batch < 20_000 else "fused")


def test_a_single_threaded_strategy_gives_way_where_it_loses_more_than_two_milliseconds_a_call(watch):
    for scale, right in ((1.0, "native"), (3.0, "native_parallel")):
        strategies = [
            FakeStrategy("batched", watch, scale * 50e-3, multithreaded=True),
            FakeStrategy("native", watch, scale * 5e-3),
            FakeStrategy("native_parallel", watch, scale * 4e-3, multithreaded=True),
        ]
        decision = tune(fake_operation(strategies, INV), problem(64, 3, 3), [(9, 3, 1)], 1.0, watch)
        assert decision.strategy == right


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate")]
)
@pytest.mark.parametrize("batch", [64, 1000])
def test_nothing_is_decided_where_memory_runs_out(watch, error, batch):
    strategies = [FakeStrategy("batched", watch, 1e-5), FakeStrategy("native", watch, 1e-6, raises=error)]
    with pytest.raises(NothingTimedError, match="memory ran out"):
        tune(fake_operation(strategies, INV), problem(batch, 3, 3), [(9, 3, 1)], 0.1, watch)


def test_nothing_is_decided_where_there_is_no_memory_for_the_operands(watch, monkeypatch):
    def no_memory(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("autoinv.tuning.screening.random_operands", no_memory)
    with pytest.raises(NothingTimedError, match="memory ran out"):
        tune(
            fake_operation([FakeStrategy("batched", watch, 1e-5)], INV),
            problem(64, 3, 3),
            [(9, 3, 1)],
            0.1,
            watch,
        )


def test_a_candidate_is_compared_with_the_reference_whichever_ran_first(watch):
    strategies = [
        FakeStrategy("batched", watch, 1e-5, multithreaded=True),
        FakeStrategy("sloppy", watch, 1e-6, wrong=True),
    ]
    screened = screen(fake_operation(strategies, INV), problem(64, 3, 3), watch, watch.wall_s() + 1)
    assert "residual" in screened.rejected["sloppy"]
    assert set(screened.seen[0].seconds) == {"batched"}


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
    assert decision.rejected["flat"] == "only seen on 64 of 100000 matrices: 6.4e+03 us"
    assert decision.rejected["batched"].startswith(
        "screened out, only seen on 64 of 100000 matrices: 6.4e+04 us, 10 times"
    )


def test_a_clear_lead_needs_the_same_candidate_in_three_consecutive_rounds(watch):
    turns = {"a": iter([1, 9, 1, 1, 1, 1]), "b": iter([9, 1, 9, 9, 9, 9])}

    def call(name):
        return lambda: watch.advance(next(turns[name]) * 1e-3)

    result = race(
        {"a": call("a"), "b": call("b")},
        {"a": 1e-3, "b": 1e-3},
        CpuShare(watch, {"a", "b"}),
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
        ((10, 8, 3, 3), [(8, 8, 3, 3), (10, 8, 3, 3)]),
        ((100_000, 3, 3), [(64, 3, 3), (1024, 3, 3), (16384, 3, 3), (100_000, 3, 3)]),
        ((20_000, 3, 3), [(64, 3, 3), (1024, 3, 3), (20_000, 3, 3)]),
        ((3, 3), [(3, 3)]),
        ((9, 200, 200), [(2, 200, 200), (9, 200, 200)]),
    ],
)
def test_slices_keep_the_dims_and_grow_to_the_whole(shape, expected):
    assert [p.shape for p in slices(INV, problem(*shape))] == expected
