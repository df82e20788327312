"""From a call to a strategy: the memo, and what happens when it misses.

A hit costs a look-up and the call. Everything else - files, settings, timing - happens on a miss.
"""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, get_num_threads

from autoinv import fork, lazy, settings
from autoinv.errors import FROM_PLANNING, is_foreign, is_out_of_memory, warn_once
from autoinv.operation import Operands, Operation
from autoinv.planning.untimed import Untimed, provisional
from autoinv.problem import Problem
from autoinv.strategy import LinAlgError, Run, Strategy

if TYPE_CHECKING:
    from autoinv.planning.plan import Plan
    from autoinv.planning.planner import Planner

MEMO_MOST = 4096
"""Entries kept. One is about 400 bytes, a thousand shapes are rare."""

_rng = random.Random(0)  # its own: a program's seeded random numbers stay what they are

Key = tuple[object, ...]


class Dispatcher:
    """The memo of one operation, and the way from a miss to a strategy."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._planner: Planner | None = None
        self.memo: dict[Key, Run] = {}
        self._chosen: dict[Key, tuple[Run, Problem, Strategy]] = {}
        """Whose runs the memo holds, for the day that one raises."""
        self._unplanned = Untimed()
        """What the calls took for which no strategy could be chosen."""
        self.generation = 0
        """Changes with all that a plan depends on; one made for an older generation is not remembered."""
        self.watch: Callable[[Problem, Run], Run] | None = None
        """What each run is wrapped in, while it is recorded which problems a program meets; changed with `forget`."""
        self._changing = fork.rlock()
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
        with self._changing:
            self.generation += 1
            self.memo.clear()
            self._chosen.clear()

    def miss(self, key: Key, *operands: Tensor) -> Run:
        """Return what to run for plain tensors whose key the memo does not hold."""
        if torch._C._get_tracing_state() is not None or any(map(_is_captured, operands)):
            return self.operation.torch_answer  # a trace or a graph must hold torch's own call, and no timing
        if not self.operation.takes(*operands):
            return self.operation.torch_answer  # torch's own error, or torch's own answer for an empty batch
        generation = self.generation
        started_s = time.perf_counter()
        try:
            if self.planned_for(operands) is not operands:
                self.remember(key, self._repeated, generation)
                return self._repeated
            problem = Problem.of(self.operation.name, *operands)
            plan = self.planner.plan(problem, [x.stride() for x in operands])
            run = self.bind(problem, plan.strategy)
        except FROM_PLANNING as error:  # whatever failed, the caller gets the right answer
            if is_foreign(error):
                raise
            self.warn_unplanned(error)
            self._unplanned.tries_s += time.perf_counter() - started_s
            run = self._until_due(key, self.operation.torch_answer, self._unplanned)
            self.remember(key, run, generation)
            return run
        if plan.untimed is not None:
            run = self._until_due(key, run, plan.untimed)
        if plan.final or plan.untimed is not None:
            self.remember(key, run, generation)
            self._chosen[key] = (run, problem, plan.strategy)
        # Last, as a listener may ask for the same problem.
        self.planner.notify(problem, plan, time.perf_counter() - started_s)
        return run

    def bind(self, problem: Problem, strategy: Strategy) -> Run:
        """Return the function by which a strategy answers a problem, watched while somebody does."""
        run = strategy.bind(problem)
        return run if self.watch is None else self.watch(problem, run)

    def remember(self, key: Key, run: Run, generation: int) -> None:
        """Put a strategy's run into the memo, unless it was planned for an older generation.

        When the memo is full, some entries go, chosen at random. Not the oldest: a program that goes round a few more
        shapes than fit would then never hit. And some at a time, since listing the keys costs 20 us.
        """
        with self._changing:
            excess = len(self.memo) + 1 - MEMO_MOST
            if excess > 0:
                keys = list(self.memo)
                for chosen in _rng.sample(keys, min(len(keys), max(excess, MEMO_MOST // 64))):
                    self.memo.pop(chosen, None)
                    self._chosen.pop(chosen, None)
            self.memo[key] = run
            if generation != self.generation:  # looked at last: a signal handler may have changed it just now
                self.memo.pop(key, None)

    def final_run(self, key: Key) -> Run | None:
        """Return what the memo holds for a key, unless that serves only until the problem is tuned."""
        run = self.memo.get(key)
        return None if getattr(run, "is_provisional", False) else run

    def _until_due(self, key: Key, run: Run, untimed: Untimed) -> Run:
        """Return a run that leaves the memo when the problem is worth another try."""

        def ask_again(own: Run) -> None:
            if self.memo.get(key) is own:
                self.memo.pop(key, None)

        return provisional(run, untimed, untimed.due_s(settings.current().budget), ask_again)

    def failed(
        self, key: Key, run: Run | None, operands: Operands, out: Tensor | None, error: Exception
    ) -> Tensor:
        """Answer by PyTorch's own call after a strategy raised; its error, if it raises too, is the user's."""
        operation = self.operation
        if not operation.takes(*operands):
            raise error  # it is torch's own already
        if any(x is not None and _has_no_memory(x) for x in (*operands, out)):
            raise error  # torch's own call would end the process
        if out is not None and any(out.data_ptr() == x.data_ptr() for x in operands):
            raise error  # the strategy may have overwritten some of the operand: it is lost
        generation = self.generation
        answer = operation.torch_answer(*operands, out=out)
        if is_out_of_memory(error):
            return answer  # that may pass
        if any(map(_has_no_address, operands)):
            return answer  # such a tensor is not what the strategy was chosen for
        if run is not None and self.memo.get(key) is run:
            self._demote(key, run, operands, error, generation)
        return answer

    def _demote(self, key: Key, run: Run, operands: Operands, error: Exception, generation: int) -> None:
        """Let PyTorch's own call answer from now on, in later processes too."""
        operation = self.operation
        self.remember(key, operation.torch_answer, generation)
        kept_run, problem, strategy = self._chosen.pop(key, (None, None, None))
        raised = f"raised {type(error).__name__}: {error}"
        if kept_run is run and problem is not None and strategy is not None:
            self.planner.failed(problem, strategy, raised)
        name = strategy.name if strategy is not None else "a strategy"
        shapes = ", ".join(str(tuple(x.shape)) for x in operands)
        warn_once(
            f"{operation.name}: {name} raised",
            f"{name} of {operation.name} {raised.partition(':')[0]} on {shapes}: {error}",
            "PyTorch's own call answers from now on; `python -m autoinv.tune forget` that shape to tune it anew.",
        )

    def warn_unplanned(self, error: Exception) -> None:
        """Warn that no strategy could be chosen, so that PyTorch's own call answers."""
        warn_once(
            f"planning {self.operation.name}, {type(error).__name__}",
            f"choosing a strategy of {self.operation.name} failed with {type(error).__name__}: {error}",
            "PyTorch's own call answers instead; please report it, with what `python -m autoinv.tune doctor` says.",
        )

    def _repeated(self, *operands: Tensor, out: Tensor | None = None) -> Tensor:
        """Answer for an expanded batch: everything different once, then copies."""
        once = without_repeats(self.operation, operands)
        if once is None:  # not the tensors that this was remembered for
            return self.operation.torch_answer(*operands, out=out)
        answer = self.expanded_answer(operands, once, self.answer)
        return answer.contiguous() if out is None else out.copy_(answer)

    def expanded_answer(self, operands: Operands, once: Operands, answer: Run) -> Tensor:
        """Return the answer for a batch by that for ``once``, what is different in it; not contiguous."""
        operation = self.operation
        try:
            return answer(*once).expand(operation.result_shape(*[x.shape for x in operands]))
        except LinAlgError:
            return operation.torch_answer(*operands)  # its text names the index in the whole batch

    def answer(self, *operands: Tensor) -> Tensor:
        """Answer for plain tensors: memo, else plan."""
        key = key_of(*operands)
        run = self.memo.get(key) or self.miss(key, *operands)
        return run(*operands)

    def planned_for(self, operands: Operands) -> Operands:
        """Return what a strategy is chosen for: of an expanded batch each element once, unless its shape is pinned."""
        once = without_repeats(self.operation, operands)
        if once is None or self.planner.is_pinned(Problem.of(self.operation.name, *operands)):
            return operands
        return once

    def is_demoted(self, *operands: Tensor) -> bool:
        """Whether PyTorch's own call answers for these tensors because a strategy raised."""
        return self.memo.get(key_of(*operands)) == self.operation.torch_answer

    def explain(self, problem: Problem) -> Plan:
        """Return what would run for this problem; times nothing."""
        return self.planner.known(problem)


