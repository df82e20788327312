"""What the machinery must know of the operation `inv`, and its one dispatcher."""

from __future__ import annotations

import torch
from torch import Tensor

from autoinv.operation import Operands, Operation, Strides
from autoinv.ops.inv.accuracy import reject_reason
from autoinv.ops.inv.strategies import TABLE
from autoinv.ops.inv.strategies._lu import batched_is_broken, inv, inv_into
from autoinv.planning.dispatch import Dispatcher
from autoinv.problem import Problem
from autoinv.tuning.operands import fewer, random_operand


def _operands(problem: Problem, strides: Strides) -> Operands:
    return (random_operand(problem.shape, strides[0], problem.dtype, problem.device),)


def _sliced(problem: Problem) -> Problem:
    shapes = (fewer(problem.shape),)
    return Problem(problem.op, shapes, problem.dtype, problem.device, problem.threads, problem.layout)


def _reject_reason(operands: Operands, result: Tensor, expected: Tensor) -> str | None:
    return reject_reason(operands[0], result, expected)


INV = Operation("inv", TABLE, ("batched", "loop"), _operands, _sliced, _reject_reason)


def torch_inv(A: Tensor, out: Tensor | None = None) -> Tensor:
    """Return PyTorch's own answer, contiguous; matrix by matrix where its call on the batch is broken.

    Raises:
        Exception: whatever ``torch.linalg.inv`` raises.
    """
    if torch._C._get_tracing_state() is None:  # a trace would record the sizes
        if Dispatcher.takes(A):
            problem = Problem.of(INV.name, A)
            if batched_is_broken(problem):
                return INV.reference(problem).bind(problem)(A, out)
        elif out is None and A.layout is torch.strided and not A.numel():
            # `contiguous` leaves the column-major strides of an empty result as they are.
            return inv(A).clone(memory_format=torch.contiguous_format)
    return inv(A).contiguous() if out is None else inv_into(A, out)


DISPATCHER = Dispatcher(INV, torch_inv)
