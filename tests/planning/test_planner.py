"""What runs for a problem: pin, remembered, neighbour, tuned, default - in this order."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import contextmanager

import pytest
import torch
from fakes import FakeStopwatch, FakeStrategy, fake_operation

import autoinv
from autoinv import settings
from autoinv.errors import AutoinvWarning
from autoinv.ops.inv.operation import INV
from autoinv.planning import planner as planner_module
from autoinv.planning import untimed
from autoinv.planning.planner import Planner
from autoinv.problem import Problem
from autoinv.store.decisions import DecisionsFile
from autoinv.tuning import tuner
from autoinv.tuning.operands import dense_stride


@pytest.fixture
def watch(monkeypatch):
    made = FakeStopwatch()
    monkeypatch.setattr("autoinv.tuning.tuner.stopwatch_for", lambda device: made)
    return made


@pytest.fixture
def planner(watch):
    """A planner whose native strategy is much the fastest, and whose calls are counted."""
    strategies = [FakeStrategy("batched", watch, 20e-6), FakeStrategy("native", watch, 3e-6)]
    return Planner(fake_operation(strategies, INV, defaults=("native",)))


def problem(*shape, threads=2, dtype=torch.float64, layout="contiguous"):
    return Problem("inv", (shape,), dtype, "cpu", threads, (layout,))


def planned(planner, watch, p):
    return planner.plan(p, [dense_stride(s, p.layout) for s in p.shapes])


def spent(planner):
    return sum(len(s.calls) for s in planner.operation.table)


def another_process(planner):
    """A planner that knows only what is in the file."""
    return Planner(planner.operation)


def test_an_unseen_problem_is_tuned_and_then_remembered(planner, watch):
    assert planned(planner, watch, problem(10, 8, 3, 3)).source == "tuned"
    before = spent(planner)
    again = planned(another_process(planner), watch, problem(10, 8, 3, 3))
    assert (again.source, again.strategy.name) == ("file", "native")
    assert spent(planner) == before


def test_another_thread_count_is_another_problem(planner, watch):
    planned(planner, watch, problem(10, 8, 3, 3, threads=2))
    assert planned(planner, watch, problem(10, 8, 3, 3, threads=1)).source == "tuned"


def test_a_pin_beats_what_was_tuned(planner, watch):
    planned(planner, watch, problem(80, 3, 3))
    autoinv.pin((80, 3, 3), "batched", dtype=torch.float64)
    plan = planned(planner, watch, problem(80, 3, 3))
    assert (plan.source, plan.strategy.name) == ("pin", "batched")
    assert autoinv.unpin((80, 3, 3), dtype=torch.float64)
    assert planned(planner, watch, problem(80, 3, 3)).source != "pin"


def test_the_strategy_setting_pins_wherever_the_strategy_supports_the_problem(planner, watch):
    planner.operation.strategy("native")._supported = False
    with settings.using(strategy="native"):
        assert planned(planner, watch, problem(80, 3, 3)).strategy.name == "batched"
    planner.operation.strategy("native")._supported = True
    with settings.using(strategy="native"):
        assert planned(planner, watch, problem(81, 3, 3)).source == "pin"


def test_a_remembered_strategy_that_no_longer_exists_is_not_used(planner, watch):
    plan = planned(planner, watch, problem(80, 3, 3))
    file = planner.file(plan.decision.problem)
    file.put(dataclasses.replace(plan.decision, strategy="long_gone", tunings=2), 1.0)
    assert planned(another_process(planner), watch, problem(80, 3, 3)).strategy.name == "native"
    assert file.get(problem(80, 3, 3)).strategy == "native"


def test_a_neighbour_serves_and_is_not_stored(planner, watch):
    planned(planner, watch, problem(100, 3, 3))
    plan = planned(planner, watch, problem(127, 3, 3))
    assert (plan.source, plan.strategy.name) == ("neighbour", "native")
    assert planner.file(problem(127, 3, 3)).get(problem(127, 3, 3)) is None


@pytest.mark.parametrize(
    "other",
    [
        problem(128, 3, 3),
        problem(100, 4, 4),
        problem(100, 3, 3, threads=1),
        problem(100, 3, 3, dtype=torch.float32),
        problem(100, 3, 3, layout="transposed"),
    ],
    ids=lambda p: p.key,
)
def test_a_problem_that_differs_in_more_than_its_batch_is_no_neighbour(planner, watch, other):
    planned(planner, watch, problem(100, 3, 3))
    assert planned(planner, watch, other).source == "tuned"


def test_a_thousand_batch_sizes_cost_about_two_tunings_for_each_power_of_two(planner, watch):
    sources = [planned(planner, watch, problem(b, 3, 3)).source for b in range(1, 1001)]
    assert sources.count("tuned") == 10


@pytest.mark.parametrize(("multithreaded", "tunings"), [(False, 10), (True, 19)])
def test_on_a_busy_machine_a_thousand_batch_sizes_cost_at_most_two_tunings_for_each_power_of_two(
    planner, watch, multithreaded, tunings
):
    watch.given_cpu_share = 0.5
    planner.operation.strategy("native")._multithreaded = multithreaded
    sources = [planned(planner, watch, problem(b, 3, 3)).source for b in range(1, 1001)]
    assert sources.count("tuned") == tunings  # of the batch of 1 there is but one


def test_a_contended_decision_serves_at_once_and_is_tuned_again_once_in_a_later_process(planner, watch):
    watch.given_cpu_share = 0.5
    assert planned(planner, watch, problem(80, 3, 3)).decision.contended
    watch.given_cpu_share = 1.0
    later = another_process(planner)
    first, second, third = (planned(later, watch, problem(80, 3, 3)) for _ in range(3))
    assert [(p.source, p.final) for p in (first, second, third)] == [
        ("file", False),
        ("tuned", True),
        ("tuned", True),
    ]
    assert (second.decision.contended, second.decision.tunings) == (False, 2)
    assert planned(another_process(planner), watch, problem(80, 3, 3)).final


def test_a_machine_that_is_always_busy_is_tuned_three_times_in_all(planner, watch):
    watch.given_cpu_share = 0.5
    for _ in range(6):
        process = another_process(planner)
        for _ in range(3):
            planned(process, watch, problem(80, 3, 3))
    assert planner.file(problem(80, 3, 3)).get(problem(80, 3, 3)).tunings == 3


def test_cached_mode_never_times(planner, watch):
    with settings.using(mode="cached"):
        plan = planned(planner, watch, problem(80, 3, 3))
    assert (plan.source, plan.strategy.name, plan.final) == ("default", "native", True)
    assert spent(planner) == 0


def test_cached_mode_uses_what_is_remembered_even_when_it_was_contended(planner, watch):
    watch.given_cpu_share = 0.5
    planned(planner, watch, problem(80, 3, 3))
    before = spent(planner)
    with settings.using(mode="cached"):
        plan = planned(another_process(planner), watch, problem(80, 3, 3))
    assert (plan.source, plan.final, spent(planner)) == ("file", True, before)


def test_off_is_always_the_reference_whatever_is_pinned_or_remembered(planner, watch):
    planned(planner, watch, problem(80, 3, 3))
    autoinv.pin((80, 3, 3), "native", dtype=torch.float64)
    with settings.using(mode="off"):
        assert planned(planner, watch, problem(80, 3, 3)).source == "reference"


def test_a_budget_of_zero_is_answered_by_the_default(planner, watch):
    with settings.using(budget=0):
        plan = planned(planner, watch, problem(80, 3, 3))
    assert (plan.source, plan.strategy.name, spent(planner)) == ("default", "native", 0)
    assert "a budget of 0" in plan.why


def test_the_default_is_the_reference_where_the_kernel_does_not_support_the_problem(planner, watch):
    planner.operation.strategy("native")._supported = False
    with settings.using(budget=0):
        assert planned(planner, watch, problem(80, 3, 3)).strategy.name == "batched"


@contextmanager
def another_thread_tuning():
    held, release = threading.Event(), threading.Event()

    def hold():
        held.set()
        release.wait(10)

    thread = threading.Thread(target=planner_module._tuning.run, args=(hold,))
    thread.start()
    held.wait(10)
    try:
        yield release
    finally:
        release.set()
        thread.join()


def test_while_one_thread_tunes_another_is_answered_by_the_default_and_tries_again_later(planner, watch):
    p = problem(80, 3, 3)
    with another_thread_tuning():
        plan = planned(planner, watch, p)
    assert (plan.source, plan.strategy.name, plan.final) == ("default", "native", False)
    assert "another thread is tuning" in planner.known(p).why
    assert planned(planner, watch, p).source == "default"  # its calls have taken no time yet
    plan.untimed.calls_s = 0.999 * untimed.LEAST_TRY_S / untimed.PART_OF_CALLS
    assert planned(planner, watch, p).source == "default"
    plan.untimed.calls_s = plan.untimed.due_s(settings.current().budget)
    assert planned(planner, watch, p).source == "tuned"


def test_a_tuning_that_timed_nothing_is_tried_again_within_a_hundredth_of_the_calls_time(
    planner, watch, monkeypatch
):
    tries_s = []

    def vain(operation, problem, strides, budget_s, stopwatch, again=None):
        tries_s.append(budget_s)
        stopwatch.advance(1.1 * budget_s)
        raise tuner.NothingTimedError("memory ran out while tuning")

    p = problem(80, 3, 3)
    with monkeypatch.context() as no_memory:
        no_memory.setattr(tuner, "tune", vain)
        plan = planned(planner, watch, p)
        assert (plan.source, plan.final) == ("default", False)
        assert "memory ran out" in plan.why
        first = plan.untimed.tries_s
        for _ in range(5000):
            plan.untimed.calls_s += 0.1
            planned(planner, watch, p)
    assert 3 <= len(tries_s) <= 40
    assert plan.untimed.tries_s <= first + 0.011 * plan.untimed.calls_s
    plan.untimed.calls_s *= 3
    assert planned(planner, watch, p).source == "tuned"


def test_an_interrupt_while_tuning_releases_the_lock(planner, watch):
    native = planner.operation.strategy("native")
    native._raises = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        planned(planner, watch, problem(80, 3, 3))
    native._raises = None
    assert planned(planner, watch, problem(80, 3, 3)).source == "tuned"


def test_a_pin_of_an_unknown_strategy_is_ignored_with_a_warning(planner, watch, private_cache_dir):
    autoinv.pin((80, 3, 3), "loop", dtype=torch.float64)
    with pytest.warns(AutoinvWarning, match="'loop', which is no strategy"):
        assert planned(planner, watch, problem(80, 3, 3)).source == "tuned"


def test_explaining_times_nothing_and_changes_nothing(planner, watch):
    assert planner.known(problem(80, 3, 3)).source == "default"
    assert spent(planner) == 0
    planned(planner, watch, problem(80, 3, 3))
    before = spent(planner)
    assert planner.known(problem(80, 3, 3)).source == "tuned"
    assert planner.known(problem(90, 3, 3)).source == "neighbour"
    assert spent(planner) == before


def test_warming_waits_for_another_threads_tuning_within_its_budget(planner, watch):
    p = problem(80, 3, 3)
    strides = [dense_stride(s, p.layout) for s in p.shapes]
    with another_thread_tuning() as release:
        plan = planner.warm(p, strides, budget_s=0.01)
        assert (plan.decision, plan.why) == (None, "another thread is tuning")
        threading.Timer(0.2, release.set).start()
        assert planner.warm(p, strides, budget_s=10.0).decision.strategy == "native"


def test_a_contended_decision_that_cannot_be_saved_is_not_tuned_again(planner, watch, monkeypatch):
    watch.given_cpu_share = 0.5
    planned(planner, watch, problem(80, 3, 3))
    monkeypatch.setattr(DecisionsFile, "can_be_saved", lambda self: False)
    later = another_process(planner)
    for _ in range(3):
        plan = planned(later, watch, problem(80, 3, 3))
        assert (plan.source, plan.final) == ("file", True)


def test_a_contended_decision_for_a_single_threaded_strategy_serves_its_neighbours(planner, watch):
    watch.given_cpu_share = 0.5
    planned(planner, watch, problem(80, 3, 3))
    assert planned(planner, watch, problem(81, 3, 3)).source == "neighbour"
    planner.operation.strategy("native")._multithreaded = True
    assert planned(another_process(planner), watch, problem(82, 3, 3)).source == "tuned"


def test_a_shape_that_was_forgotten_is_tuned_although_it_has_a_neighbour(planner, watch):
    planned(planner, watch, problem(100, 3, 3))
    p = problem(101, 3, 3)
    assert planned(planner, watch, p).source == "neighbour"
    planner.forget(lambda q: q.shapes == p.shapes, p.shapes)
    assert planned(planner, watch, p).source == "tuned"
    assert planned(planner, watch, problem(102, 3, 3)).source == "neighbour"


def test_a_strategy_that_raised_in_a_call_is_written_into_the_decision(planner, watch):
    p = problem(80, 3, 3)
    planned(planner, watch, p)
    planner.failed(p, planner.operation.strategy("native"), "raised RuntimeError: no such kernel")
    plan = planned(another_process(planner), watch, p)
    assert (plan.strategy.name, plan.source) == ("batched", "file")
    assert plan.decision.rejected["native"] == "raised RuntimeError: no such kernel"
    assert "native" not in plan.decision.seconds
