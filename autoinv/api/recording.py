"""Which problems a program meets, how often, and on a sample of its calls what PyTorch would have taken."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import ContextDecorator
from os import PathLike
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from autoinv import fork, lazy
from autoinv.api.problems import SAVE_WAIT_S
from autoinv.calls.call import Call
from autoinv.calls.state import is_ordinary
from autoinv.errors import FROM_PLANNING, FROM_TORCH_OR_KERNELS
from autoinv.operation import Operands
from autoinv.ops.table import OPERATIONS
from autoinv.planning.dispatch import key_of
from autoinv.problem import Problem
from autoinv.store import recorded
from autoinv.strategy import Run

SAMPLED_PART = 0.01
"""Of a program's time, what timing some of its calls both ways may take."""
SAMPLED_MOST_BYTES = 256 << 20
"""Calls on larger operands are not timed: their results would take as much memory again."""
_FIRST_S = 5e-3
"""What the first sample of all may take: PyTorch's first call starts its threads."""
_GUESSED_S = 1e-4
_GUESSED_S_A_MULTIPLICATION = 5e-9


def record(path: str | PathLike[str]) -> ContextDecorator:
    """Return a context, or decorator, in which the problems that are met are recorded, to be tuned elsewhere.

    All calls of autoinv's functions count, in all threads, those through `patched` included. When the block ends,
    by an exception too, they are added to what the file holds; ``python -m autoinv.tune warm --from FILE`` tunes
    them, on this machine or another. Where that fails there is one warning. A call costs about 0.5 us more.

    Args:
        path: the file; made when it is not there.

    Raises:
        ValueError: on entering, when the file is there and holds no recorded problems, or may not be changed.

    Example:
        >>> import tempfile, torch, autoinv
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "problems.json")
        >>> with autoinv.record(path):
        ...     X = autoinv.inv(torch.eye(3).repeat(5, 1, 1))
        >>> "inv/5x3x3/float32/cpu" in path.read_text()
        True
    """
    return _Recording(Path(path))


class _Recording(ContextDecorator):
    def __init__(self, path: Path) -> None:
        self._path = path

    def _recreate_cm(self) -> _Recording:
        return _Recording(self._path)

    def __enter__(self) -> None:
        self._target = target_of(self._path)
        self._recorder = Recorder()
        self._recorder.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._recorder.stop()
        self._recorder.save(self._target)


def target_of(path: Path) -> Path:
    """Return where to record, whatever becomes of the working directory, and links followed.

    Raises:
        ValueError: when a file is there to which problems cannot be added.
    """
    target = path.resolve()
    recorded.check_target(target)
    return target


class Tally:
    """One problem: its calls, those that were timed both ways, and the seconds that these took."""

    __slots__ = ("calls", "due_s", "expected_s", "own_s", "samples", "spent_s", "torch_s")

    def __init__(self, expected_s: float) -> None:
        self.calls = 0
        self.samples = 0
        self.own_s = 0.0
        self.torch_s = 0.0
        self.spent_s = 0.0
        """What all of its samples took, the calls that are not counted included."""
        self.expected_s = expected_s
        """What the next sample may take: as much as the longest before, at first a guess."""
        self.due_s = 0.0
        """When it may be taken, on the recorder's clock."""


