"""The public functions about decisions: ask, warm, pin, forget, configure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from autoinv import decisions, environment, native, pins, settings
from autoinv.decisions import Decision
from autoinv.dispatch import Dispatcher
from autoinv.errors import warn_once
from autoinv.ops.table import DISPATCHERS, dispatcher
from autoinv.problem import DTYPES, Problem, parse_shape
from autoinv.report import Explanation
from autoinv.settings import Settings
from autoinv.synthetic import dense_stride

ShapeLike = str | Sequence[int]

_SAVE_WAIT_S = 2.0
"""How long a command of a person waits for the file's lock; a call of a program waits within its budget."""


def configure(**changes: object) -> None:
    """Set settings for this process: mode, strategy, budget (seconds), cache_dir, log; None unsets one.

    Raises:
        ValueError: for a value that the setting does not take.
        TypeError: for a name that is no setting.

    Example:
        >>> import autoinv
        >>> autoinv.configure(budget=0.05)
        >>> autoinv.configure(budget=None)
    """
    _check_strategy(changes)
    settings.configure(**changes)


def using(**changes: object) -> AbstractContextManager[Settings]:
    """Set settings for this process while a block runs, as ``configure`` does; all threads see them.

    Raises:
        ValueError: for a value that the setting does not take.
        TypeError: for a name that is no setting.

    Example:
        >>> import torch, autoinv
        >>> with autoinv.using(mode="off"):
        ...     X = autoinv.inv(torch.eye(2))
    """
    _check_strategy(changes)
    return settings.using(**changes)


def explain(*operands: torch.Tensor, op: str = "inv") -> Explanation:
    """Say what would run for these operands, why, and how fast each candidate was; times nothing.

    Raises:
        ValueError: when there is no operation ``op``.

    Example:
        >>> import torch, autoinv
        >>> autoinv.explain(torch.eye(3)).source
        'reference'
    """
    chooser = dispatcher(op)
    if not chooser.takes(operands[0]):
        name = chooser.operation.references[0]
        return Explanation(None, name, "reference", "PyTorch's own call answers this kind of input", name)
    return explain_problem(Problem.of(op, *operands))


def explain_problem(problem: Problem) -> Explanation:
    """Say what would run for a problem; times nothing."""
    chooser = dispatcher(problem.op)
    plan = chooser.explain(problem)
    decision = plan.decision
    return Explanation(
        problem,
        plan.strategy.name,
        plan.source,
        plan.why,
        chooser.operation.reference(problem).name,
        dict(decision.seconds) if decision else {},
        dict(decision.rejected) if decision else {},
        tuple(_notes(problem, decision)),
    )


def _notes(problem: Problem, decision: Decision | None) -> list[str]:
    notes = []
    if decision and decision.contended:
        notes.append("timed while the processor was busy; a later process tunes it again")
    if decision and not decision.complete:
        notes.append("the budget ran out before all was timed; a later process tunes it again")
    missing = native.why_missing() if problem.on_cpu else None
    if missing:
        notes.append(f"the native kernels are missing: {missing}")
    return notes


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
        One decision for each shape that could be timed; a settled one that is known already is not timed again.

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


def problem_of(
    shape: ShapeLike,
    op: str = "inv",
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    layout: str = "contiguous",
) -> Problem:
    """Return the problem that a tensor of this shape would pose in this thread.

    Raises:
        ValueError: when no such tensor of square matrices can be.
    """
    sizes = parse_shape(shape) if isinstance(shape, str) else tuple(map(int, shape))
    if len(sizes) < 2 or sizes[-1] != sizes[-2] or min(sizes) < 1:
        raise ValueError(f"{op} takes batches of square matrices, such as 10x8x3x3, not the shape {sizes}")
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"{op} computes in {', '.join(DTYPES)}, not in {name}")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise ValueError(f"{device!r} is no device that torch knows; try cpu or cuda:0") from None
    if place.type == "cuda" and place.index is None and torch.cuda.is_available():
        place = torch.device("cuda", torch.cuda.current_device())
    if place.type not in ("cpu", "cuda") or (place.type == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"{op} has strategies for cpu and cuda; {place} is not available here")
    return Problem(op, (sizes,), DTYPES[name], str(place), torch.get_num_threads(), layout)


def pin(
    shape: ShapeLike,
    strategy: str,
    op: str = "inv",
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
) -> None:
    """Decide yourself: this shape runs by this strategy, whatever was or will be timed, until ``unpin``.

    Raises:
        ValueError: for a strategy that there is not, or that does not support the shape.

    Example:
        >>> import torch, autoinv
        >>> autoinv.pin((100, 3, 3), "closed_form")
        >>> autoinv.explain(torch.zeros(100, 3, 3)).source
        'pin'
        >>> autoinv.unpin((100, 3, 3))
        True
    """
    chooser = dispatcher(op)
    problem = problem_of(shape, op, dtype, device)
    found = chooser.operation.strategy(strategy)
    if found is None:
        raise ValueError(f"{op} has no strategy {strategy!r}; it has {', '.join(chooser.operation.names())}")
    if not found.supports(problem):
        raise ValueError(f"{strategy} does not support {problem.key}; pin one that does")
    if not pins.opened_pins(settings.cache_dir()).set(problem, strategy, _SAVE_WAIT_S):
        warn_once("pin not saved", "the pin could not be saved and holds in this process only", _CHECK)
    chooser.forget()


def unpin(
    shape: ShapeLike,
    op: str = "inv",
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
) -> bool:
    """Take a pin away; return whether there was one.

    Raises:
        ValueError: for a shape, dtype, device or operation that there is not.

    Example:
        >>> import autoinv
        >>> autoinv.unpin((7, 5, 5))
        False
    """
    chooser = dispatcher(op)
    removed = pins.opened_pins(settings.cache_dir()).remove(
        problem_of(shape, op, dtype, device), _SAVE_WAIT_S
    )
    chooser.forget()
    return removed


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
    count = sum(file.forget(is_meant, _SAVE_WAIT_S) for file in files())
    for chooser in chosen:
        chooser.planner.forget()
        chooser.forget()
    return count


def files() -> list[decisions.DecisionsFile]:
    """Return the decisions of every environment of this machine: the CPU's, and each visible GPU's."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    folder = settings.cache_dir()
    found = {file.path: file for file in (decisions.opened(folder, environment.of(d)) for d in devices)}
    return list(found.values())


def _same_device(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (other.index is None or one.index == other.index)


_CHECK = "Run `python -m autoinv.tune doctor` to see what is wrong with the file."


def _check_strategy(changes: dict[str, object]) -> None:
    name = changes.get("strategy")
    known = sorted({n for d in DISPATCHERS.values() for n in d.operation.names()})
    if name is not None and name not in known:
        raise ValueError(f"strategy is one of {', '.join(known)}, not {name!r}")
