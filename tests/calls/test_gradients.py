"""Reverse, double backward, forward and batched gradients of the inverse, in eager mode."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import autoinv
from autoinv.ops.inv import CALL

GRADIENT_DTYPES = (torch.float64, torch.complex128)


def matrices(shape, dtype=torch.float64, seed=0):
    """Well-conditioned, non-symmetric matrices of this shape."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(shape, dtype=dtype, generator=generator)
    return A + 3 * torch.eye(shape[-1], dtype=dtype)


def leaf(shape, dtype=torch.float64, seed=0):
    return matrices(shape, dtype, seed).requires_grad_()


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES)
@pytest.mark.parametrize("shape", [(3, 3), (4, 2, 2), (2, 2, 3, 3), (2, 5, 5), (1, 1)])
def test_every_first_derivative_agrees_with_finite_differences(dtype, shape):
    A = leaf(shape, dtype)
    assert gradcheck(
        autoinv.inv,
        (A,),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES)
@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2)])
def test_every_second_derivative_agrees_with_finite_differences(dtype, shape):
    A = leaf(shape, dtype)
    assert gradgradcheck(
        autoinv.inv, (A,), check_batched_grad=True, check_fwd_over_rev=True, check_rev_over_rev=True
    )


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES)
def test_the_inverse_of_inv_ex_is_differentiable_and_its_info_is_not(dtype):
    A = leaf((2, 3, 3), dtype)
    answer = autoinv.inv_ex(A)
    assert answer.inverse.requires_grad
    assert not answer.info.requires_grad
    assert gradcheck(
        lambda A: autoinv.inv_ex(A).inverse, (A,), check_forward_ad=True, check_batched_grad=True
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 16, 33, 64, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_the_gradient_equals_that_of_torch_at_every_size(n, dtype):
    A = leaf((3, n, n), dtype) if n < 33 else (matrices((3, n, n), dtype) + n * torch.eye(n)).requires_grad_()
    G = matrices((3, n, n), dtype, seed=1)
    (expected,) = torch.autograd.grad(torch.linalg.inv(A), A, G)
    (actual,) = torch.autograd.grad(autoinv.inv(A), A, G)
    tolerance = 1e-4 if dtype in (torch.float32, torch.complex64) else 1e-10
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("strategy", autoinv.ops.inv.operation.INV.names())
def test_the_gradient_is_the_same_whichever_strategy_answers(strategy):
    A = leaf((2, 5, 3, 3))
    expected = torch.autograd.grad(torch.linalg.inv(A).pow(3).sum(), A)[0]
    with autoinv.using(strategy=strategy):
        actual = torch.autograd.grad(autoinv.inv(A).pow(3).sum(), A)[0]
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda G: G,
        lambda G: G.mT,
        lambda G: G[:1].expand(4, 3, 3),
        lambda G: torch.ones((), dtype=G.dtype).expand(4, 3, 3),
        lambda G: torch.complex(G, G).conj().imag,
        lambda G: torch.cat([G, G])[::2],
    ],
    ids=["contiguous", "transposed", "expanded", "one number", "neg view", "every second"],
)
def test_a_gradient_in_any_layout_gives_the_same(gradient):
    A = leaf((4, 3, 3))
    G = gradient(matrices((4, 3, 3), seed=1))
    (expected,) = torch.autograd.grad(torch.linalg.inv(A), A, G)
    (actual,) = torch.autograd.grad(autoinv.inv(A), A, G)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "view",
    [lambda A: A.mT, lambda A: A[:, ::2], lambda A: A[:1].expand(3, 4, 3, 3), lambda A: A[2, 3]],
    ids=["transposed", "every second", "expanded", "offset"],
)
def test_the_gradient_flows_through_a_view(view):
    A = leaf((3, 4, 3, 3))
    expected = torch.autograd.grad(torch.linalg.inv(view(A)).pow(3).sum(), A)[0]
    actual = torch.autograd.grad(autoinv.inv(view(A)).pow(3).sum(), A)[0]
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("view", [lambda A: A.conj(), lambda A: A.mH], ids=["conj", "mH"])
def test_the_gradient_flows_through_a_lazy_conjugate(view):
    A = leaf((3, 3, 3), torch.complex128)
    expected = torch.autograd.grad(torch.linalg.inv(view(A)).abs().sum(), A)[0]
    actual = torch.autograd.grad(autoinv.inv(view(A)).abs().sum(), A)[0]
    torch.testing.assert_close(actual, expected)


def test_the_gradient_flows_through_a_lazy_negation():
    C = leaf((2, 3, 3), torch.complex128)
    shift = 5 * torch.eye(3, dtype=torch.float64)
    expected = torch.autograd.grad(torch.linalg.inv(C.conj().imag + shift).sum(), C)[0]
    actual = torch.autograd.grad(autoinv.inv(C.conj().imag + shift).sum(), C)[0]
    torch.testing.assert_close(actual, expected)
    imag = matrices((2, 3, 3), torch.complex128).conj().imag.requires_grad_()
    assert imag.is_neg()
    torch.testing.assert_close(autoinv.inv(imag), torch.linalg.inv(imag))


