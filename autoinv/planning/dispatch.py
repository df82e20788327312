"""From a call to a strategy: the memo, and what happens when it misses.

A hit costs a look-up and the call. Everything else - files, settings, timing - happens on a miss.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import torch

from autoinv import lazy, settings
from autoinv.errors import warn_once
from autoinv.operation import Operation
from autoinv.problem import DTYPES, MOST_DIMS, Problem
from autoinv.strategy import LinAlgError, Run

if TYPE_CHECKING:
    from autoinv.planning.plan import Plan
    from autoinv.planning.planner import Planner

MEMO_MOST = 4096
"""Entries kept. One is about 400 bytes, a thousand shapes are rare."""

_dice = random.Random(0)  # its own: a program's seeded random numbers stay what they are

Key = tuple[object, ...]


class Dispatcher:
    """The memo of one operation on tensors ``(*, n, n)``, and the way from a miss to a strategy."""

    def __init__(self, operation: Operation, torch_call: Run) -> None:
        self.operation = operation
        self._planner: Planner | None = None
        self.memo: dict[Key, Run] = {}
        self._torch_call = torch_call
        self._era = 0
        settings.on_change(self.forget)

    @property
    def planner(self) -> Planner:
        """Who chooses; made at the first miss, because it brings files, settings of the machine and their imports."""
        if self._planner is None:
            with lazy.importing:
                from autoinv.planning.planner import Planner

                self._planner = self._planner or Planner(self.operation)
        return self._planner

    def forget(self) -> None:
        """Empty the memo, so that every problem is planned again (settings, pins or decisions changed)."""
        self._era += 1
        self.memo.clear()

    def miss(self, key: Key, A: torch.Tensor) -> Run:
        """Return what to run for a plain tensor whose key the memo does not hold."""
        if torch._C._get_tracing_state() is not None or _is_captured(A):
            return self._torch_call  # a trace or a graph must hold torch's own call, and no timing
        if not self.takes(A):
            return self._torch_call  # torch's own error, or torch's own answer for an empty batch
        era = self._era
        run, final = self._planned_run(A)
        if final and era == self._era:
            self.remember(key, run)
        return run

    @staticmethod
    def takes(A: torch.Tensor) -> bool:
        """Whether this is a batch of at least one square matrix, of a dtype and device that strategies compute on."""
        if A.layout != torch.strided or not (A.is_cpu or A.is_cuda) or A.dtype not in DTYPES.values():
            return False
        shape = A.shape
        return 2 <= len(shape) <= MOST_DIMS and shape[-1] == shape[-2] and A.numel() > 0

    def remember(self, key: Key, run: Run) -> None:
        """Put a strategy's run into the memo; when that is full, some entries go, whichever the dice pick.

        Not the oldest: a program that goes round a few more shapes than fit would then never hit. And some at a
        time, since listing the keys costs 20 us.
        """
        excess = len(self.memo) + 1 - MEMO_MOST
        if excess > 0:
            keys = list(self.memo)
            for picked in _dice.sample(keys, min(len(keys), max(excess, MEMO_MOST // 64))):
                self.memo.pop(picked, None)  # another thread may have been faster
        self.memo[key] = run

    def failed(self, key: Key, A: torch.Tensor, out: torch.Tensor | None, error: Exception) -> torch.Tensor:
        """Answer by PyTorch's own call after a strategy raised; its error, if it raises too, is the user's."""
        if not self.takes(A):
            raise error  # it is torch's own already
        if any(x is not None and _has_no_memory(x) for x in (A, out)):
            raise error  # torch's own call would end the process
        if out is not None and out.data_ptr() == A.data_ptr():
            raise error  # the strategy may have overwritten some of A: there is nothing left to answer for
        answer = self._torch_call(A, out=out)
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return answer  # that may pass
        self.remember(key, self._torch_call)
        warn_once(
            "strategy raised",
            f"a strategy of {self.operation.name} raised {type(error).__name__} on {tuple(A.shape)}: {error}",
            "PyTorch's own call answers from now on; `python -m autoinv.tune forget` that shape to tune it anew.",
        )
        return answer

    def _planned_run(self, A: torch.Tensor) -> tuple[Run, bool]:
        started_s = time.perf_counter()
        try:
            if self.planned_for(A) is not A:
                return self._repeated(A), True
            problem = Problem.of(self.operation.name, A)
            plan = self.planner.plan(problem, [A.stride()], started_s)
            return plan.strategy.bind(problem), plan.final
        except Exception as error:  # whatever failed, the caller gets the right answer
            warn_once(
                f"planning {type(error).__name__}",
                f"choosing a strategy of {self.operation.name} failed with {type(error).__name__}: {error}",
                "PyTorch's own call answers instead; please report it, with what `python -m autoinv.tune doctor` says.",
            )
            return self._torch_call, False

    def _repeated(self, A: torch.Tensor) -> Run:
        """Return a run for an expanded batch: every different matrix once, then copies."""

        def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            once = _without_repeats(A)
            if once is None:  # not the tensor that this was made for
                return self._torch_call(A, out=out)
            try:
                answer = self.answer(once).expand(A.shape)
            except LinAlgError:
                return self._torch_call(A, out=out)  # its text names the index in the whole batch
            return answer.contiguous() if out is None else out.copy_(answer)

        return run

    def answer(self, A: torch.Tensor) -> torch.Tensor:
        """Answer for a plain tensor: memo, else plan."""
        key = key_of(A)
        run = self.memo.get(key) or self.miss(key, A)
        return run(A)

    def planned_for(self, A: torch.Tensor) -> torch.Tensor:
        """Return what a strategy is chosen for: of an expanded batch each matrix once, unless its shape is pinned."""
        once = _without_repeats(A)
        if once is None or self.planner.is_pinned(Problem.of(self.operation.name, A)):
            return A
        return once

    def is_demoted(self, A: torch.Tensor) -> bool:
        """Whether PyTorch's own call answers for this tensor because a strategy raised."""
        return self.memo.get(key_of(A)) is self._torch_call

    def explain(self, problem: Problem) -> Plan:
        """Return what would run for this problem; times nothing."""
        return self.planner.known(problem)


def key_of(A: torch.Tensor) -> Key:
    """Return the memo's key of a plain tensor: nothing is formatted, copied or converted.

    A contiguous CPU tensor, the usual case, leaves out device and strides: building, hashing and
    comparing a ``torch.device`` costs 100 ns, ``is_cpu`` 50.
    """
    if A.is_cpu and A.is_contiguous():
        return (A.shape, A.dtype, torch.get_num_threads())
    return (A.shape, A.dtype, A.device, torch.get_num_threads(), A.stride())


def _has_no_memory(A: torch.Tensor) -> bool:
    """Whether the storage was given back (resized to nothing, as FSDP does)."""
    try:
        return A.untyped_storage().nbytes() == 0 and not A._is_zerotensor()
    except (RuntimeError, NotImplementedError):  # sparse, mkldnn, a wrapper: no storage to give back
        return False


def _is_captured(A: torch.Tensor) -> bool:
    return A.is_cuda and torch.cuda.is_current_stream_capturing()


def _without_repeats(A: torch.Tensor) -> torch.Tensor | None:
    """Return the batch with each expanded dim cut to one, or None when none is expanded."""
    expanded = [d for d in range(A.dim() - 2) if A.shape[d] > 1 and A.stride(d) == 0]
    for d in expanded:
        A = A.narrow(d, 0, 1)
    return A if expanded else None
