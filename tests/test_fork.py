"""What a forked child finds: free locks, except those that the forking thread holds itself; nobody hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_makers import fork as fork_child
from file_makers import in_child, wait_for

import autoinv
from autoinv import fork, settings

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

FORKS = 25


@contextmanager
def held_by_another_thread(lock: threading.Lock) -> Iterator[None]:
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            leave.wait(60.0)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60.0)
    try:
        yield
    finally:
        leave.set()
        thread.join()


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Run ``work`` again and again in another thread during the block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("make", [fork.lock, fork.rlock])
def test_a_lock_that_another_thread_holds_is_free_in_a_child(make):
    lock = make()

    def work() -> None:
        assert lock.acquire(timeout=0)
        lock.release()
        assert lock.acquire(timeout=0)

    with held_by_another_thread(lock):
        in_child(work)
        assert not lock.acquire(timeout=0)
    assert lock.acquire(timeout=0)


def taken_by_another_thread(lock: threading.RLock) -> bool:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(timeout=0)))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("inner", [False, True])
def test_a_reentrant_lock_that_the_forking_thread_holds_is_still_its_own_in_the_child(inner):
    lock = fork.rlock()

    def work() -> None:
        assert not taken_by_another_thread(lock)
        lock.release()
        assert taken_by_another_thread(lock)

    with lock:
        if inner:  # taken and given back once more
            with lock:
                pass
        in_child(work)
        assert not taken_by_another_thread(lock)


def test_a_reentrant_lock_is_taken_twice_by_its_thread_and_by_no_other():
    lock = fork.rlock()
    with lock, lock:
        assert not taken_by_another_thread(lock)


def test_a_wait_for_a_lock_ends_after_its_timeout():
    lock = fork.lock()
    with held_by_another_thread(lock):
        started_s = time.monotonic()
        assert not lock.acquire(timeout=0.05)
        assert 0.04 < time.monotonic() - started_s < 30.0


def test_a_child_of_a_child_finds_free_locks_too():
    lock = fork.lock()

    def work() -> None:
        with held_by_another_thread(lock):
            in_child(lambda: lock.acquire(timeout=0) or pytest.fail("held"))

    in_child(work)


def run_python(code: str) -> str:
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# What is registered stays so for the life of a process, so these two have one of their own.
WAITS = """
import os, threading, time
from autoinv import fork
lock, log = threading.RLock(), []
fork.wait_for(lock)
taken = threading.Event()
def hold():
    with lock:
        taken.set()
        time.sleep(0.3)
        log.append("done")
thread = threading.Thread(target=hold)
thread.start()
taken.wait()
child = os.fork()
if not child:
    os._exit(0 if log == ["done"] and lock.acquire(timeout=0) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lock.acquire(timeout=0))
"""

CALLS_BACK = """
import os, threading
from autoinv import fork
lock, log = fork.lock(), []
fork.in_child(lambda: log.append(lock.acquire(timeout=0)))
fork.in_child(lambda: log.append("second"))
taken, leave = threading.Event(), threading.Event()
def hold():
    with lock:
        taken.set()
        leave.wait()
thread = threading.Thread(target=hold)
thread.start()
taken.wait()
child = os.fork()
if not child:
    os._exit(0 if log == [True, "second"] else 1)
leave.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), log)
"""


def test_a_fork_waits_for_what_must_not_be_half_done():
    assert run_python(WAITS) == "0 True"


def test_callbacks_run_in_the_child_alone_in_order_and_with_free_locks():
    assert run_python(CALLS_BACK) == "0 []"


def test_no_other_module_registers_with_os_register_at_fork():
    package = Path(autoinv.__file__).parent
    found = [
        path.relative_to(package) for path in package.rglob("*.py") if "register_at_fork" in path.read_text()
    ]
    assert found == [Path("fork.py")]


def test_a_child_forked_while_another_thread_configures_can_configure():
    def work() -> None:
        autoinv.configure(budget=0.5)
        with autoinv.using(budget=0.25) as now:
            assert now.budget == 0.25

    with running(lambda: autoinv.configure(budget=0.1)):
        children = [fork_child(work) for _ in range(FORKS)]
        statuses = [wait_for(child) for child in children]
    autoinv.configure(budget=None)
    assert statuses == [0] * FORKS


def test_a_child_forked_while_another_thread_holds_the_settings_can_configure():
    with held_by_another_thread(settings._lock):
        in_child(lambda: autoinv.configure(budget=0.5))


# The extension is loaded once in a process, so each fork has a parent of its own; the last one finds it slow to load.
LOADS = """
import os, signal, sys, threading, time
from autoinv import native

def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def fork_while_loading(begun, after_s):
    thread = threading.Thread(target=lambda: begun() or native.load())
    thread.start()
    loading.wait()
    time.sleep(after_s)
    child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(0 if (native.load() is None) == bool(native.why_missing()) else 1)
    thread.join()
    os._exit(abs(status_of(child)))

class SlowToFind:
    def find_spec(self, name, path=None, target=None):
        if name == "autoinv.native._native":
            loading.set()
            time.sleep(0.3)

found = []
for after_ms in (0, 0.2, 1, 5, "slow"):
    loading = threading.Event()
    parent = os.fork()
    if not parent:
        if after_ms == "slow":
            sys.meta_path.insert(0, SlowToFind())
            fork_while_loading(lambda: None, 0.0)
        fork_while_loading(loading.set, 1e-3 * after_ms)
    found.append(status_of(parent))
print(found)
"""


def test_a_child_forked_while_another_thread_loads_the_extension_can_load_it():
    assert run_python(LOADS) == "[0, 0, 0, 0, 0]"


def test_a_cold_call_answers_in_a_child_whose_parent_had_a_team_of_threads(tmp_path):
    code = """
import os, signal, sys, torch, autoinv
torch.set_num_threads(2)
torch.linalg.inv(torch.randn(2000, 3, 3) + 3 * torch.eye(3))  # wakes the team, which the child will not have
shapes = ((500, 3), (20000, 3), (2000, 8), (30, 16), (8, 40))
matrices = [torch.randn(b, n, n, dtype=torch.float64) + n * torch.eye(n) for b, n in shapes]
doubtful = torch.eye(8, dtype=torch.float64).repeat(900, 1, 1)
doubtful[:, 0, 0] = 1e-300
matrices.append(doubtful)
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    for i, A in enumerate(matrices):
        autoinv.inv(A).numpy().tofile(f"{sys.argv[1]}/{i}")
    known = [autoinv.explain(A) for A in matrices[:4]]
    is_right = all(e.source == "tuned" and "forked" in e.rejected["batched"] for e in known)
    os._exit(0 if is_right and "forked" in autoinv.explain(matrices[4]).why else 1)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for i, A in enumerate(matrices):
    X = torch.from_file(f"{sys.argv[1]}/{i}", size=A.numel(), dtype=A.dtype).view(A.shape)
    torch.testing.assert_close(X, torch.linalg.inv(A))
print(status)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("0", 0), done.stderr