def test_a_call_with_a_gradient_tunes_and_stores_its_decision():
    A = leaf((80, 3, 3))
    autoinv.inv(A)
    assert autoinv.explain(A.detach()).source in ("tuned", "file")


def test_a_call_without_a_gradient_uses_the_memo_of_one_with_a_gradient():
    A = leaf((80, 3, 3))
    while not CALL.dispatcher.memo:  # a contended decision serves once and is tuned again
        autoinv.inv(A)
    remembered = dict(CALL.dispatcher.memo)
    autoinv.inv(A.detach())
    assert remembered == dict(CALL.dispatcher.memo)


def test_without_grad_mode_nothing_is_recorded():
    with torch.no_grad():
        assert not autoinv.inv(leaf((2, 3, 3))).requires_grad


def test_two_backward_passes_accumulate():
    A, B = leaf((2, 3, 3)), leaf((2, 3, 3))
    for _ in range(2):
        autoinv.inv(A).sum().backward()
        torch.linalg.inv(B).sum().backward()
    torch.testing.assert_close(A.grad, B.grad)


def test_a_result_that_was_overwritten_is_noticed_by_backward():
    X = autoinv.inv(leaf((2, 3, 3)))
    total = X.sum()
    X.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_second_derivative_by_two_grad_calls_equals_torchs():
    def second(inv):
        A = leaf((2, 3, 3))
        (first,) = torch.autograd.grad(inv(A).pow(3).sum(), A, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), A)[0]

    torch.testing.assert_close(second(autoinv.inv), second(torch.linalg.inv))


def test_a_dual_tensor_keeps_its_tangent():
    A, dA = matrices((2, 3, 3)), matrices((2, 3, 3), seed=1)
    with forward_ad.dual_level():
        expected = forward_ad.unpack_dual(torch.linalg.inv(forward_ad.make_dual(A, dA)))
        actual = forward_ad.unpack_dual(autoinv.inv(forward_ad.make_dual(A, dA)))
        torch.testing.assert_close(actual.primal, expected.primal)
        torch.testing.assert_close(actual.tangent, expected.tangent)


def test_a_tangent_may_be_pushed_through_the_backward_pass():
    A, dG = leaf((2, 3, 3)), matrices((2, 3, 3), seed=1)

    def tangent_of_gradient(inv):
        X = inv(A)
        with forward_ad.dual_level():
            G = forward_ad.make_dual(torch.ones_like(X), dG)
            return forward_ad.unpack_dual(torch.autograd.grad(X, A, G)[0]).tangent

    torch.testing.assert_close(tangent_of_gradient(autoinv.inv), tangent_of_gradient(torch.linalg.inv))


def test_autocast_does_not_round_the_backward_pass():
    A = leaf((4, 3, 3), torch.float32)
    (expected,) = torch.autograd.grad(autoinv.inv(A).sum(), A)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (actual,) = torch.autograd.grad(autoinv.inv(A).sum(), A)
    torch.testing.assert_close(actual, expected)


def test_a_singular_matrix_raises_torchs_error_when_a_gradient_is_wanted():
    A = matrices((5, 3, 3))
    A[3] = 0
    A.requires_grad_()
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        torch.linalg.inv(A)
    with pytest.raises(torch.linalg.LinAlgError) as actual:
        autoinv.inv(A)
    assert str(expected.value) == str(actual.value)


@pytest.mark.parametrize("shape", [(0, 3, 3), (4, 0, 0), (2, 0, 3, 3)])
def test_an_empty_batch_has_an_empty_gradient(shape):
    A = torch.empty(shape, dtype=torch.float64, requires_grad=True)
    autoinv.inv(A).sum().backward()
    assert shape == A.grad.shape


def test_a_hook_and_a_retained_gradient_see_the_inverse():
    A = leaf((2, 3, 3))
    X = autoinv.inv(A)
    X.retain_grad()
    seen = []
    X.register_hook(lambda G: seen.append(G.shape))
    X.sum().backward()
    assert [X.shape] == seen
    assert torch.ones_like(X).equal(X.grad)


def test_checkpointing_runs_the_forward_pass_again():
    A, B = leaf((2, 3, 3)), leaf((2, 3, 3))
    torch.utils.checkpoint.checkpoint(autoinv.inv, A, use_reentrant=False).pow(2).sum().backward()
    torch.linalg.inv(B).pow(2).sum().backward()
    torch.testing.assert_close(A.grad, B.grad)


def test_a_training_step_gives_the_parameters_that_torch_gives():
    def trained(inv):
        weight = torch.nn.Parameter(matrices((4, 3, 3)))
        optimiser = torch.optim.SGD([weight], lr=0.05)
        for _ in range(5):
            optimiser.zero_grad()
            (inv(weight) - torch.eye(3, dtype=torch.float64)).pow(2).sum().backward()
            optimiser.step()
        return weight.detach()

    torch.testing.assert_close(trained(autoinv.inv), trained(torch.linalg.inv))
