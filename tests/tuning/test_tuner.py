"""Tuning on a fake clock: what is timed, what is rejected and why, and that the budget holds."""

from __future__ import annotations

import pytest
import torch
from fakes import FakeStopwatch, FakeStrategy, fake_operation

from autoinv.ops.inv.operation import INV
from autoinv.problem import Problem
from autoinv.tuning.operands import dense_stride
from autoinv.tuning.tuner import NothingTimedError, tune

PROBLEM = Problem("inv", ((10, 8, 3, 3),), torch.float64, "cpu", 2)


def tuned(strategies, watch, budget_s=0.1, problem=PROBLEM):
    operation = fake_operation(strategies, INV)
    return tune(operation, problem, [dense_stride(problem.shape, problem.layout)], budget_s, watch)


class Recorder(FakeStopwatch):
    """Keeps how long each call on it took."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_s = [0.0]

    def advance(self, seconds: float) -> None:
        self.calls_s.append(seconds)
        super().advance(seconds)


@pytest.fixture
def watch():
    return Recorder()


def test_the_fastest_wins_and_every_strategy_has_a_time_or_a_reason(watch):
    decision = tuned(
        [
            FakeStrategy("batched", watch, 20e-6),
            FakeStrategy("native", watch, 3e-6),
            FakeStrategy("other", watch, 10e-6, supported=False),
            FakeStrategy("broken", watch, 1e-6, raises=RuntimeError("no such kernel\nsecond line")),
            FakeStrategy("sloppy", watch, 1e-6, wrong=True),
        ],
        watch,
    )
    assert decision.strategy == "native"
    assert set(decision.seconds) | set(decision.rejected) == {
        "batched",
        "native",
        "other",
        "broken",
        "sloppy",
    }
    assert decision.rejected["broken"] == "raised RuntimeError: no such kernel"
    assert "residual" in decision.rejected["sloppy"]
    assert decision.rejected["other"] == "does not support this problem"
    assert (decision.complete, decision.contended) == (True, False)


def test_a_clear_lead_in_three_uncontended_rounds_ends_the_tuning(watch):
    decision = tuned([FakeStrategy("batched", watch, 20e-6), FakeStrategy("native", watch, 3e-6)], watch)
    assert decision.rounds == 3
    assert watch.now_s - 100.0 < 0.003


def test_a_strategy_that_cannot_be_bound_is_rejected_and_the_others_are_timed(watch, monkeypatch):
    strategies = [FakeStrategy("batched", watch, 20e-6), FakeStrategy("native", watch, 3e-6)]
    strategies.append(FakeStrategy("vmap", watch, 1e-6))

    def bind(problem):
        raise RuntimeError("no such module")

    monkeypatch.setattr(strategies[2], "bind", bind)
    decision = tuned(strategies, watch)
    assert (decision.strategy, decision.rejected["vmap"]) == ("native", "raised RuntimeError: no such module")


def test_near_equals_are_timed_in_many_rounds(watch):
    decision = tuned([FakeStrategy("batched", watch, 20e-6), FakeStrategy("flat", watch, 18e-6)], watch)
    assert decision.rounds >= 20
    assert decision.strategy == "flat"


def test_of_identical_candidates_the_reference_is_chosen_twenty_times_of_twenty(watch):
    chosen = [
        tuned(
            [
                FakeStrategy("batched", watch, 20e-6, noise=0.3),
                FakeStrategy(f"twin{i}", watch, 20e-6, noise=0.3),
            ],
            watch,
        ).strategy
        for i in range(20)
    ]
    assert chosen == ["batched"] * 20


def test_a_loop_over_a_hundred_thousand_matrices_is_screened_out_on_a_slice(watch):
    loop = FakeStrategy("loop", watch, 10e-6, each_matrix=True)
    decision = tuned(
        [FakeStrategy("batched", watch, 100e-9, each_matrix=True), loop],
        watch,
        problem=Problem("inv", ((100_000, 3, 3),), torch.float64, "cpu", 2),
    )
    assert decision.strategy == "batched"
    assert decision.rejected["loop"].startswith("screened out, 100 times the fastest on 64 of 100000")
    assert max(shape[0] for shape in loop.calls) <= 64


@pytest.mark.parametrize("budget_s", [0.0, 0.001, 0.02, 0.1, 1.0])
@pytest.mark.parametrize("shape", [(64, 3, 3), (100_000, 3, 3), (200, 120, 120)])
def test_the_budget_is_exceeded_by_at_most_the_two_calls_that_are_always_made(watch, budget_s, shape):
    strategies = [
        FakeStrategy("batched", watch, 3e-4, each_matrix=True),
        FakeStrategy("loop", watch, 4e-4, each_matrix=True),
        FakeStrategy("flat", watch, 1e-4),
    ]
    problem = Problem("inv", (shape,), torch.float64, "cpu", 1)
    began_s = watch.now_s
    if budget_s == 0.0:
        with pytest.raises(NothingTimedError, match="too short"):
            tuned(strategies, watch, budget_s, problem)
    else:
        assert tuned(strategies, watch, budget_s, problem).strategy in {"batched", "loop", "flat"}
    assert watch.now_s - began_s <= budget_s + 2 * max(watch.calls_s)


def test_first_calls_on_the_whole_problem_stop_with_the_budget(watch):
    strategies = [FakeStrategy(f"s{i}", watch, 3e-4 + i * 1e-6, each_matrix=True) for i in range(6)]
    began_s = watch.now_s
    decision = tuned(strategies, watch, 1.0, Problem("inv", ((1000, 3, 3),), torch.float64, "cpu", 1))
    assert watch.now_s - began_s <= 1.0 + max(watch.calls_s)
    assert max(watch.calls_s) >= 0.3  # some calls ran on the whole problem
    assert not decision.complete


def test_candidates_that_the_budget_left_untimed_have_a_reason_and_the_decision_is_incomplete(watch):
    strategies = [FakeStrategy(f"s{i}", watch, 4e-3) for i in range(12)]
    decision = tuned(strategies, watch, 0.02)
    assert not decision.complete
    assert set(decision.seconds) | set(decision.rejected) == {f"s{i}" for i in range(12)}
    assert "not timed, the budget ran out" in decision.rejected.values()


@pytest.mark.parametrize("costs", [(30e-6, 9e-6, 7e-6), (30e-6, 11e-6, 7e-6), (10e-6, 9.7e-6, 40e-6)])
def test_the_same_is_chosen_just_above_and_just_below_the_share_that_marks_a_decision(costs):
    chosen, marks = set(), []
    for share in (0.91, 0.89):
        watch = FakeStopwatch(cpu_share=share)
        names = ("batched", "native", "native_parallel")
        strategies = [
            FakeStrategy(name, watch, cost, multithreaded=name == "native_parallel", noise=0.05)
            for name, cost in zip(names, costs, strict=True)
        ]
        decision = tuned(strategies, watch)
        chosen.add(decision.strategy)
        marks.append(decision.contended)
    assert (len(chosen), marks) == (1, [False, True])


def test_a_small_cpu_share_marks_the_decision_contended():
    watch = FakeStopwatch(cpu_share=0.6)
    decision = tuned([FakeStrategy("batched", watch, 20e-6), FakeStrategy("native", watch, 3e-6)], watch)
    assert decision.contended
    assert decision.rounds > 3


def test_tuning_does_not_change_random_state_grad_mode_or_thread_count(watch, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: pytest.fail("torch.set_num_threads was called"))
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    tuned([FakeStrategy("batched", watch, 20e-6), FakeStrategy("native", watch, 3e-6)], watch)
    tune(INV, PROBLEM, [dense_stride(PROBLEM.shape, "contiguous")], 0.05)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == threads


def test_candidates_are_timed_on_operands_with_the_callers_strides(watch):
    class Strides(FakeStrategy):
        seen: set[tuple[int, ...]] = set()  # noqa: RUF012 (one test's own class)

        def bind(self, problem):
            run = super().bind(problem)
            return lambda A, out=None: (self.seen.add(A.stride()), run(A))[1]

    spy = Strides("batched", watch, 1e-5)
    problem = Problem("inv", ((5, 3, 3),), torch.float64, "cpu", 1, ("strided",))
    tune(fake_operation([spy], INV), problem, [(90, 6, 2)], 0.1, watch)
    assert (90, 6, 2) in spy.seen


def test_autocast_and_a_default_device_do_not_affect_the_candidates():
    with torch.autocast("cpu"), torch.device("meta"):
        decision = tune(INV, PROBLEM, [dense_stride(PROBLEM.shape, "contiguous")], 1.0)
    assert not {name for name, why in decision.rejected.items() if why.startswith(("raised", "residual"))}


def test_a_clock_that_steps_back_never_makes_a_tuning_raise(watch):
    class StepsBack(FakeStrategy):
        def bind(self, problem):
            run = super().bind(problem)

            def stepping(A, out=None):
                if len(self.calls) % 5 == 4:
                    watch.now_s -= 3.0
                return run(A)

            return stepping

    stepping = StepsBack("native", watch, 3e-6)
    assert tuned([FakeStrategy("batched", watch, 20e-6), stepping], watch).strategy in {"batched", "native"}
    assert len(stepping.calls) >= 5
    assert watch.now_s < 100.0


def test_calls_of_zero_time_never_make_a_tuning_raise(watch):
    strategies = [FakeStrategy("batched", watch, 0.0), FakeStrategy("native", watch, 0.0)]
    assert tuned(strategies, watch).strategy in {"batched", "native"}
