"""The extension's pool of threads: results, several callers, fork, exit, and the GIL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from native_calls import by_dtype, call_inv, isa, needs_extension, randn

pytestmark = needs_extension
__all__ = ["isa"]  # a fixture


@by_dtype
@pytest.mark.parametrize("threads", (1, 2, 3, 8, 1000))
def test_the_pool_gives_what_one_thread_gives(isa, dtype, threads):
    for batch, n in ((1, 3), (63, 3), (64, 3), (65, 3), (1000, 8), (5000, 3), (100, 16), (9, 40)):
        A = randn(batch, n, n, dtype=dtype)
        expected, X = torch.empty_like(A), torch.empty_like(A)
        call_inv(A, expected)
        assert call_inv(A, X, threads) == []
        assert torch.equal(expected, X)


def test_indices_that_need_fallback_are_returned_in_order_over_all_chunks(isa):
    A = randn(10_000, 3, 3, dtype=torch.float64)
    singular = list(range(3, 10_000, 77))
    A[singular] = 0
    before = A.clone()
    assert singular == call_inv(A, A, 4)
    assert torch.equal(before[singular], A[singular])


def test_several_callers_at_once_each_get_their_own_answer():
    batches = [randn(2000 + i, 4, 4, dtype=torch.float64, seed=i) for i in range(6)]
    wrong = []

    def work(A: torch.Tensor) -> None:
        expected = torch.empty_like(A)
        call_inv(A, expected)
        for _ in range(30):
            X = torch.empty_like(A)
            if call_inv(A, X, 3) or not torch.equal(expected, X):
                wrong.append(len(A))

    workers = [threading.Thread(target=work, args=(A,)) for A in batches]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("threads", (None, 2))
def test_other_python_threads_run_during_a_long_call(threads):
    A = randn(20_000, 16, 16, dtype=torch.float64)
    X = torch.empty_like(A)
    begun, done, seen = [], [], []

    def work() -> None:
        begun.append(True)
        call_inv(A, X, threads)
        done.append(True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # no forced switch: others run only while the call has released the GIL
    try:
        worker = threading.Thread(target=work)
        worker.start()
        while not done:
            if begun and not done:
                seen.append(True)
            worker.join(1e-4)
    finally:
        sys.setswitchinterval(interval)
    assert seen


CHILD = """
import os, sys, threading, torch
from autoinv import native
torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork
extension = native.load()
A = torch.randn(20000, 3, 3, dtype=torch.float64) + 3 * torch.eye(3)
X = torch.empty_like(A)
def call():
    return extension.inv_parallel(A.data_ptr(), X.data_ptr(), 1, 3, len(A), 3)
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CHILD + code], capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_answers_whatever_its_parent_was_doing():
    code = """
stop = []
def busy():
    while not stop:
        call()
other = threading.Thread(target=busy)
other.start()
expected = torch.linalg.inv(A)
for _ in range(20):
    child = os.fork()
    if child == 0:
        ok = call() is None
        os._exit(0 if ok and torch.allclose(X, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.append(True)
other.join()
print("answered")
"""
    done = _run(code)
    assert (done.stdout, done.returncode) == ("answered\n", 0), done.stderr


def test_a_process_that_used_the_pool_ends_at_once():
    assert _run("call()").returncode == 0
    daemon = "threading.Thread(target=lambda: [call() for _ in range(10000)], daemon=True).start()"
    assert _run(daemon).returncode == 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_no_thread_is_started_before_it_is_needed_nor_more_than_asked_for():
    code = """
count = lambda: len(os.listdir('/proc/self/task'))
before = count()
small = torch.eye(3)[None].contiguous()
extension.inv_parallel(small.data_ptr(), small.data_ptr(), 0, 3, 1, 8)
extension.inv(A.data_ptr(), X.data_ptr(), 1, 3, len(A))
print(count() - before)
call()
print(count() - before)
call()
print(count() - before)
"""
    assert _run(code).stdout.split() == ["0", "2", "2"]


def test_workers_flush_denormals_where_the_caller_does():
    A = torch.tensor([[1e160, 1e12], [0, 1e160]], dtype=torch.float64).repeat(20_000, 1, 1)
    corners = {}

    def work() -> None:  # in a thread of its own, as the state is the thread's
        for flushed in (True, False, True):
            if not torch.set_flush_denormal(flushed):
                return
            X = torch.empty_like(A)
            for _ in range(10):
                assert call_inv(A, X, 4) == []
                corners.setdefault(flushed, set()).update(X[:, 0, 1].view(torch.int64).unique().tolist())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    if not corners:
        pytest.skip("this processor does not flush denormals")
    assert corners[True] == {0} or corners[True] == {-(2**63)}  # zero, in all chunks
    assert len(corners[False]) == 1
    assert corners[False] != corners[True]
