"""The bits of an inverse depend on the matrix alone: not on the batch, the place in it, the layout or the kernel."""

from __future__ import annotations

import math

import pytest
import torch
from native_calls import CODES, EXTENSION, by_dtype, isa, needs_extension

pytestmark = needs_extension
__all__ = ["isa"]  # a fixture

BATCH = 37
"""Two full blocks of lanes at most, and a remainder: both kernels serve, as they do a single matrix."""


def mixed(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Matrices of all kinds side by side: graded, integer, triangular, diagonal, sparse, with -0, singular, NaN."""
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(BATCH, n, n, dtype=dtype, generator=generator)
    steepest = math.log10(torch.finfo(dtype).eps)
    for i in range(0, BATCH, 5):
        A[i] *= torch.logspace(0, steepest * (0.5 + i / BATCH), n, dtype=dtype)
    A[1::7] = torch.randint(-2, 3, A[1::7].shape, generator=generator).to(dtype)
    A[2::7] = A[2::7].tril()
    A[3::7] = A[3::7].triu()
    A[4::7] = torch.diag_embed(A[4::7].diagonal(dim1=-2, dim2=-1))
    A[5::9].masked_fill_(torch.rand(A[5::9].shape, generator=generator) < 0.4, -0.0)
    A[6] = 0
    A[13, 0] = A[13, -1]
    A[20, 0, -1] = math.nan
    A[27] *= 1e-30 if dtype == torch.float32 else 1e-290
    return A


def bits(X: torch.Tensor) -> torch.Tensor:
    return X.contiguous().view(torch.int32 if X.dtype == torch.float32 else torch.int64)


def inverses(A: torch.Tensor, threads: int = 1, column_major: bool = False) -> tuple[torch.Tensor, list[int]]:
    """Return the inverses by the kernel for any strides, 7 where a matrix needs fallback, and which do."""
    X = torch.full(A.shape, 7.0, dtype=A.dtype)
    arguments = (A.data_ptr(), X.data_ptr(), CODES[A.dtype], tuple(A.shape), A.stride())
    if threads > 1:
        left = EXTENSION.inv_parallel_strided(*arguments, threads, column_major)
    else:
        left = EXTENSION.inv_strided(*arguments, column_major)
    return X.mT if column_major else X, left or []


def layouts(A: torch.Tensor) -> dict[str, torch.Tensor]:
    spread = torch.zeros(2 * A.shape[0], *A.shape[1:], 2, dtype=A.dtype)
    spread[1::2, ..., 1] = A
    return {
        "contiguous": A,
        "transposed": A.mT.contiguous().mT,
        "batch last": A.movedim(0, -1).contiguous().movedim(-1, 0),
        "strided": spread[1::2, ..., 1],
    }


@by_dtype
def test_a_matrix_has_the_same_inverse_alone_and_in_any_batch_layout_and_order(isa, dtype):
    different = []
    for n in range(1, 65):
        A = mixed(n, dtype)
        X, left = inverses(A)
        one_by_one = [inverses(a[None].contiguous()) for a in A]
        alone = torch.cat([x for x, _ in one_by_one])
        if left != [i for i, (_, found) in enumerate(one_by_one) if found] or not bits(X).equal(bits(alone)):
            different.append((n, "alone"))
        for name, B in layouts(A).items():
            for first, last in ((0, BATCH), (3, 22), (30, 31)):
                for column_major in (False, True):
                    Y, found = inverses(B[first:last], column_major=column_major)
                    is_same = found == [i - first for i in left if first <= i < last]
                    if not is_same or not bits(Y).equal(bits(X[first:last])):
                        different.append((n, name, first, last, column_major))
    assert different == []


@by_dtype
@pytest.mark.parametrize("n", (3, 7, 11, 16, 20))
def test_a_pool_of_threads_changes_no_bit(isa, dtype, n):
    A = mixed(n, dtype).repeat(9, 1, 1)[:-5]
    X, left = inverses(A)
    for threads in (2, 3):
        for column_major in (False, True):
            Y, found = inverses(A, threads, column_major)
            assert found == left
            assert bits(X).equal(bits(Y))


@by_dtype
def test_results_stored_column_major_lie_transposed_in_memory(isa, dtype):
    for n in (2, 5, 9, 16, 33):
        A = mixed(n, dtype)
        X, Y = torch.full_like(A, 7.0), torch.full_like(A, 7.0)
        arguments = (CODES[dtype], n, BATCH)
        assert EXTENSION.inv(A.data_ptr(), X.data_ptr(), *arguments) == EXTENSION.inv(
            A.data_ptr(), Y.data_ptr(), *arguments, True
        )
        assert bits(X).equal(bits(Y.mT))
