"""What a signal handler raises reaches the program at once, wherever it strikes, and leaves all in working order."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from terminal import quick  # noqa: F401 - a fixture

import autoinv
from autoinv import fork, lazy
from autoinv.ops.inv import CALL
from autoinv.ops.inv.operation import INV

pytestmark = pytest.mark.usefixtures("quick")

PACKAGE = str(Path(autoinv.__file__).parent)


class DeadlineError(Exception):
    """As a program's own signal handler may raise it."""


class Tracer:
    """Notes which lines of the package are reached, and raises an ``error`` where the line ``at`` is."""

    def __init__(self, at=None, error=KeyboardInterrupt):
        self.at, self.error = at, error
        self.lines = {}
        self.has_raised = False

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            place = (frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno)
            self.lines[place] = True
            if place == self.at and not self.has_raised:
                self.has_raised = True
                raise self.error("as a signal handler does")
        return self

    def run(self, call):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        finally:
            sys.settrace(before)


def matrices(count):
    return torch.eye(3, dtype=torch.float64).repeat(count, 1, 1)


def first_call(count):
    """A call of a problem that is unknown to the process and to the file."""
    autoinv.forget()
    CALL.dispatcher.planner.forget()
    autoinv.inv(matrices(count))


@pytest.mark.parametrize("error", [DeadlineError, TimeoutError, KeyboardInterrupt])
def test_an_exception_at_any_line_of_a_first_call_reaches_the_program(error, monkeypatch):
    monkeypatch.setattr(INV, "table", tuple(s for s in INV.table if s.name in ("batched", "native")))
    first_call(5)
    tracer = Tracer()
    tracer.run(lambda: first_call(5))
    assert len(tracer.lines) > 300
    swallowed = []
    for turn, place in enumerate(tracer.lines):
        interrupting = Tracer(place, error)
        try:
            interrupting.run(lambda: first_call(5))
        except error:
            pass
        else:
            swallowed += [place] if interrupting.has_raised else []
        check_that_nothing_is_held(place)
        if turn % 20 == 0:
            check_that_tuning_works(place)
    assert not swallowed, "\n".join(map(str, swallowed))


def check_that_nothing_is_held(place):
    assert torch.is_grad_enabled(), place
    assert not torch.is_autocast_enabled("cpu"), place
    for lock in [lazy.importing, *fork._rlocks]:
        assert not lock._is_owned(), place


def check_that_tuning_works(place):
    first_call(6)
    assert autoinv.explain(matrices(6)).source == "tuned", place
    assert CALL.dispatcher.memo, place
    answers = []
    other = threading.Thread(target=lambda: answers.append(autoinv.inv(matrices(7))))
    other.start()
    other.join(20)
    assert answers, place
