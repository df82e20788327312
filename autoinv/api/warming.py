"""Tuning ahead of time, and forgetting what was tuned."""

from __future__ import annotations

import time

import torch

from autoinv import settings, synced
from autoinv.api.problems import SAVE_WAIT_S, ShapeLike, files, problem_of
from autoinv.decisions import Decision
from autoinv.dispatch import Dispatcher
from autoinv.ops.table import DISPATCHERS, dispatcher
from autoinv.problem import Problem, parse_shape
from autoinv.synthetic import dense_stride


def warm(
    *shapes: ShapeLike,
    op: str = "inv",
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    budget: float | None = None,
) -> list[Decision]:
    """Tune these shapes now, for this process's thread count, and remember what was decided.

    Args:
        shapes: ``(10, 8, 3, 3)`` or ``"10x8x3x3"`` each.
        op: the operation.
        dtype: of the operands.
        device: of the operands.
        budget: seconds for each shape; the setting's when None.

    Returns:
        One decision for each shape that could be timed; what is known and settled is not timed again.

    Raises:
        ValueError: for a shape, dtype, device or operation that there is not.
        RuntimeError: when the mode forbids timing.

    Example:
        >>> import torch, autoinv
        >>> [d.problem.key for d in autoinv.warm((4, 2, 2), dtype=torch.float64)]  # doctest: +ELLIPSIS
        ['inv/4x2x2/float64/cpu/threads=.../contiguous']
    """
    mode = settings.current().mode
    if mode != "tune":
        raise RuntimeError(f"warm times strategies and mode is {mode!r}, which forbids it; use mode='tune'")
    chooser = dispatcher(op)
    problems = [problem_of(shape, op, dtype, device) for shape in shapes]
    budget_s = settings.current().budget if budget is None else float(budget)
    found = []
    for problem in problems:
        strides = [dense_stride(s, problem.layout) for s in problem.shapes]
        found.append(chooser.planner.warm(problem, strides, time.perf_counter(), budget_s))
    chooser.forget()
    return [decision for decision in found if decision]


def forget(
    shape: ShapeLike | None = None,
    *,
    op: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> int:
    """Forget decisions, so that they are made anew: all, or those of a shape, operation, dtype or device.

    Pins stay. Returns how many decisions were forgotten, in the files of this machine's environments.

    Raises:
        ValueError: for a shape or operation that there is not.

    Example:
        >>> import autoinv
        >>> autoinv.forget("10x8x3x3")
        0
    """
    sizes = parse_shape(shape) if isinstance(shape, str) else shape and tuple(map(int, shape))
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    where = None if device is None else torch.device(device)

    def is_meant(problem: Problem) -> bool:
        return (
            (sizes is None or problem.shape == sizes)
            and (op is None or problem.op == op)
            and (name is None or problem.dtype_name == name)
            and (where is None or _same_device(torch.device(problem.device), where))
        )

    chosen: list[Dispatcher] = list(DISPATCHERS.values()) if op is None else [dispatcher(op)]
    synced.drop(is_meant)
    count = sum(file.forget(is_meant, SAVE_WAIT_S) for file in files())
    for chooser in chosen:
        chooser.planner.forget()
        chooser.forget()
    return count


def _same_device(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (other.index is None or one.index == other.index)
