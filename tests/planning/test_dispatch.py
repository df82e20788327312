"""The memo and what a miss does, on real strategies."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch

import autoinv
from autoinv.errors import AutoinvWarning
from autoinv.ops.inv import CALL
from autoinv.ops.inv.operation import INV
from autoinv.planning import dispatch
from autoinv.strategy import Strategy
from autoinv.tuning import tuner


def randn(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def same(X, A):
    torch.testing.assert_close(X, torch.linalg.inv(A))
    assert X.is_contiguous()


def remember(key):
    CALL.dispatcher.remember(key, torch.linalg.inv, CALL.dispatcher.generation)


def test_the_second_call_of_a_shape_plans_nothing(monkeypatch):
    A = randn(7, 3, 3)
    autoinv.inv(A)
    while (
        CALL.dispatcher.memo.get(dispatch.key_of(A)) is None
    ):  # a busy machine: served once, then tuned again
        autoinv.inv(A)
    monkeypatch.setattr(CALL.dispatcher.planner, "plan", lambda *a: pytest.fail("planned again"))
    same(autoinv.inv(A), A)


def test_the_memo_is_bounded(monkeypatch):
    monkeypatch.setattr(dispatch, "MEMO_MOST", 50)
    with autoinv.using(mode="cached"):
        for b in range(1, 201):
            autoinv.inv(torch.eye(1).expand(b, 1, 1).contiguous())
        assert len(CALL.dispatcher.memo) == 50


def test_cycling_through_slightly_more_shapes_than_the_memo_holds_mostly_hits(monkeypatch):
    monkeypatch.setattr(dispatch, "MEMO_MOST", 200)
    misses = 0
    for turn in range(10):
        for b in range(240):
            if (b, "out") not in CALL.dispatcher.memo:
                misses += turn > 2
                remember((b, "out"))
            assert len(CALL.dispatcher.memo) <= 200
    assert misses < 7 * 240 / 2


def test_a_full_memo_leaves_the_random_numbers_of_the_program_alone(monkeypatch):
    monkeypatch.setattr(dispatch, "MEMO_MOST", 5)
    random.seed(3)
    expected = random.random()
    random.seed(3)
    for b in range(20):
        remember((b,))
    assert expected == random.random()


def test_entries_beyond_the_memos_bound_are_removed_with_the_next_entry(monkeypatch):
    monkeypatch.setattr(dispatch, "MEMO_MOST", 50)
    CALL.dispatcher.memo.update({(b, "out"): torch.linalg.inv for b in range(90)})
    remember((90,))
    assert len(CALL.dispatcher.memo) == 50
    assert (90,) in CALL.dispatcher.memo


def test_threads_that_fill_the_memo_at_once_keep_it_bounded(monkeypatch):
    monkeypatch.setattr(dispatch, "MEMO_MOST", 50)
    failures = []

    def fill(mine):
        try:
            for b in range(2000):
                remember((mine, b))
                if b % 100 == 0:
                    CALL.dispatcher.forget()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=fill, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    remember((0,))
    assert len(CALL.dispatcher.memo) <= 50


def test_each_layout_and_each_kind_of_stride_is_answered_correctly():
    A = randn(6, 8, 3, 3)
    for view in (A, A.mT, A[1:, ::2], A.transpose(0, 1), A[2], A[2, 3], randn(4, 7, 7)[:, 2:5, 1:4]):
        for _ in range(3):
            same(autoinv.inv(view), view)


def test_an_expanded_batch_is_inverted_once_and_filled(monkeypatch):
    seen = []
    original = INV.strategy("batched").bind

    def spy(self, problem):
        seen.append(problem.batch)
        return original(problem)

    A = randn(3, 3).expand(10_000, 3, 3)
    with autoinv.using(strategy="batched"):
        monkeypatch.setattr(type(INV.strategy("batched")), "bind", spy)
        same(autoinv.inv(A), A)
    assert seen == [1]


def test_an_expanded_batch_names_the_flat_index_of_the_whole_batch():
    A = randn(4, 3, 3)
    A[2] = 0
    with pytest.raises(torch.linalg.LinAlgError) as ours:
        autoinv.inv(A[:, None].expand(4, 5, 3, 3))
    with pytest.raises(torch.linalg.LinAlgError) as theirs:
        torch.linalg.inv(A[:, None].expand(4, 5, 3, 3))
    assert str(ours.value) == str(theirs.value)
    assert "Batch element 10" in str(ours.value)


@pytest.mark.parametrize("shape", [(0, 3, 3), (4, 0, 0), (0, 0), (2, 0, 5, 5)])
def test_empty_batches_and_empty_matrices_come_back_empty(shape):
    assert autoinv.inv(torch.zeros(shape)).shape == shape
    assert not any(d for d in CALL.dispatcher.memo)


class Raising(Strategy):
    """Raises whenever it is used, and counts that."""

    name = "raising"

    def __init__(self):
        self.raised = 0

    def supports(self, problem):
        return True

    def bind(self, problem):
        def run(A, out=None):
            self.raised += 1
            raise RuntimeError("no such kernel")

        return run


def test_a_strategy_that_raises_at_use_is_demoted_once_with_a_warning(monkeypatch):
    A, raising = randn(5, 3, 3), Raising()
    monkeypatch.setattr(CALL.dispatcher.operation.__class__, "strategy", lambda self, name: raising)
    with (
        autoinv.using(strategy="loop"),
        pytest.warns(AutoinvWarning, match="no such kernel") as warned,
    ):
        for _ in range(3):
            same(autoinv.inv(A), A)
    assert (raising.raised, len(warned)) == (1, 1)


def test_a_strategy_that_raised_is_out_in_every_later_process_too(monkeypatch, private_cache_dir):
    code = """