class Recorder:
    """Counts the problems that are met between start and stop; ``sampled``: and times some calls both ways."""

    def __init__(self, sampled: bool = False) -> None:
        self._sampled = sampled
        self._lock = fork.rlock()
        self._began_s = 0.0
        self._spent_s = 0.0
        self.tallies: dict[Problem, Tally] = {}

    def start(self) -> None:
        """Begin to count, in all threads."""
        global _recorders
        self._began_s = time.perf_counter()
        with _changing:
            _recorders = (*_recorders, self)
            _watch(_watched)

    def stop(self) -> None:
        """Count no more."""
        global _recorders
        with _changing:
            _recorders = tuple(other for other in _recorders if other is not self)
            _watch(_watched if _recorders else None)

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._began_s

    def save(self, target: Path) -> bool:
        """Add what was met to a file; return False, after a warning, when that failed."""
        counts = {problem.key: tally.calls for problem, tally in self.tallies.copy().items() if tally.calls}
        return not counts or recorded.add(target, counts, SAVE_WAIT_S)

    def tally_of(self, call: Call, problem: Problem) -> Tally:
        """Return the tally of a problem, a new one when it was not met yet."""
        with self._lock:
            tally = self.tallies.get(problem)
            if tally is None:
                tally = self.tallies[problem] = Tally(_expected_s(call, problem) if self._sampled else 0.0)
            return tally

    def meet(self, call: Call, tally: Tally, operands: Operands) -> None:
        """Count a call that is about to be answered."""
        with self._lock:
            tally.calls += 1
        if self._sampled and self.elapsed_s() >= tally.due_s:
            self._sample(call, tally, operands)

    def _sample(self, call: Call, tally: Tally, operands: Operands) -> None:
        """Time a call both ways, when there is time for it: for this problem and for all together."""
        with self._lock:
            expected_s = tally.expected_s if self._spent_s else max(_FIRST_S, tally.expected_s)
            own_due_s = (tally.spent_s + expected_s) * len(self.tallies)
            tally.due_s = max(own_due_s, self._spent_s + expected_s) / SAMPLED_PART
            if self.elapsed_s() < tally.due_s or not _is_timeable(call, operands):
                return
            tally.due_s = math.inf  # until this sample is done
        began_s = time.perf_counter()
        times = _both_s(call, operands)
        spent_s = time.perf_counter() - began_s
        with self._lock:
            self._spent_s += spent_s
            tally.spent_s += spent_s
            tally.due_s = 0.0
            if times is None:
                tally.expected_s *= 2  # so that it is not tried again and again
                return
            tally.expected_s = max(spent_s, tally.expected_s if tally.samples else 0.0)
            tally.samples += 1
            tally.own_s += times[0]
            tally.torch_s += times[1]


_recorders: tuple[Recorder, ...] = ()
_changing = fork.rlock()


class _Here(threading.local):
    """Whether this thread is timing a call that the program did not make."""

    is_sampling = False


_here = _Here()


def _watch(watched: Callable[[Call, Problem, Run], Run] | None) -> None:
    """Have all runs wrapped from now on, or none."""
    for call in OPERATIONS.values():
        call.dispatcher.watch = None if watched is None else _with_call(watched, call)
        call.dispatcher.forget()


def _with_call(watched: Callable[[Call, Problem, Run], Run], call: Call) -> Callable[[Problem, Run], Run]:
    return lambda problem, run: watched(call, problem, run)


def _watched(call: Call, problem: Problem, run: Run) -> Run:
    """Return ``run``, with each call met by all recorders first: the operands may be overwritten by it."""
    tallies = [(recorder, recorder.tally_of(call, problem)) for recorder in _recorders]

    def counted(*operands: Tensor, out: Tensor | None = None) -> Tensor:
        if not _here.is_sampling:
            for recorder, tally in tallies:
                recorder.meet(call, tally, operands)
        return run(*operands) if out is None else run(*operands, out=out)

    return counted


def _expected_s(call: Call, problem: Problem) -> float:
    """Return what timing a call both ways will take, by its decision, or by its work where nothing is known."""
    operation = call.operation
    try:
        decision = call.dispatcher.explain(problem).decision
        if decision is not None and decision.problem == problem:
            names = (decision.strategy, operation.reference(problem).name)
            return 2 * sum(decision.seconds[name] for name in names)
    except FROM_PLANNING:  # reported where a call plans; or one was not timed
        pass
    return _GUESSED_S + _GUESSED_S_A_MULTIPLICATION * operation.batch(problem) * operation.work(
        *problem.shapes
    )


def _is_timeable(call: Call, operands: Operands) -> bool:
    """Whether a call on these can be repeated without a trace, and without planning anything."""
    return (
        is_ordinary(call.operation, *operands)
        and sum(x.nbytes for x in operands) <= SAMPLED_MOST_BYTES
        and not any(x.is_cuda and torch.cuda.is_current_stream_capturing() for x in operands)
        and key_of(*operands) in call.dispatcher.memo
    )


def _both_s(call: Call, operands: Operands) -> tuple[float, float] | None:
    """Return the seconds of one call by autoinv and of one by PyTorch; None when one of them fails.

    Each is called once for nothing first, as a program that calls often finds its data in the cache and PyTorch's
    threads awake. Autoinv goes first: those threads wait actively for a while, and would slow it down.
    """
    with lazy.importing:
        from autoinv.tuning.tuner import stopwatch_for

    stopwatch = stopwatch_for(str(operands[0].device))
    _here.is_sampling = True
    try:
        with torch.no_grad():
            call.function(*operands)
            own_s = stopwatch.seconds(lambda: call.function(*operands), 1)
            call.operation.torch_call(*operands)
            return own_s, stopwatch.seconds(lambda: call.operation.torch_call(*operands), 1)
    except FROM_TORCH_OR_KERNELS:  # a singular matrix: the program's own call will say so
        return None
    finally:
        _here.is_sampling = False
