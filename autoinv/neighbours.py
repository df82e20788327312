"""Which problems are neighbours: the same matrices, and about as many of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autoinv.problem import Problem, Shape, format_shape


def sorted_by_distance(problem: Problem, keys: Iterable[str]) -> list[str]:
    """Return the keys of this problem's neighbours, the nearest batch first.

    Everything but the batch is the same, and every operand's batch lies in the same power-of-two bucket. The
    problem itself is not among them.
    """
    start, end = f"{problem.op}/", _common_end(problem)
    # Two cheap tests first: a file may hold thousands of keys, and parsing one costs as much as fifty tests.
    alike = [key for key in keys if key.startswith(start) and key.endswith(end)]
    near = [(distance, key) for key in alike if (distance := _distance(problem, key)) is not None]
    return [key for _, key in sorted(near)]


def _common_end(problem: Problem) -> str:
    """Return how all neighbours' keys end: the last operand's matrix, and all that follows it."""
    rest = problem.key.split("/", 2)[2]
    return f"{format_shape(_matrix(problem.shapes[-1]))}/{rest}"


def _distance(problem: Problem, key: str) -> int | None:
    """Return how far that problem's batch is; None when it is no neighbour."""
    try:
        other = Problem.parse(key)
    except ValueError:
        return None
    if other == problem or list(map(_matrix, other.shapes)) != list(map(_matrix, problem.shapes)):
        return None
    pairs = [(_batch(a), _batch(b)) for a, b in zip(other.shapes, problem.shapes, strict=True)]
    if any(a.bit_length() != b.bit_length() for a, b in pairs):
        return None
    return sum(abs(a - b) for a, b in pairs)


def _matrix(shape: Shape) -> Shape:
    return shape[-2:]


def _batch(shape: Shape) -> int:
    return math.prod(shape[:-2])