import dataclasses, sys, warnings, torch, autoinv
from autoinv.ops.inv.operation import INV
A = torch.randn(5, 3, 3, dtype=torch.float64)
native = type(INV.strategy("native"))
if sys.argv[1:] == ["broken"]:
    autoinv.warm((5, 3, 3), dtype="float64", budget=1.0)
    (file,) = autoinv.api.files()
    (decision,) = file.all()
    file.put(dataclasses.replace(decision, complete=True, contended=False, tunings=3), 5.0)
    def broken(A, out=None):
        raise RuntimeError("no such kernel")
    native.bind = lambda self, problem: broken
    INV.strategy(decision.strategy).__class__.bind = native.bind
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        assert torch.allclose(autoinv.inv(A), torch.linalg.inv(A))
e = autoinv.explain(A)
print(len(caught), e.strategy, "no such kernel" in str(e))
"""
    first = run_python(code, "broken").split()
    assert first == ["1", "batched", "True"]
    assert run_python(code).split() == ["0", "batched", "True"]


def test_each_strategy_that_raises_is_reported():
    with (
        autoinv.using(strategy="loop"),
        pytest.MonkeyPatch.context() as patch,
        pytest.warns(AutoinvWarning) as warned,
    ):
        for name in ("raising", "also_raising"):
            raising = Raising()
            raising.name = name
            patch.setattr(CALL.dispatcher.operation.__class__, "strategy", lambda self, _, r=raising: r)
            autoinv.settings.configure()
            autoinv.inv(randn(5, 3, 3))
    assert [str(w.message).split()[1] for w in warned] == ["raising", "also_raising"]


def test_a_tensor_without_memory_of_its_own_demotes_no_strategy():
    A = randn(5, 3, 3)
    with autoinv.using(strategy="native"), warnings.catch_warnings():
        warnings.simplefilter("error")
        same(autoinv.inv(A), A)
        with pytest.raises(torch.linalg.LinAlgError):
            autoinv.inv(torch._efficientzerotensor(5, 3, 3, dtype=torch.float64))
        assert autoinv.explain(A).strategy == "native"


def test_what_the_default_answered_is_tuned_once_its_calls_took_long_enough(monkeypatch):
    def no_memory(*args, **kwargs):
        raise tuner.NothingTimedError("memory ran out while tuning")

    A, tune = randn(5, 3, 3), tuner.tune
    monkeypatch.setattr(tuner, "tune", no_memory)
    same(autoinv.inv(A), A)
    monkeypatch.setattr(tuner, "tune", tune)
    assert autoinv.explain(A).source == "default"
    assert "memory ran out" in autoinv.explain(A).why
    (untimed,) = CALL.dispatcher.planner._untimed.values()
    for _ in range(20):
        same(autoinv.inv(A), A)
    assert 0 < untimed.calls_s < 0.1
    assert autoinv.explain(A).source == "default"
    untimed.calls_s += 100.0  # seconds
    for _ in range(2):
        same(autoinv.inv(A), A)
    assert autoinv.explain(A).source == "tuned"


def test_a_plan_made_while_a_pin_is_set_is_not_remembered():
    A = randn(5, 3, 3)
    for operation in (autoinv.inv, lambda A: autoinv.inv(A, out=torch.empty_like(A))):
        autoinv.forget()
        remember, pinned = CALL.dispatcher.remember, []

        def late(key, run, generation, remember=remember, pinned=pinned):
            if not pinned:
                pinned.append(key)
                autoinv.pin((5, 3, 3), "loop", dtype="float64")
            remember(key, run, generation)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CALL.dispatcher, "remember", late)
            operation(A)
        assert pinned
        assert not CALL.dispatcher.memo
        operation(A)
        assert autoinv.explain(A).strategy == "loop"
        autoinv.unpin((5, 3, 3), dtype="float64")


def test_a_failure_while_planning_gives_the_right_answer_and_one_warning(monkeypatch):
    monkeypatch.setattr(CALL.dispatcher.planner, "plan", lambda *a: 1 / 0)
    A = randn(5, 3, 3)
    with pytest.warns(AutoinvWarning, match="ZeroDivisionError") as warned:
        for _ in range(3):
            same(autoinv.inv(A), A)
    assert len(warned) == 1


def test_sixteen_threads_on_one_cold_problem_make_one_tuning(monkeypatch):
    from autoinv.tuning import tuner

    tunings, tune = [], tuner.tune

    def slow_tune(*args, **kwargs):
        tunings.append(threading.get_ident())
        time.sleep(0.05)
        return tune(*args, **kwargs)

    monkeypatch.setattr(tuner, "tune", slow_tune)
    A = randn(33, 3, 3)
    autoinv.explain(A)  # the imports of a first call done
    answers = []
    start = threading.Barrier(16)

    def call():
        start.wait()
        answers.append(autoinv.inv(A))

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tunings) == 1
    assert len(answers) == 16
    for X in answers:
        same(X, A)


def test_changing_the_number_of_threads_changes_the_key():
    code = """
