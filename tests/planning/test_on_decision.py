"""Callbacks on decisions: what is reported and when, and that a callback cannot break a call."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from dataclasses import replace

import pytest
import torch
from terminal import cpu_file, quick  # noqa: F401 - quick is a fixture

import autoinv
from autoinv import settings
from autoinv.ops.inv import CALL
from autoinv.ops.table import OPERATIONS
from autoinv.planning.events import DecisionEvent, on_decision, wanted
from autoinv.tuning import tuner

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def events():
    """Every event of the test, in order."""
    found: list[DecisionEvent] = []
    unsubscribe = on_decision(found.append)
    yield found
    unsubscribe()


def forget_memos() -> None:
    for dispatcher in [call.dispatcher for call in OPERATIONS.values()]:
        dispatcher.forget()


def batch(count: int = 5) -> torch.Tensor:
    return torch.eye(3).repeat(count, 1, 1)


def test_a_tuned_decision_is_reported_with_its_evidence(events):
    autoinv.inv(batch())
    (event,) = events
    decision = cpu_file().get(event.problem)
    assert event.problem.key == f"inv/5x3x3/float32/cpu/threads={torch.get_num_threads()}/contiguous"
    assert (event.tuned, event.source) == (True, "tuned")
    assert (event.strategy, event.seconds) == (decision.strategy, decision.seconds)
    assert (event.complete, event.contended) == (True, False)
    assert event.spent_s > 0


def test_a_memo_hit_reports_nothing(events):
    for _ in range(3):
        autoinv.inv(batch())
    assert len(events) == 1


def test_a_remembered_decision_is_a_hit(events):
    autoinv.inv(batch())
    forget_memos()
    autoinv.inv(batch())
    assert [event.tuned for event in events] == [True, False]
    assert events[0].seconds == events[1].seconds


def test_a_neighbour_a_pin_and_the_default_are_hits_with_their_source(events):
    autoinv.inv(batch(5))
    autoinv.inv(batch(6))
    autoinv.pin((7, 3, 3), "loop")
    autoinv.inv(batch(7))
    with autoinv.using(mode="cached"):
        autoinv.inv(torch.eye(4).repeat(5, 1, 1))
    reported = [(event.source, event.tuned) for event in events]
    assert reported == [("tuned", True), ("neighbour", False), ("pin", False), ("default", False)]
    assert (events[2].strategy, events[2].seconds) == ("loop", {})


def test_warm_reports_tuned_and_known_decisions(events):
    autoinv.warm("5x3x3")
    autoinv.warm("5x3x3")
    assert [event.tuned for event in events] == [True, False]


def test_a_decision_that_serves_until_it_is_tuned_again_is_reported_once(events):
    autoinv.inv(batch())
    file, problem = cpu_file(), events[0].problem
    old = file.get(problem)
    autoinv.forget()
    file.put(replace(old, contended=True), 5.0)
    for _ in range(4):
        autoinv.inv(batch())
    assert [event.tuned for event in events] == [True, False, True]


def test_a_default_is_reported_once_and_then_what_was_tuned(events, monkeypatch):
    with monkeypatch.context() as vain:
        vain.setattr(tuner, "tune", no_memory)
        for _ in range(4):
            autoinv.inv(batch())
        assert len(CALL.dispatcher.memo) == 1
        untimed = next(iter(CALL.dispatcher.planner._untimed.values()))
        CALL.dispatcher.memo.clear()  # as if another try were due
        autoinv.inv(batch())
    assert [(event.source, event.tuned) for event in events] == [("default", False)]
    untimed.calls_s = 1e3
    autoinv.inv(batch())
    autoinv.inv(batch())
    assert [(event.source, event.tuned) for event in events] == [("default", False), ("tuned", True)]


def no_memory(*args, **kwargs):
    raise tuner.NothingTimedError("memory ran out while tuning")


def test_a_callback_may_call_the_very_same_problem():
    calls = []

    def callback(event):
        calls.append(event)
        assert len(calls) < 5
        autoinv.inv(batch())

    unsubscribe = on_decision(callback)
    autoinv.inv(batch())
    unsubscribe()
    assert len(calls) == 1


def test_nothing_is_reported_after_unsubscribing(events):
    mine: list[DecisionEvent] = []
    unsubscribe = on_decision(mine.append)
    again = on_decision(mine.append)
    autoinv.inv(batch())
    assert len(mine) == 2
    unsubscribe()
    unsubscribe()
    autoinv.inv(batch(50))
    assert len(mine) == 3
    again()
    autoinv.inv(batch(500))
    assert (len(mine), len(events)) == (3, 3)


def test_an_exception_of_a_callback_is_logged_and_the_others_are_called(events, caplog):
    def broken(event: DecisionEvent) -> None:
        raise ZeroDivisionError("mine")

    unsubscribe = on_decision(broken)
    late: list[DecisionEvent] = []
    end = on_decision(late.append)
    with caplog.at_level(logging.ERROR, logger="autoinv"):
        X = autoinv.inv(batch())
    unsubscribe()
    end()
    assert torch.equal(X, batch())
    assert (len(events), len(late)) == (1, 1)
    (record,) = caplog.records
    assert (record.name, record.exc_info[0]) == ("autoinv", ZeroDivisionError)


def test_a_callback_may_use_autoinv_and_unsubscribe_itself():
    seen: list[int] = []

    def nested(event: DecisionEvent) -> None:
        seen.append(event.problem.batch)
        end()
        autoinv.inv(batch(99))

    end = on_decision(nested)
    autoinv.inv(batch())
    assert seen == [5]


def test_a_callback_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="on_decision takes a function of one event, not 3"):
        on_decision(3)


def test_a_program_without_listeners_makes_no_events(monkeypatch):
    monkeypatch.setattr(
        "autoinv.planning.events._event", lambda *a: pytest.fail("an event without a callback")
    )
    assert not wanted()
    autoinv.inv(batch())


def test_threads_may_subscribe_and_unsubscribe_while_decisions_are_reported():
    end = threading.Event()

    def subscribe_and_unsubscribe() -> None:
        while not end.is_set():
            on_decision(lambda event: None)()

    threads = [threading.Thread(target=subscribe_and_unsubscribe) for _ in range(2)]
    for thread in threads:
        thread.start()
    with autoinv.using(mode="off"):  # decides and reports without timing
        for count in range(2, 40):
            autoinv.inv(batch(count))
    end.set()
    for thread in threads:
        thread.join()
    assert not wanted()


def test_an_unsubscribed_callback_is_released():
    class Holder:
        def __call__(self, event: DecisionEvent) -> None: ...

    holder = Holder()
    before = sys.getrefcount(holder)
    on_decision(holder)()
    gc.collect()
    assert sys.getrefcount(holder) == before


def test_the_mode_off_reports_the_reference(events):
    with autoinv.using(mode="off"):
        autoinv.inv(batch())
    assert [(event.source, event.strategy) for event in events] == [("reference", "batched")]
    assert settings.current().mode == "tune"
