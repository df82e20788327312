"""Which problems are neighbours: the same matrices, and about as many of them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

from autoinv.problem import Problem
from autoinv.store.decision import check_key

_Batches = tuple[int, ...]
_Bucket = tuple[object, ...]


class Index:
    """Keys by bucket, so that a look for neighbours costs what lies in one bucket, not what a file holds.

    Safe to use from any thread; keys are added, never taken out.
    """

    def __init__(self) -> None:
        """Start with no key."""
        self._buckets: dict[_Bucket, dict[str, _Batches]] = {}
        self._known: set[str] = set()

    def add(self, keys: Iterable[str]) -> None:
        """Put keys into their buckets; what is no key is left out, here or when it is looked at."""
        for key in keys:
            if key not in self._known:
                try:
                    bucket, batches = _place(check_key(key))
                except ValueError:
                    continue
                self._buckets.setdefault(bucket, {})[key] = batches
                self._known.add(key)

    def near(self, problem: Problem) -> Iterator[str]:
        """Yield the keys of this problem's neighbours, the nearest batch first.

        Everything but the batch is the same, and every operand's batch lies in the same power-of-two bucket. The
        problem itself is not among them.
        """
        bucket, batches = _place(problem.key)
        others = self._buckets.get(bucket, {}).copy()  # another thread may be adding
        others.pop(problem.key, None)
        ranked = [(_distance(other, batches), key) for key, other in others.items()]
        heapq.heapify(ranked)  # not sorted: mostly the first will do
        while ranked:
            key = heapq.heappop(ranked)[1]
            if _is_key(key):
                yield key


def sorted_by_distance(problem: Problem, keys: Iterable[str]) -> list[str]:
    """Return the keys of this problem's neighbours, the nearest batch first, as an `Index` yields them."""
    index = Index()
    _, _, rest = problem.key.split("/", 2)
    index.add(key for key in keys if key.endswith(rest))  # a cheap test first: there may be thousands
    return list(index.near(problem))


def _place(key: str) -> tuple[_Bucket, _Batches]:
    """Return the bucket of a key, and each operand's batch: cut by its separators, not checked (4 us less).

    Raises:
        ValueError: when it cannot be cut so.
    """
    op, shapes, rest = key.split("/", 2)
    sizes = [shape.split("x") for shape in shapes.split(",")]
    batches = tuple([math.prod(map(int, size[:-2])) for size in sizes])
    matrices = tuple([tuple(size[-2:]) for size in sizes])
    return (op, matrices, rest, tuple([batch.bit_length() for batch in batches])), batches


def _distance(a: _Batches, b: _Batches) -> int:
    return sum([abs(x - y) for x, y in zip(a, b, strict=True)])


def _is_key(key: str) -> bool:
    try:
        Problem.parse(key)
    except ValueError:
        return False
    return True
