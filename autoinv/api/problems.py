"""What the user names, as a problem: shapes, dtypes and devices; and the files that know about them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch

from autoinv import environment, settings
from autoinv.operation import Operation
from autoinv.ops.table import DEFAULT, operation_call
from autoinv.problem import DTYPES, MOST_DIMS, Problem, Shape, format_shapes, parse_shape
from autoinv.store import decisions

OneShape = str | Sequence[int]
ShapeLike = OneShape | Sequence[OneShape]
"""One operand's shape, ``(10, 8, 3, 3)`` or ``"10x8x3x3"``; or one an operand, ``"80x3x3,80x3x3"`` or a tuple."""

SAVE_WAIT_S = 2.0
"""How long a command of the user waits for the file's lock; a call of a program waits within its budget."""


def problem_of(
    shape: ShapeLike,
    op: str = DEFAULT,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    layouts: Sequence[str] = ("contiguous",),
) -> Problem:
    """Return the problem that tensors of this shape would pose in this thread; one layout is that of all operands.

    Raises:
        ValueError: when the operation takes no such tensors.
        TypeError: for a shape that is neither a text nor a sequence of whole numbers.
    """
    operation = operation_call(op).operation
    shapes = shapes_of(shape)
    _check(operation, shapes)
    name = dtype_name_of(dtype, op)
    place = device_of(device)
    if place.type == "cuda" and place.index is None and torch.cuda.is_available():
        place = torch.device("cuda", torch.cuda.current_device())
    if place.type not in ("cpu", "cuda") or (place.type == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"{op} has strategies for cpu and cuda; {place} is not available here")
    each = tuple(layouts) * len(shapes) if len(layouts) == 1 else tuple(layouts)
    if len(each) != len(shapes):
        raise ValueError(
            f"{op} takes {len(shapes)} operands, and {','.join(layouts)} are {len(each)} layouts"
        )
    return Problem(op, shapes, DTYPES[name], str(place), torch.get_num_threads(), each)


def _check(operation: Operation, shapes: Sequence[Shape]) -> None:
    count = len(operation.operand_names)
    if len(shapes) != count:
        raise ValueError(
            f"{operation.name} takes the shapes of {count} operand{'s' if count != 1 else ''} at once, such as "
            f"{','.join(['80x3x3'] * count)}, not {format_shapes(shapes)}"
        )
    most = max(map(len, shapes))
    if most > MOST_DIMS:
        raise ValueError(f"PyTorch computes on at most {MOST_DIMS} dims, and this shape has {most}")
    if min(min(shape, default=1) for shape in shapes) < 1 or not operation.fits(*shapes):
        shown = ", ".join(map(str, shapes))
        raise ValueError(f"{operation.name} takes {operation.takes_what}, not the shape {shown}")


def shapes_of(shape: ShapeLike) -> tuple[Shape, ...]:
    """Return the sizes that are named, one shape an operand.

    In a text, a comma stands between operands where a part holds an ``x``, else between sizes.

    Raises:
        ValueError: for a text that is no shape.
        TypeError: for what is neither a text nor a sequence of whole numbers.
    """
    if isinstance(shape, str):
        parts = shape.split(",")
        if len(parts) > 1 and not any("x" in part for part in parts):
            return (parse_shape("x".join(part.strip() for part in parts)),)
        return tuple(parse_shape(part.strip()) for part in parts)
    if isinstance(shape, Iterable) and not isinstance(shape, torch.Tensor):
        sizes = list(shape)
        is_shape = [
            isinstance(size, Sequence) and not (isinstance(size, str) and size.isdigit()) for size in sizes
        ]
        if sizes and all(is_shape):
            return tuple(only for size in sizes for only in shapes_of(size))  # type: ignore[arg-type]
    try:
        return (tuple(map(operator.index, shape)),)  # type: ignore[arg-type]  # what it is not raises below
    except TypeError:
        raise TypeError(
            f"a shape is a tuple of whole numbers, (10, 8, 3, 3), or a text, '10x8x3x3', not {shape!r:.80}"
        ) from None


def dtype_name_of(dtype: torch.dtype | str, op: str) -> str:
    """Return a dtype's name without ``torch.``.

    Raises:
        ValueError: when the operation does not compute in it.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"{op} computes in {', '.join(DTYPES)}, not in {name}")
    return name


def device_of(device: torch.device | str) -> torch.device:
    """Return the device, as tensors on it show it: ``cpu:0`` is ``cpu``.

    Raises:
        ValueError: when torch knows no such device.
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"{device!r} is no device that torch knows; try cpu or cuda:0") from None
    return torch.device("cpu") if place.type == "cpu" else place


def files() -> list[decisions.DecisionsFile]:
    """Return the decisions of every environment of this machine: the CPU's, and each visible GPU's."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    folder = settings.cache_dir()
    found = {file.path: file for file in (decisions.opened(folder, environment.of(d)) for d in devices)}
    return list(found.values())
