"""Dims that vmap maps, as leading dims of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from autoinv.operation import Operands, Operation


def with_leading_batch(
    operation: Operation, operands: Sequence[Tensor], mapped_dims: Sequence[int | None]
) -> Operands:
    """Return the operands with each one's mapped dim as the first of the common batch.

    An operand without a mapped dim (None) is broadcast; one with fewer batch dims than another gets dims of size 1
    behind the mapped one, so that all mapped dims meet.
    """
    if len(operands) == 1:
        (only,), (dim,) = operands, mapped_dims
        return (only.movedim(dim, 0) if dim else only,)
    fronted = [x if d is None else x.movedim(d, 0) for x, d in zip(operands, mapped_dims, strict=True)]
    is_mapped = [d is not None for d in mapped_dims]
    shapes = [x.shape[mapped:] for x, mapped in zip(fronted, is_mapped, strict=True)]
    batch_dims = [len(shape) - core for shape, core in zip(shapes, operation.core_dims(shapes), strict=True)]
    most = max(batch_dims)
    return tuple(
        x.reshape(x.shape[0], *[1] * (most - own), *x.shape[1:]) if mapped and own < most else x
        for x, mapped, own in zip(fronted, is_mapped, batch_dims, strict=True)
    )
