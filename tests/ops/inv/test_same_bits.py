"""`inv(A)[i]` and `inv(A[i])` are the same bits by `native`, also where torch must compute some of the matrices."""

from __future__ import annotations

import pytest
import torch
from native_calls import needs_extension

import autoinv
from autoinv.ops.inv import inv_as_torch
from autoinv.ops.inv.strategies._kernels import kernels
from autoinv.ops.inv.strategies._lu import lu_inverses

BATCH = 37


def with_doubtful(n: int, dtype: torch.dtype, every: int) -> torch.Tensor:
    """Gaussian matrices, each ``every``-th too close to a singular one for the kernels, but not singular."""
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(BATCH, n, n, dtype=dtype, generator=generator)
    A[::every, :, 0] *= (
        torch.finfo(dtype).eps ** 2
    )  # a column of next to nothing: its pivot is below rounding
    return A


@needs_extension
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_a_matrix_has_the_same_bits_alone_and_among_any_neighbours(dtype):
    different = []
    with autoinv.using(strategy="native"):
        for n in range(1, 65):
            for every in (37, 9, 2):  # one that torch must compute, a few, and more than a few
                A = with_doubtful(n, dtype, every)
                X = autoinv.inv(A)
                places = [0, every, 5, 11, 36] if every < BATCH else [0, 5, 36]
                for i in places:
                    alone = (
                        autoinv.inv(A[i]),
                        autoinv.inv(A[i].mT.contiguous().mT),
                        inv_as_torch(A[i : i + 1])[0],
                    )
                    if not all(torch.equal(x, X[i]) for x in alone):
                        different.append((n, every, i))
    assert different == []


@needs_extension
def test_the_matrices_of_that_test_do_need_torch():
    A = with_doubtful(12, torch.float64, 9)
    X = torch.empty_like(A)
    assert kernels().inv(A.data_ptr(), X.data_ptr(), 1, 12, BATCH) == [0, 9, 18, 27, 36]


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.complex64, torch.complex128), ids=str)
def test_what_torch_computes_again_has_the_same_bits_in_any_number(dtype):
    different = []
    for n in (2, 3, 7, 8, 9, 11, 13, 15, 16, 17, 25, 33):
        A = torch.randn(BATCH, n, n, dtype=dtype, generator=torch.Generator().manual_seed(n))
        every = lu_inverses(A, torch.arange(BATCH), is_matrix=False)
        for i in (0, 1, 6, 17, 36):
            alone = lu_inverses(A[i : i + 1], torch.tensor([0]), is_matrix=True)[0]
            few = lu_inverses(A, torch.tensor([i, 3, 4]), is_matrix=False)[0]
            if not (torch.equal(every[i], alone) and torch.equal(every[i], few)):
                different.append((n, i))
    assert different == []
