"""What runs for a problem: pin, remembered, neighbour, tuned, reference - in this order."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from fakes import FakeStopwatch, FakeStrategy, fake_operation

import autoinv
from autoinv import settings
from autoinv.errors import AutoinvWarning
from autoinv.ops.inv.operation import INV
from autoinv.planning import planner as planner_module
from autoinv.planning.planner import Planner
from autoinv.problem import Problem
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
    return Planner(fake_operation(strategies, INV))


def problem(*shape, threads=2, dtype=torch.float64, layout="contiguous"):
    return Problem("inv", (shape,), dtype, "cpu", threads, (layout,))


def planned(planner, watch, p):
    return planner.plan(p, [dense_stride(s, p.layout) for s in p.shapes], watch.wall_s())


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


def test_on_a_busy_machine_a_thousand_batch_sizes_still_cost_two_tunings_for_each_power_of_two(
    planner, watch
):
    watch.given_cpu_share = 0.5
    sources = [planned(planner, watch, problem(b, 3, 3)).source for b in range(1, 1001)]
    assert sources.count("tuned") == 19  # one for the batch of 1, two for every other power of two


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
    assert (plan.source, plan.strategy.name, plan.final) == ("reference", "batched", True)
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


def test_a_budget_of_zero_answers_by_the_reference(planner, watch):
    with settings.using(budget=0):
        plan = planned(planner, watch, problem(80, 3, 3))
    assert (plan.source, plan.strategy.name, spent(planner)) == ("reference", "batched", 0)


def test_while_one_thread_tunes_another_is_answered_by_the_reference_and_asks_again(planner, watch):
    held, release = threading.Event(), threading.Event()

    def hold():
        with planner_module._one_tuning:
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        plan = planned(planner, watch, problem(80, 3, 3))
    finally:
        release.set()
        thread.join()
    assert (plan.source, plan.final) == ("reference", False)
    assert planned(planner, watch, problem(80, 3, 3)).source == "tuned"


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
    assert planner.known(problem(80, 3, 3)).source == "reference"
    assert spent(planner) == 0
    planned(planner, watch, problem(80, 3, 3))
    before = spent(planner)
    assert planner.known(problem(80, 3, 3)).source == "tuned"
    assert planner.known(problem(90, 3, 3)).source == "neighbour"
    assert spent(planner) == before


def test_warming_waits_for_another_threads_tuning_within_its_budget(planner, watch):
    planner_module._one_tuning.acquire()
    threading.Timer(0.2, planner_module._one_tuning.release).start()
    p = problem(80, 3, 3)
    plan = planner.warm(p, [dense_stride(s, p.layout) for s in p.shapes], watch.wall_s(), budget_s=10.0)
    assert plan.decision.strategy == "native"
