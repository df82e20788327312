"""What a person names, as a problem: shapes, dtypes and devices; and the files that know about them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autoinv import decisions, environment, settings
from autoinv.problem import DTYPES, Problem, parse_shape

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


def files() -> list[decisions.DecisionsFile]:
    """Return the decisions of every environment of this machine: the CPU's, and each visible GPU's."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    folder = settings.cache_dir()
    found = {file.path: file for file in (decisions.opened(folder, environment.of(d)) for d in devices)}
    return list(found.values())
