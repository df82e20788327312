"""Tuning ahead of time, and forgetting what was tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from autoinv import settings
from autoinv.api.problems import (
    SAVE_WAIT_S,
    ShapeLike,
    device_of,
    dtype_name_of,
    files,
    problem_of,
    shapes_of,
)
from autoinv.errors import warn_once
from autoinv.ops.table import DEFAULT, OPERATIONS, forget_plans, operation_call
from autoinv.planning import agreement
from autoinv.problem import Problem
from autoinv.store.decisions import Decision
from autoinv.tuning.operands import dense_strides

_MOST_NAMED = 8
"""Problems that a warning names; of more it says how many."""


def warm(
    *shapes: ShapeLike,
    op: str = DEFAULT,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    budget: float | None = None,
) -> list[Decision]:
    """Tune these shapes now, for this process's thread count, and remember what was decided.

    Args:
        shapes: ``(10, 8, 3, 3)`` or ``"10x8x3x3"`` each; of an operation with two operands
            ``"80x3x3,80x3x3"`` or a tuple of two shapes.
        op: the operation.
        dtype: of the operands.
        device: of the operands.
        budget: seconds for each shape; the setting's when None.

    Returns:
        One decision for each shape that could be timed; what is known and final is not timed again. A shape
        for which there was no time, say because another thread was tuning all the while, has none: a warning
        names it.

    Raises:
        ValueError: for a shape, dtype, device, operation or budget that there is not.
        TypeError: for a shape that is neither a text nor a sequence of whole numbers.
        RuntimeError: when the mode forbids timing.

    Example:
        >>> import torch, autoinv
        >>> [d.problem.key for d in autoinv.warm((4, 2, 2), dtype=torch.float64)]  # doctest: +ELLIPSIS
        ['inv/4x2x2/float64/cpu/threads=.../contiguous']
    """
    return warm_problems([problem_of(shape, op, dtype, device) for shape in shapes], budget)


def warm_problems(problems: Sequence[Problem], budget: float | None = None) -> list[Decision]:
    """Tune these problems, of this process's thread count, as `warm` does.

    Raises:
        ValueError: for a budget that there is not.
        RuntimeError: when the mode forbids timing.
    """
    mode = settings.current().mode
    if mode != "tune":
        raise RuntimeError(f"warm times strategies and mode is {mode!r}, which forbids it; use mode='tune'")
    budget_s = settings.check({"budget": budget})["budget"]
    if not isinstance(budget_s, float):
        budget_s = settings.current().budget
    found: list[Decision] = []
    untuned: dict[str, list[str]] = {}
    for problem in problems:
        planner = operation_call(problem.op).dispatcher.planner
        plan = planner.warm(problem, dense_strides(problem), budget_s)
        if plan.decision:
            found.append(plan.decision)
        else:
            untuned.setdefault(plan.why, []).append(problem.key)
    forget_plans()
    _warn_untuned(untuned)
    return found


def _warn_untuned(untuned: Mapping[str, Sequence[str]]) -> None:
    for why, keys in untuned.items():
        named = ", ".join(keys[:_MOST_NAMED])
        more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
        warn_once(
            f"not warmed, {why}: {named}",
            f"warm could not tune {named}{more}: {why}",
            "Call it again when that has passed, or with a larger budget; else first calls tune them.",
        )


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
        ValueError: for a shape, dtype, device or operation that there is not.
        TypeError: for a shape that is neither a text nor a sequence of whole numbers.

    Example:
        >>> import autoinv
        >>> autoinv.forget("10x8x3x3")
        0
    """
    shapes = None if shape is None else shapes_of(shape)
    name = None if dtype is None else dtype_name_of(dtype, op or "autoinv")
    where = None if device is None else device_of(device)

    def is_meant(problem: Problem) -> bool:
        return (
            (shapes is None or problem.shapes == shapes)
            and (op is None or problem.op == op)
            and (name is None or problem.dtype_name == name)
            and (where is None or _same_device(torch.device(problem.device), where))
        )

    calls = list(OPERATIONS.values()) if op is None else [operation_call(op)]
    agreement.drop(is_meant)
    count = sum(file.forget(is_meant, SAVE_WAIT_S) for file in files())
    for call in calls:
        call.dispatcher.planner.forget(is_meant, shapes)
        call.dispatcher.forget()
    return count


def _same_device(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (other.index is None or one.index == other.index)
