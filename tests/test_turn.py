"""A turn: one thread at a time, whatever ends its work."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from autoinv import fork
from autoinv.fork import TakenError, Turn


def test_work_is_run_and_its_result_returned():
    turn = Turn()
    assert turn.run(lambda: 3) == 3


def test_work_that_asks_for_a_turn_itself_is_refused_and_the_outer_goes_on():
    turn = Turn()

    def work():
        with pytest.raises(TakenError):
            turn.run(lambda: 1)
        return 2

    assert turn.run(work) == 2
    assert turn.run(lambda: 3) == 3


def test_threads_take_turns_and_none_is_lost():
    turn = Turn()
    at_work, most, done = [], [], []

    def work():
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(1e-3)
        at_work.pop()

    def call():
        for _ in range(5):
            turn.run(work, wait_s=30.0)
            done.append(1)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (max(most), len(done)) == (1, 30)


def test_a_turn_left_behind_by_a_thread_that_is_not_at_work_is_taken_over():
    turn = Turn()
    turn._taken["by"] = threading.get_ident()
    assert turn.run(lambda: 1) == 1
    over = threading.Event()
    idle = threading.Thread(target=over.wait)
    idle.start()
    turn._taken["by"] = idle.ident
    assert turn.run(lambda: 2) == 2
    turn._taken["by"] = -1  # a thread that is gone
    assert turn.run(lambda: 3) == 3
    over.set()
    idle.join()


def test_an_exception_at_any_line_leaves_the_turn_free():
    turn = Turn()

    class Interruption(BaseException):
        pass

    for line in range(2000):
        seen = 0

        def trace(frame, event, argument):
            nonlocal seen
            if frame.f_code.co_filename != fork.__file__:
                return None
            if event == "line":
                seen += 1
                if seen == line + 1:  # noqa: B023
                    raise Interruption
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            turn.run(lambda: 1)
        except Interruption:
            pass
        else:
            break
        finally:
            sys.settrace(before)
        assert turn.run(lambda: 2) == 2
    assert 5 < line < 1999
