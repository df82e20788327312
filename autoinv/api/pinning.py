"""Decisions that the user makes."""

from __future__ import annotations

import torch

from autoinv import settings
from autoinv.api.problems import SAVE_WAIT_S, ShapeLike, problem_of
from autoinv.errors import warn_once
from autoinv.ops.table import DEFAULT, operation_call
from autoinv.planning import agreement
from autoinv.problem import DTYPES
from autoinv.store import pins

_CHECK = "Run `python -m autoinv.tune doctor` to see what is wrong with the file."


def pin(
    shape: ShapeLike,
    strategy: str,
    op: str = DEFAULT,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Decide yourself: this shape runs by this strategy, whatever was or will be timed, until ``unpin``.

    Without a dtype it holds for every dtype in which the strategy supports the shape.

    Raises:
        ValueError: for a strategy that there is not, or that does not support the shape.
        TypeError: for a shape that is neither a text nor a sequence of whole numbers.

    Example:
        >>> import torch, autoinv
        >>> autoinv.pin((100, 3, 3), "closed_form")
        >>> autoinv.explain(torch.zeros(100, 3, 3)).source
        'pin'
        >>> autoinv.unpin((100, 3, 3))
        True
    """
    dispatcher = operation_call(op).dispatcher
    problems = [problem_of(shape, op, each, device) for each in _dtypes(dtype)]
    found = dispatcher.operation.strategy(strategy)
    if found is None:
        raise ValueError(
            f"{op} has no strategy {strategy!r}; it has {', '.join(dispatcher.operation.names())}"
        )
    supported = [problem for problem in problems if found.supports(problem)]
    if not supported:
        raise ValueError(f"{strategy} does not support {problems[0].key}; pin one that does")
    for problem in supported:
        agreement.drop_like(problem)
    if not pins.opened_pins(settings.cache_dir()).set_all(supported, strategy, SAVE_WAIT_S):
        warn_once("pin not saved", "the pin could not be saved and holds in this process only", _CHECK)
    dispatcher.forget()


def unpin(
    shape: ShapeLike,
    op: str = DEFAULT,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
) -> bool:
    """Take a pin away, without a dtype those of all dtypes; return whether there was one.

    Raises:
        ValueError: for a shape, dtype, device or operation that there is not.
        TypeError: for a shape that is neither a text nor a sequence of whole numbers.

    Example:
        >>> import autoinv
        >>> autoinv.unpin((7, 5, 5))
        False
    """
    dispatcher = operation_call(op).dispatcher
    problems = [problem_of(shape, op, each, device) for each in _dtypes(dtype)]
    for problem in problems:
        agreement.drop_like(problem)
    pinned = pins.opened_pins(settings.cache_dir())
    removed = [pinned.remove(problem, SAVE_WAIT_S) for problem in problems]
    dispatcher.forget()
    return any(removed)


def _dtypes(dtype: torch.dtype | str | None) -> list[torch.dtype | str]:
    return list(DTYPES.values()) if dtype is None else [dtype]
