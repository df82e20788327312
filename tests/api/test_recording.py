"""`record`: which calls count, in which threads and states, and what is written when."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

import autoinv
from autoinv.api import recording
from autoinv.api.recording import Recorder
from autoinv.ops.table import OPERATIONS
from autoinv.store import recorded

CALL = OPERATIONS["inv"]


def matrices(*batch, n=3, dtype=torch.float64):
    return torch.randn(*batch, n, n, dtype=dtype) + 3 * torch.eye(n, dtype=dtype)


def counts(path):
    """What a file holds, by shape and layout."""
    found = recorded.read(path)
    return {"/".join(key.split("/")[i] for i in (1, 5)): count for key, count in found.items()}


def test_calls_in_every_state_count_and_only_those_in_the_block(tmp_path):
    path, A = tmp_path / "problems.json", matrices(5)
    wanting = A.clone().requires_grad_()
    compiled = torch.compile(autoinv.inv, backend="eager")
    autoinv.inv(A)
    with autoinv.record(path):
        autoinv.inv(A)
        autoinv.inv(A, out=torch.empty_like(A))
        autoinv.inv(wanting).sum().backward()
        autoinv.inv_ex(A)
        torch.vmap(autoinv.inv)(A)
        compiled(A)
        autoinv.inv(A.mT)
        autoinv.inv(A[:1].expand(7, 3, 3))
    autoinv.inv(A)
    assert {"5x3x3/contiguous": 6, "5x3x3/transposed": 1, "1x3x3/contiguous": 1} == counts(path)
    torch.testing.assert_close(wanting.grad, torch.autograd.grad(torch.linalg.inv(wanting).sum(), wanting)[0])


def test_all_threads_count_and_calls_through_patched(tmp_path):
    path, A = tmp_path / "problems.json", matrices(5)

    def work():
        with autoinv.patched():
            for _ in range(100):
                torch.linalg.inv(A)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with autoinv.record(path):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {"5x3x3/contiguous": 400} == counts(path)


def test_a_decorated_function_adds_to_the_file_each_time_also_when_it_raises(tmp_path):
    path, A = tmp_path / "problems.json", matrices(5)

    @autoinv.record(path)
    def work(fails):
        autoinv.inv(A)
        if fails:
            raise KeyError("the program's own")

    work(fails=False)
    with pytest.raises(KeyError):
        work(fails=True)
    assert {"5x3x3/contiguous": 2} == counts(path)


def test_blocks_may_overlap_and_one_that_met_nothing_writes_nothing(tmp_path):
    outer, inner, empty = (tmp_path / name for name in ("outer", "inner", "empty"))
    A = matrices(5)
    with autoinv.record(outer), autoinv.record(empty):
        pass
    with autoinv.record(outer):
        autoinv.inv(A)
        with autoinv.record(inner):
            autoinv.inv(A)
        autoinv.inv(A)
    assert [3, 1] == [counts(path)["5x3x3/contiguous"] for path in (outer, inner)]
    assert not empty.exists()


def test_a_block_is_not_entered_where_something_else_stands_in_the_file(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("notes")
    with pytest.raises(ValueError, match="no file of recorded problems"), autoinv.record(path):
        pytest.fail("it was entered")
    assert path.read_text() == "notes"


def test_after_the_block_the_memo_holds_the_strategies_themselves(tmp_path):
    A = matrices(5)
    autoinv.inv(A)
    autoinv.inv(A)
    (before,) = CALL.dispatcher.memo.values()
    with autoinv.record(tmp_path / "problems.json"):
        autoinv.inv(A)
    assert (CALL.dispatcher.watch, CALL.dispatcher.memo) == (None, {})
    autoinv.inv(A)
    (after,) = CALL.dispatcher.memo.values()
    assert before.__qualname__ == after.__qualname__


def test_sampling_changes_no_result_no_random_state_and_no_graph(monkeypatch):
    monkeypatch.setattr(recording, "SAMPLED_PART", 1e9)  # every call
    A = matrices(5)
    singular = torch.zeros(5, 3, 3, dtype=torch.float64)
    recorder = Recorder(sampled=True)
    recorder.start()
    try:
        state = torch.random.get_rng_state()
        X = A.clone().requires_grad_()
        result = autoinv.inv(X)
        own = copy.deepcopy(A)
        autoinv.inv(own, out=own)
        with pytest.raises(torch.linalg.LinAlgError, match="Batch element 0"):
            autoinv.inv(singular)
        assert torch.equal(state, torch.random.get_rng_state())
    finally:
        recorder.stop()
    (tally,) = recorder.tallies.values()
    assert (tally.calls, tally.samples) == (3, 2)
    assert min(tally.own_s, tally.torch_s) > 0
    torch.testing.assert_close(result, torch.linalg.inv(A))
    torch.testing.assert_close(own, torch.linalg.inv(A))
    assert "Recorded" in type(result.grad_fn).__name__


def test_samples_take_a_hundredth_of_the_time_and_every_problem_gets_some(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(recording.time, "perf_counter", lambda: now_s)
    expensive, cheap = matrices(50, n=8), matrices(5)
    timed = {expensive.shape: 0, cheap.shape: 0}

    def sample(call, operands):
        nonlocal now_s
        times = (1e-3, 9e-3) if operands[0].shape == expensive.shape else (1e-5, 9e-5)
        now_s += sum(times)
        timed[operands[0].shape] += 1
        return times

    monkeypatch.setattr(recording, "_both_s", sample)
    autoinv.warm(expensive.shape, cheap.shape, dtype=torch.float64)
    recorder = Recorder(sampled=True)
    recorder.start()
    try:
        for _ in range(5_000):
            now_s += 2e-3
            autoinv.inv(expensive)
            autoinv.inv(cheap)
    finally:
        recorder.stop()
    spent_s = 1e-2 * timed[expensive.shape] + 1e-4 * timed[cheap.shape]
    assert 0.005 * now_s < spent_s < 0.0101 * now_s
    assert timed[expensive.shape] >= 4
    assert timed[cheap.shape] >= 100
