"""Lines whose loss no other test noticed: each test here was seen to fail without the line it is about."""

from __future__ import annotations

import time
from collections import Counter

import torch
from fakes import FakeStopwatch

import autoinv
from autoinv.ops.inv import CALL
from autoinv.planning.dispatch import key_of
from autoinv.tuning.timing import CLEAR_ROUNDS, CpuShare, Stopwatch, race


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def raced(costs_s, most_rounds):
    """Race calls of these costs; return the race, and the names in the order of their calls."""
    watch, order = FakeStopwatch(), []

    def call(name):
        order.append(name)
        watch.advance(costs_s[name])

    calls = {name: lambda name=name: call(name) for name in costs_s}
    return race(
        calls, costs_s, CpuShare(watch, set(calls)), deadline_s=watch.now_s + 10.0, most_rounds=most_rounds
    ), order


def test_a_candidate_that_is_too_slow_is_timed_no_further_while_near_equals_go_on():
    result, _ = raced({"batched": 1.1e-3, "flat": 1e-3, "loop": 5e-3}, most_rounds=12)
    assert {name: len(times) for name, times in result.rounds.items()} == {
        "batched": 12,
        "flat": 12,
        "loop": CLEAR_ROUNDS,
    }


def test_candidates_take_turns_to_be_first_in_a_round():
    _, order = raced({"batched": 1.1e-3, "flat": 1e-3, "vmap": 1.2e-3}, most_rounds=6)
    assert Counter(order[::3]) == {"batched": 2, "flat": 2, "vmap": 2}


def test_the_real_clocks_distinguish_a_waiting_thread_from_a_computing_one():
    watch = Stopwatch()
    cpu_shares = {}
    for name, used_s in (("waited", 0.0), ("computed", 0.05)):
        began_s, began_thread_s = watch.wall_s(), watch.thread_s()
        if name == "waited":
            time.sleep(0.1)
        while watch.thread_s() - began_thread_s < used_s:
            pass
        cpu_shares[name] = watch.cpu_share(watch.wall_s() - began_s, watch.thread_s() - began_thread_s)
    assert 0.0 <= cpu_shares["waited"] < 0.3
    assert cpu_shares["waited"] < cpu_shares["computed"] <= 1.1


def test_a_plan_begun_before_a_forget_answers_and_is_not_remembered(monkeypatch):
    A, plan = randn(5, 3, 3), CALL.dispatcher.planner.plan

    def plan_while_settings_change(*args):
        made = plan(*args)
        CALL.dispatcher.forget()
        return made

    with autoinv.using(strategy="batched"):
        monkeypatch.setattr(CALL.dispatcher.planner, "plan", plan_while_settings_change)
        torch.testing.assert_close(autoinv.inv(A), torch.linalg.inv(A))
        assert key_of(A) not in CALL.dispatcher.memo
        monkeypatch.undo()
        torch.testing.assert_close(autoinv.inv(A), torch.linalg.inv(A))
        assert key_of(A) in CALL.dispatcher.memo


def test_a_problem_is_planned_with_the_strides_of_the_callers_own_tensor(monkeypatch):
    seen, plan = [], CALL.dispatcher.planner.plan
    monkeypatch.setattr(
        CALL.dispatcher.planner,
        "plan",
        lambda p, strides: (seen.append(strides), plan(p, strides))[1],
    )
    A = randn(4, 7, 7)[:, 2:5, 1:4]
    torch.testing.assert_close(autoinv.inv(A), torch.linalg.inv(A))
    assert seen[0] == [(49, 7, 1)]
