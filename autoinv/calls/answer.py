"""The answer for ordinary operands: by the chosen strategy, timed when need be, or never timed."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from autoinv import settings
from autoinv.errors import FROM_PLANNING, FROM_TORCH_OR_KERNELS
from autoinv.operation import Operands, Operation, as_contiguous
from autoinv.planning.dispatch import Dispatcher, key_of
from autoinv.problem import Problem
from autoinv.strategy import LinAlgError, Run


def answer(dispatcher: Dispatcher, operands: Operands) -> Tensor:
    """Answer as the fast path does: memo, else plan, then run.

    Raises:
        torch.linalg.LinAlgError: when there is no answer, say for a singular matrix.
    """
    key = key_of(*operands)
    return run_or_fail(dispatcher, dispatcher.memo.get(key) or dispatcher.miss(key, *operands), operands)


def run_or_fail(dispatcher: Dispatcher, run: Run, operands: Operands) -> Tensor:
    """Run a strategy; where it raises, PyTorch's own call answers.

    Raises:
        torch.linalg.LinAlgError: when there is no answer, say for a singular matrix.
    """
    try:
        return run(*operands)
    except LinAlgError:
        raise
    except FROM_TORCH_OR_KERNELS as error:
        return dispatcher.failed(key_of(*operands), run, operands, None, error)


def untimed_answer(dispatcher: Dispatcher, operands: Operands) -> Tensor:
    """Answer by what is known already; times nothing and stores nothing.

    Raises:
        torch.linalg.LinAlgError: when there is no answer, say for a singular matrix.
    """
    run = _remembered_run(dispatcher, operands)
    operation = dispatcher.operation
    if run is None:
        if not operation.takes(*operands):
            return operation.torch_answer(*operands)
        operands = tuple([x.resolve_conj().resolve_neg() for x in operands])
        once = dispatcher.planned_for(operands)
        if once is not operands:
            answer_once = partial(_untimed_each, dispatcher)
            return dispatcher.expanded_answer(operands, once, answer_once).contiguous()
        run = dispatcher.memo.get(key_of(*operands)) or _known_run(dispatcher, operands)
    try:
        return run(*operands)
    except LinAlgError:
        raise
    except FROM_TORCH_OR_KERNELS:
        return operation.torch_answer(*operands)


def _untimed_each(dispatcher: Dispatcher, *operands: Tensor) -> Tensor:
    return untimed_answer(dispatcher, operands)


def _remembered_run(dispatcher: Dispatcher, operands: Operands) -> Run | None:
    """Return what the memo holds for plain operands, where a look at their strides shows that nothing repeats.

    What it holds for an expanded batch plans when it runs, and so may time.
    """
    for x in operands:
        if x.layout is not torch.strided or x.is_conj() or x.is_neg() or 0 in x.stride():
            return None
    return dispatcher.memo.get(key_of(*operands))


def torchs_own(operation: Operation, operands: Operands) -> Tensor:
    """Return PyTorch's own answer, contiguous as any; it looks at no size that a trace would record.

    Raises:
        Exception: whatever PyTorch's own call raises.
    """
    return as_contiguous(operation.torch_call(*operands))


def _known_run(dispatcher: Dispatcher, operands: Operands) -> Run:
    operation = dispatcher.operation
    if settings.current().mode == "off":
        return operation.torch_answer
    try:
        problem = Problem.of(operation.name, *operands)
        return dispatcher.bind(problem, dispatcher.explain(problem).strategy)
    except FROM_PLANNING as error:  # as on a miss: the caller gets the right answer
        dispatcher.warn_unplanned(error)
        return operation.torch_answer