import torch, autoinv.api
A = torch.randn(9, 3, 3)
autoinv.inv(A)
torch.set_num_threads(torch.get_num_threads() + 1)
autoinv.inv(A)
print(sorted(d.problem.threads for f in autoinv.api.files() for d in f.all()))
"""
    done = run_python(code, OMP_NUM_THREADS="1")
    assert done.strip() == "[1, 2]"


def test_a_batch_on_which_torchs_lu_is_broken_is_answered_correctly():
    code = """
import torch, autoinv
torch.set_num_threads(2)
A = torch.randn(2, 151, 151, dtype=torch.float64) + 20 * torch.eye(151, dtype=torch.float64)
X = autoinv.inv(A)
print((A @ X - torch.eye(151, dtype=torch.float64)).abs().max().item() < 1e-12, autoinv.explain(A).reference)
"""
    assert run_python(code, OMP_NUM_THREADS="2").split() == ["True", "loop"]


def test_a_second_process_times_nothing(private_cache_dir):
    code = """
import torch, autoinv
from autoinv.tuning import tuner
tunings = []
tune = tuner.tune
tuner.tune = lambda *a, **k: (tunings.append(1), tune(*a, **k))[1]
A = torch.randn(10, 8, 3, 3, dtype=torch.float64)
autoinv.inv(A)
e = autoinv.explain(A)
print(len(tunings), e.source, e.strategy)
"""
    first, second = (run_python(code).split() for _ in range(2))
    assert first[:2] == ["1", "tuned"]
    assert second == ["0", "file", first[2]]


def run_python(code, *arguments, **variables):
    env = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_answers_and_tunes_although_a_thread_of_the_parent_was_tuning():
    code = """
