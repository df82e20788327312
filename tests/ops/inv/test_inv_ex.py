"""`inv_ex`: its info, what stands in the places of singular matrices, and what it does with its neighbours."""

from __future__ import annotations

import pytest
import torch

import autoinv
from autoinv.ops.inv import CALL

STRATEGIES = ("native", "native_parallel", "batched", "closed_form", "loop")


def matrices(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype, generator=generator) + 3 * torch.eye(shape[-1], dtype=dtype)


def with_singular(A):
    """Return the batch with singular matrices in it, and which ones they are.

    A column or row of zeros: the pivot is exactly 0 in whatever order LU sums.
    """
    flat = A.clone().reshape(-1, *A.shape[-2:])
    flat[0] = 0
    flat[len(flat) // 2, :, -1] = 0
    flat[-1, -1] = 0
    return flat.view(A.shape), torch.linalg.inv_ex(flat.view(A.shape)).info != 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(9, 1, 1), (2, 5, 3, 3), (9, 4, 4), (9, 17, 17)])
def test_info_and_the_results_of_singular_matrices_are_torchs(shape, dtype, strategy):
    A, is_singular = with_singular(matrices(*shape, dtype=dtype))
    assert is_singular.any() and not is_singular.all()
    with autoinv.using(strategy=strategy):
        for given in (A, A, A.mT.contiguous().mT):
            (inverse, info), expected = autoinv.inv_ex(given), torch.linalg.inv_ex(given)
            assert info.equal(expected.info) and info.dtype is torch.int32
            assert inverse.is_contiguous()
            singular, good = inverse[is_singular], inverse[~is_singular]
            torch.testing.assert_close(good, expected.inverse[~is_singular], rtol=1e-3, atol=1e-4)
            if given.is_contiguous():  # else infinite or NaN, as the memory lies: in torch itself too
                theirs = expected.inverse[is_singular]
                torch.testing.assert_close(singular, theirs, rtol=0, atol=0, equal_nan=True)
            assert not torch.isfinite(singular).all(-1).all(-1).any()
        with pytest.raises(torch.linalg.LinAlgError) as ours:
            autoinv.inv_ex(A, check_errors=True)
    with pytest.raises(torch.linalg.LinAlgError) as theirs:
        torch.linalg.inv_ex(A, check_errors=True)
    assert str(theirs.value) == str(ours.value)


@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_a_singular_neighbour_changes_no_bit_of_the_others(n):
    A = matrices(9, n, n)
    B, is_singular = with_singular(A)
    with autoinv.using(strategy="native"):
        alone, beside = autoinv.inv_ex(A), autoinv.inv_ex(B)
    unchanged = (A == B).all(-1).all(-1)
    assert unchanged.sum() == 6 and not (is_singular & unchanged).any()
    assert alone.inverse[unchanged].equal(beside.inverse[unchanged])


def test_a_single_singular_matrix_and_an_expanded_batch_of_them_are_marked():
    A = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    for given in (A, A.expand(5, 2, 2), A.expand(3, 5, 2, 2)):
        for _ in range(2):
            answer, expected = autoinv.inv_ex(given), torch.linalg.inv_ex(given)
            assert expected.info.equal(answer.info)
            torch.testing.assert_close(answer.inverse, expected.inverse, equal_nan=True)


def test_each_call_has_an_info_of_its_own():
    A = matrices(6, 3, 3)
    with autoinv.using(strategy="native"):
        autoinv.inv_ex(A).info.fill_(7)
        autoinv.inv_ex(A).info.fill_(7)
        assert not autoinv.inv_ex(A).info.any()


def test_the_fast_path_serves_known_problems_and_is_forgotten_with_them():
    A, memo = matrices(6, 3, 3), CALL.dispatcher.memo
    with autoinv.using(strategy="native"):
        autoinv.inv_ex(A)
        (ready,) = [key for key in memo if key[-1] == "ex"]
        _, no_errors = memo[ready]
        memo[ready] = (lambda A: torch.full_like(A, 5), no_errors)
        assert (autoinv.inv_ex(A).inverse == 5).all()
        memo[ready] = (lambda A: 1 / 0, no_errors)
    assert not memo
    torch.testing.assert_close(autoinv.inv_ex(A).inverse, torch.linalg.inv(A))


def test_a_strategy_that_fails_is_replaced_by_pytorchs_call_with_one_warning():
    A, memo = matrices(6, 3, 3), CALL.dispatcher.memo

    def fails(A, out=None):
        raise ValueError("failed")

    with autoinv.using(strategy="native"):
        autoinv.inv_ex(A)
        for key in list(memo):
            memo[key] = (fails, memo[key][1]) if key[-1] == "ex" else fails
        with pytest.warns(autoinv.AutoinvWarning, match="raised ValueError"):
            torch.testing.assert_close(autoinv.inv_ex(A).inverse, torch.linalg.inv(A))
        torch.testing.assert_close(autoinv.inv_ex(A).inverse, torch.linalg.inv(A))


def test_gradients_of_a_batch_with_a_singular_matrix_are_torchs():
    A = matrices(4, 3, 3)
    A[1] = 0
    A.requires_grad_()
    gradients = [
        torch.autograd.grad(f(A).inverse[[0, 2, 3]].sum(), A)[0]
        for f in (autoinv.inv_ex, torch.linalg.inv_ex)
    ]
    torch.testing.assert_close(*gradients, equal_nan=True)