def key_of(A: Tensor, *others: Tensor) -> Key:
    """Return the memo's key of plain tensors: nothing is formatted, copied or converted.

    A contiguous CPU tensor, the usual case, leaves out device and strides: building, hashing and
    comparing a ``torch.device`` costs 100 ns, ``is_cpu`` 50.
    """
    if not others:
        if A.is_cpu and A.is_contiguous():
            return (A.shape, A.dtype, get_num_threads())
        return (A.shape, A.dtype, A.device, get_num_threads(), A.stride())
    parts: list[object] = [get_num_threads()]
    for x in (A, *others):
        parts += (x.shape, x.dtype)
        if not (x.is_cpu and x.is_contiguous()):
            parts += (x.device, x.stride())
    return tuple(parts)


def without_repeats(operation: Operation, operands: Operands) -> Operands | None:
    """Return the operands with each dim of the batch that only repeats cut to one; None when none does.

    A dim repeats where every operand that has more than one element there has a stride of 0, and there is one.
    """
    for x in operands:
        if 0 in x.stride():
            break
    else:
        return None
    shapes = [x.shape for x in operands]
    batch_dims = [len(shape) - core for shape, core in zip(shapes, operation.core_dims(shapes), strict=True)]
    once = list(operands)
    for back in range(1, max(batch_dims) + 1):  # counted from the last batch dim, as broadcasting does
        steps = [
            x.stride(own - back)
            for x, own in zip(operands, batch_dims, strict=True)
            if own >= back and x.shape[own - back] > 1
        ]
        if steps and not any(steps):
            for i, own in enumerate(batch_dims):
                if own >= back:
                    once[i] = once[i].narrow(own - back, 0, 1)
    return None if all(map(operator.is_, once, operands)) else tuple(once)


def _has_no_memory(A: Tensor) -> bool:
    """Whether the storage was given back (resized to nothing, as FSDP does)."""
    try:
        return A.untyped_storage().nbytes() == 0 and not A._is_zerotensor()
    except (RuntimeError, NotImplementedError):  # sparse, mkldnn, a wrapper: no storage to give back
        return False


def _has_no_address(A: Tensor) -> bool:
    """Whether there is nothing at an address to compute on: a zero tensor, a wrapper of torch's own."""
    try:
        return A.data_ptr() == 0
    except RuntimeError:
        return True


def _is_captured(A: Tensor) -> bool:
    return A.is_cuda and torch.cuda.is_current_stream_capturing()
