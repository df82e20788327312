"""Operands to time and check on: random, of a problem's shapes, dtype, device and strides; and its slices.

Never the caller's tensors, and never the global random state: a tuning must leave no trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from autoinv import fork
from autoinv.operation import Operands, Operation, Strides
from autoinv.problem import Problem, Shape

_SEED = 0x1A2B3C
_BLOCK = 1 << 15
"""Random numbers that are drawn; more are copies of these, because drawing a million takes 5 ms."""
_COPIED = 30_000
"""Copied at a time: torch wakes no team of threads for so few, and the cache holds them."""
_SPARSE = 4
_SMALL = 1 << 18
_GAP = 16
"""A storage is narrowed when it is so many times its tensor and so many numbers large; gaps of a cache line stay."""
_SLICE_WORK = 200_000
"""Multiplications in the first slice: even a slow strategy answers within a millisecond or so."""
_SLICE_WORK_ALONE = 8_000
"""... in a forked child: beyond it torch's own products, which check the results, wake a team."""
_SLICE_MOST = 64
_SLICE_GROWTH = 16
"""Each further slice is so many times as large: what is parallel, or a launch, shows on large ones alone."""


def random_operands(problem: Problem, strides: Strides) -> Operands:
    """Return tensors of normal random numbers with these strides (in elements), or less sparse ones."""
    return tuple(
        random_operand(shape, stride, problem.dtype, problem.device, _SEED + position)
        for position, (shape, stride) in enumerate(zip(problem.shapes, strides, strict=True))
    )


def random_operand(
    shape: Shape, stride: Sequence[int], dtype: torch.dtype, device: str, seed: int = _SEED
) -> torch.Tensor:
    """Return a tensor of normal random numbers with these strides (in elements), or less sparse ones."""
    stride = without_wide_gaps(shape, stride)
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    generator = torch.Generator(device=device).manual_seed(seed)
    storage = torch.empty(span, dtype=dtype, device=device)
    filled = min(span, _BLOCK - 1)  # odd, so that a copy does not begin at the same place in its matrix
    storage[:filled] = torch.randn(filled, dtype=dtype, device=device, generator=generator)
    while filled < span:
        more = min(_COPIED, filled, span - filled)
        storage[filled : filled + more] = storage[:more]
        filled += more
    return storage.as_strided(tuple(shape), tuple(stride))


def without_wide_gaps(shape: Shape, stride: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, with wide gaps narrowed where the tensor is a small part of a large storage.

    A corner of every matrix of a 20 GB tensor must not cost 20 GB to time; what is kept is that rows, and
    matrices, lie apart.
    """
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if reach <= max(_SPARSE * math.prod(shape), _SMALL):
        return tuple(stride)
    narrowed = list(stride)
    extent = 1
    for d in sorted(range(len(shape)), key=lambda d: stride[d]):
        if shape[d] > 1 and stride[d] > 0:
            narrowed[d] = min(stride[d], max(2 * extent, extent + _GAP))
            extent += (shape[d] - 1) * narrowed[d]
    return tuple(narrowed)


def dense_strides(problem: Problem) -> Strides:
    """Return strides for the problem's layouts, an operand each, for tensors without gaps."""
    return [
        dense_stride(shape, layout) for shape, layout in zip(problem.shapes, problem.layouts, strict=True)
    ]


def dense_stride(shape: Shape, layout: str) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps in this layout; strided stands for every other row."""
    stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    if layout == "transposed":
        stride[-2], stride[-1] = 1, shape[-2]
    elif layout == "expanded":
        stride[:-2] = [0] * len(stride[:-2])
    elif layout == "strided":
        stride = [2 * step for step in stride]
    return tuple(stride)


def slices(operation: Operation, problem: Problem) -> list[Problem]:
    """Return the problem with fewer elements in its batch, the smallest slice first, and the whole last.

    The first holds 64 elements, or fewer large ones; the last but one is at least twice smaller than the whole.
    """
    whole = operation.batch(problem)
    slice_work = _SLICE_WORK_ALONE if fork.is_child else _SLICE_WORK
    most = max(2, min(_SLICE_MOST, slice_work // max(operation.work(*problem.shapes), 1)))
    found = [_sliced(operation, problem, most)]
    while (most := most * _SLICE_GROWTH) <= whole // 2:
        found.append(_sliced(operation, problem, most))
    return found if operation.batch(found[-1]) == whole else [*found, problem]


def _sliced(operation: Operation, problem: Problem, most: int) -> Problem:
    """Return the problem with at most so many elements in its batch: one cut of the common batch, for all operands."""
    batch = _fewer(operation.batch_shape(problem.shapes), most)
    shapes = []
    for shape, core in zip(problem.shapes, operation.core_dims(problem.shapes), strict=True):
        own = len(shape) - core
        cut = batch[len(batch) - own :]
        shapes.append((*map(min, shape[:own], cut), *shape[own:]))
    return replace(problem, shapes=tuple(shapes))


def _fewer(batch: Shape, most: int) -> Shape:
    """Return the batch cut to at most so many elements, the last dim first."""
    sizes = []
    for size in reversed(batch):
        sizes.append(min(size, most))
        most = max(1, most // max(sizes[-1], 1))
    return tuple(reversed(sizes))
