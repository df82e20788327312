"""Which problems are neighbours: the same matrices, and about as many of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from autoinv.problem import Problem
from autoinv.store.checks import check_key

_Batches = tuple[int, ...]


def bucket_of(key: str, core_dims: Sequence[int]) -> Hashable:
    """Return what a problem has in common with its neighbours.

    That is all but the batches, and the power of two below the batch count of each operand and of what they are
    broadcast to. ``core_dims`` says how many trailing dims of each operand make up one matrix; the rest are its batch.

    Raises:
        ValueError: when the text is no key, or of another number of operands.
    """
    return _place(key, core_dims)[0]


def dims_of(problem: Problem, core_dims: Sequence[int] | None) -> tuple[int, ...]:
    """Return how many trailing dims of each operand make up one matrix; 2 each where None is given."""
    return (2,) * len(problem.shapes) if core_dims is None else tuple(core_dims)


def sorted_by_distance(
    problem: Problem, keys: Iterable[str], core_dims: Sequence[int] | None = None
) -> list[str]:
    """Return the keys of this problem's neighbours, the nearest batch first, as an `Index` gives them."""
    index = Index(problem.op, dims_of(problem, core_dims))
    _, _, rest = problem.key.split("/", 2)
    index.add({key for key in keys if key.endswith(rest)})  # a cheap test first: there may be thousands
    return list(index.near(problem.key))


class Index:
    """One operation's keys by bucket, so that a look for neighbours costs what lies in one bucket, not in a file.

    Safe to use from any thread; keys are added, never taken out.
    """

    def __init__(self, op: str, core_dims: tuple[int, ...]) -> None:
        """Start with no key."""
        self._prefix = f"{op}/"
        self._core_dims = core_dims
        self._buckets: dict[Hashable, dict[str, _Batches]] = {}
        self._known: set[str] = set()

    def add(self, keys: AbstractSet[str]) -> None:
        """Put keys into their buckets; another operation's, and what is no key, are left out."""
        for key in keys - self._known:
            if key.startswith(self._prefix):
                try:
                    bucket, batches = _place(check_key(key), self._core_dims)
                except ValueError:
                    continue
                self._buckets.setdefault(bucket, {})[key] = batches
        self._known.update(keys)

    def near(self, key: str) -> Iterator[str]:
        """Return the keys of a problem's neighbours, the nearest batch first; its own is not among them."""
        bucket, batches = _place(key, self._core_dims)
        others = self._buckets.get(bucket, {}).copy()  # another thread may be adding
        others.pop(key, None)
        ranked = sorted((_distance(other, batches), name) for name, other in others.items())
        return (name for _, name in ranked if _is_key(name))


def _place(key: str, core_dims: Sequence[int]) -> tuple[Hashable, _Batches]:
    """Return the bucket of a key, and each operand's batch: cut by its separators, not checked (4 us less).

    Raises:
        ValueError: when it cannot be cut so.
    """
    op, shapes, rest = key.split("/", 2)
    batches, cores = [], []
    for shape, dims in zip(shapes.split(","), core_dims, strict=True):
        sizes = shape.split("x")
        cut = max(0, len(sizes) - dims)
        batches.append(list(map(int, sizes[:cut])))
        cores.append(tuple(sizes[cut:]))
    counts = list(map(math.prod, batches))
    if len(batches) > 1:  # of what is broadcast, the common batch counts as well
        counts.append(math.prod(map(max, itertools.zip_longest(*(b[::-1] for b in batches), fillvalue=1))))
    lengths = tuple([count.bit_length() for count in counts])
    return (op, tuple(cores), rest, lengths), tuple(counts)


def _distance(a: _Batches, b: _Batches) -> int:
    return sum([abs(x - y) for x, y in zip(a, b, strict=True)])


def _is_key(key: str) -> bool:
    try:
        Problem.parse(key)
    except ValueError:
        return False
    return True