import os, threading, time, torch, autoinv
from autoinv.planning import planner
A = torch.randn(20, 3, 3)
autoinv.inv(A)
held = threading.Event()
def hold():
    held.set()
    time.sleep(20)
threading.Thread(target=planner._tuning.run, args=(hold,), daemon=True).start()
held.wait()
pid = os.fork()
if pid == 0:
    B = torch.randn(3000, 4, 4)
    X = autoinv.inv(B)
    good = torch.allclose(X, torch.linalg.inv(B), rtol=1e-2, atol=1e-2) and autoinv.explain(B).source == "tuned"
    os._exit(0 if good else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""
    assert run_python(code, OMP_NUM_THREADS="1").strip() == "0"


@pytest.mark.parametrize("strategy", INV.names())
def test_a_negated_view_is_inverted_by_its_values_not_its_memory(strategy):
    z = torch.randn(300, 3, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(5))
    with autoinv.using(strategy=strategy):
        for A in (z.conj().imag, torch._neg_view(randn(300, 3, 3)), torch._neg_view(randn(300, 3, 3).mT)):
            assert A.is_neg()
            for _ in range(2):
                same(autoinv.inv(A), A.resolve_neg())
                same(autoinv.inv(A, out=torch.zeros(300, 3, 3, dtype=A.dtype)), A.resolve_neg())


def test_out_handles_a_contiguous_negated_view():
    z = torch.randn(18, dtype=torch.complex128, generator=torch.Generator().manual_seed(5))
    A = z.conj().imag.as_strided((2, 3, 3), (9, 3, 1))
    out = torch.zeros(2, 3, 3, dtype=torch.float64)
    for _ in range(3):
        same(autoinv.inv(A, out=out), A.resolve_neg())
    B = torch._neg_view(torch.zeros(2, 3, 3, dtype=torch.float64))
    for _ in range(3):
        autoinv.inv(out, out=B)
        torch.testing.assert_close(B.resolve_neg(), torch.linalg.inv(out))


def test_an_error_of_torchs_own_is_raised_once_and_not_chained():
    with pytest.raises(RuntimeError, match="Got Long") as raised:
        autoinv.inv(torch.zeros(2, 3, 3, dtype=torch.int64))
    assert raised.value.__context__ is None


class FailsHalfWay(Strategy):
    """Overwrites its operand's first matrix, then fails."""

    name = "fails_half_way"

    def __init__(self, error):
        self.error = error

    def supports(self, problem):
        return True

    def bind(self, problem):
        def run(A, out=None):
            if out is not None:
                out[0] = 0
            raise self.error

        return run


def test_a_failure_half_way_in_place_is_raised_and_not_answered(monkeypatch):
    monkeypatch.setattr(
        CALL.dispatcher.operation.__class__,
        "strategy",
        lambda self, name: FailsHalfWay(MemoryError("half way")),
    )
    A = randn(4, 3, 3)
    with autoinv.using(strategy="loop"), pytest.raises(MemoryError, match="half way"):
        autoinv.inv(A, out=A)


def test_out_of_memory_is_answered_by_torch_and_the_strategy_stays_in_use(monkeypatch):
    A = randn(4, 3, 3)
    with monkeypatch.context() as failing, autoinv.using(strategy="loop"):
        failing.setattr(
            CALL.dispatcher.operation.__class__,
            "strategy",
            lambda self, name: FailsHalfWay(MemoryError("for now")),
        )
        same(autoinv.inv(A), A)
    with autoinv.using(strategy="loop"):
        same(autoinv.inv(A), A)
        assert autoinv.explain(A).strategy == "loop"
