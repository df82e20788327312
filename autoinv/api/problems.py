"""What a person names, as a problem: shapes, dtypes and devices; and the files that know about them."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from autoinv import environment, settings
from autoinv.problem import DTYPES, MOST_DIMS, Problem, Shape, parse_shape
from autoinv.store import decisions

ShapeLike = str | Sequence[int]

SAVE_WAIT_S = 2.0
"""How long a command of a person waits for the file's lock; a call of a program waits within its budget."""


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
        TypeError: for a shape that is neither a text nor a sequence of whole numbers.
    """
    sizes = sizes_of(shape)
    if len(sizes) < 2 or sizes[-1] != sizes[-2] or min(sizes) < 1:
        raise ValueError(f"{op} takes batches of square matrices, such as 10x8x3x3, not the shape {sizes}")
    if len(sizes) > MOST_DIMS:
        raise ValueError(f"PyTorch computes on at most {MOST_DIMS} dims, and this shape has {len(sizes)}")
    name = dtype_name_of(dtype, op)
    place = device_of(device)
    if place.type == "cuda" and place.index is None and torch.cuda.is_available():
        place = torch.device("cuda", torch.cuda.current_device())
    if place.type not in ("cpu", "cuda") or (place.type == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"{op} has strategies for cpu and cuda; {place} is not available here")
    return Problem(op, (sizes,), DTYPES[name], str(place), torch.get_num_threads(), layout)


def sizes_of(shape: ShapeLike) -> Shape:
    """Return the sizes that a shape names.

    Raises:
        ValueError: for a text that is no shape.
        TypeError: for what is neither a text nor a sequence of whole numbers.
    """
    if isinstance(shape, str):
        return parse_shape(shape)
    try:
        return tuple(map(operator.index, shape))
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
