"""Operands to time and check on: random, of a problem's shape, dtype, device and strides.

Never the caller's tensor, and never the global random state: a tuning must leave no trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from autoinv.problem import Shape

_SEED = 0x1A2B3C
_BLOCK = 1 << 16
"""Random numbers that are drawn; more are copies of these, because drawing a million takes 5 ms."""
_SPARSE = 4
_SMALL = 1 << 18
_GAP = 16
"""A storage is narrowed when it is so many times its tensor and so many numbers large; gaps of a cache line stay."""
_SLICE_WORK = 200_000
_SLICE_MOST = 64


def random_operand(shape: Shape, stride: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return a tensor of normal random numbers with these strides (in elements), or less sparse ones."""
    stride = without_wide_gaps(shape, stride)
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    generator = torch.Generator(device=device).manual_seed(_SEED)
    storage = torch.empty(span, dtype=dtype, device=device)
    filled = min(span, _BLOCK - 1)  # odd, so that a copy does not begin at the same place in its matrix
    storage[:filled] = torch.randn(filled, dtype=dtype, device=device, generator=generator)
    while filled < span:
        more = min(filled, span - filled)
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


def dense_stride(shape: Shape, layout: str) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps in this layout; strided stands for every other row."""
    stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    if layout == "transposed":
        stride[-2], stride[-1] = 1, shape[-2]
    elif layout == "strided":
        stride = [2 * step for step in stride]
    return tuple(stride)


def fewer(shape: Shape) -> Shape:
    """Return the shape with so few matrices that even a slow strategy answers within a millisecond or so."""
    n = max(shape[-1], 1)
    left = max(2, min(_SLICE_MOST, _SLICE_WORK // n**3))
    sizes = []
    for size in reversed(shape[:-2]):
        sizes.append(min(size, left))
        left = max(1, left // max(sizes[-1], 1))
    return (*reversed(sizes), *shape[-2:])
