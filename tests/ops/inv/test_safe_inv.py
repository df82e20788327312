"""`safe_inv`: one bad matrix raises nothing, and does not change the gradients of the others."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import autoinv

F64 = torch.float64
EYE = torch.eye(3, dtype=F64)

BAD = {
    "zeros": torch.zeros(3, 3, dtype=F64),
    "rank one": torch.ones(3, 3, dtype=F64),
    "nan": torch.where(EYE.bool(), torch.nan, 1.0).to(F64),
    "inf": EYE * torch.inf,
    "one inf": torch.where(EYE.bool(), 1.0, 0.0)
    .to(F64)
    .index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(torch.inf, dtype=F64)),
    "its inverse overflows": 1e-310 * EYE,
}


def matrices(*shape, dtype=F64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator) + 3 * torch.eye(shape[-1], dtype=dtype)


def with_bad(kind, *, at=2, batch=5):
    A = matrices(batch, 3, 3)
    A[at] = BAD[kind]
    return A


def test_a_batch_without_a_bad_matrix_is_inverted_as_by_inv():
    A = matrices(2, 4, 3, 3)
    inverse, ok = autoinv.safe_inv(A)
    assert autoinv.inv(A).equal(inverse)
    assert torch.ones(2, 4, dtype=torch.bool).equal(ok)
    assert inverse.is_contiguous()


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("singular", ["nan", "pinv"])
def test_a_bad_matrix_is_marked_and_the_others_are_inverted(kind, singular):
    A = with_bad(kind)
    inverse, ok = autoinv.safe_inv(A, singular=singular)
    assert [True, True, False, True, True] == ok.tolist()
    torch.testing.assert_close(inverse[ok], torch.linalg.inv(A[ok]))
    if singular == "nan":
        assert inverse[2].isnan().all()


@pytest.mark.parametrize("kind", ["zeros", "rank one"])
def test_pinv_stands_where_a_finite_matrix_is_singular(kind):
    inverse, _ = autoinv.safe_inv(with_bad(kind), singular="pinv")
    torch.testing.assert_close(inverse[2], torch.linalg.pinv(BAD[kind]))


@pytest.mark.parametrize("kind", ["nan", "inf", "one inf"])
def test_pinv_is_nan_where_the_matrix_is_not_finite(kind):
    inverse, _ = autoinv.safe_inv(with_bad(kind), singular="pinv")
    assert inverse[2].isnan().all()


@pytest.mark.parametrize("kind", BAD)
def test_raise_names_the_flat_index_of_the_first(kind):
    A = matrices(2, 4, 3, 3)
    A[1, 1] = BAD[kind]
    A[1, 3] = 0
    with pytest.raises(torch.linalg.LinAlgError, match=r"safe_inv: \(Batch element 5\): "):
        autoinv.safe_inv(A, singular="raise")


def test_raise_names_no_index_for_a_single_matrix():
    for kind in ("zeros", "nan"):
        with pytest.raises(torch.linalg.LinAlgError, match=r"safe_inv: The "):
            autoinv.safe_inv(BAD[kind], singular="raise")


def test_raise_does_nothing_when_every_matrix_is_ok():
    assert autoinv.safe_inv(matrices(4, 3, 3), singular="raise")[1].all()


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("singular", ["nan", "pinv"])
@pytest.mark.parametrize(
    "loss", [lambda X, ok: X.pow(2).sum(), lambda X, ok: torch.where(ok[..., None, None], X, 0).sum()]
)
def test_the_gradient_is_finite_everywhere_and_zero_where_not_ok(kind, singular, loss):
    A, B = with_bad(kind).requires_grad_(), with_bad(kind).requires_grad_()
    inverse, ok = autoinv.safe_inv(A, singular=singular)
    loss(inverse, ok).backward()
    loss(torch.linalg.inv(B[ok]), ok[ok]).backward()
    assert torch.zeros(3, 3, dtype=F64).equal(A.grad[2])
    torch.testing.assert_close(A.grad[ok], B.grad[ok])


def test_a_gradient_that_overflows_is_zero_for_its_matrix_alone():
    A = matrices(3, 3, 3)
    A[1] = 1e-200 * EYE
    A.requires_grad_()
    inverse, ok = autoinv.safe_inv(A)
    inverse.sum().backward()
    assert ok.all()
    assert torch.zeros(3, 3, dtype=F64).equal(A.grad[1])
    assert A.grad.isfinite().all()
    assert A.grad[[0, 2]].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32_and_rounded_back(dtype):
    A = matrices(5, 3, 3, dtype=torch.float32).to(dtype)
    A[1] = 0
    A.requires_grad_()
    inverse, ok = autoinv.safe_inv(A)
    assert dtype == inverse.dtype
    assert [True, False, True, True, True] == ok.tolist()
    assert torch.linalg.inv(A.detach().float()[ok]).to(dtype).equal(inverse[ok])
    torch.where(ok[:, None, None], inverse, 0).sum().backward()
    assert dtype == A.grad.dtype
    assert A.grad.isfinite().all()
    assert torch.zeros(3, 3, dtype=dtype).equal(A.grad[1])


def test_an_inverse_that_overflows_when_rounded_to_half_is_not_ok():
    A = (1e-5 * torch.eye(3)).half().expand(2, 3, 3).clone()
    A[0] = torch.eye(3)
    assert [True, False] == autoinv.safe_inv(A)[1].tolist()


def test_eps_is_added_to_the_diagonal_first():
    A = matrices(4, 3, 3)
    A[1] = 0
    inverse, ok = autoinv.safe_inv(A, eps=0.5)
    assert ok.all()
    torch.testing.assert_close(inverse, torch.linalg.inv(A + 0.5 * EYE))
    torch.testing.assert_close(inverse[1], 2 * EYE)


def test_the_input_is_not_changed():
    A = with_bad("nan")
    before = A.clone()
    autoinv.safe_inv(A, eps=0.5, singular="pinv")
    torch.testing.assert_close(A, before, equal_nan=True)


@pytest.mark.parametrize("dtype", [F64, torch.complex128])
@pytest.mark.parametrize("eps", [0.0, 0.25])
def test_its_derivatives_agree_with_finite_differences(dtype, eps):
    A = matrices(2, 3, 3, dtype=dtype).requires_grad_()

    def inverse(A):
        return autoinv.safe_inv(A, eps=eps)[0]

    assert gradcheck(inverse, (A,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(inverse, (A,))


@pytest.mark.parametrize("shape", [(2, 3), (4, 2, 3), (5, 3, 2)])
def test_the_error_for_matrices_that_are_not_square_names_alternatives(shape):
    with pytest.raises(RuntimeError, match=r"torch\.linalg\.pinv .* torch\.linalg\.lstsq"):
        autoinv.safe_inv(torch.ones(shape))


@pytest.mark.parametrize("bad", [torch.ones(2, 2).long(), torch.ones(3), torch.ones(2, 2).bool(), 3.0])
def test_an_input_that_inv_refuses_is_refused_in_its_words(bad):
    with pytest.raises((RuntimeError, TypeError)) as expected:
        torch.linalg.inv(bad)
    with pytest.raises(expected.type) as actual:
        autoinv.safe_inv(bad, eps=0.1)
    assert str(expected.value) == str(actual.value)


def test_an_unknown_value_of_singular_is_a_value_error():
    with pytest.raises(ValueError, match="'zero' is none of 'nan', 'pinv', 'raise'"):
        autoinv.safe_inv(EYE, singular="zero")


@pytest.mark.parametrize("shape", [(0, 3, 3), (4, 0, 0), (2, 0, 3, 3)])
def test_an_empty_batch_is_ok(shape):
    inverse, ok = autoinv.safe_inv(torch.empty(shape))
    assert shape == tuple(inverse.shape)
    assert shape[:-2] == tuple(ok.shape)
    assert ok.all()


def test_a_single_matrix_gives_a_single_answer():
    assert () == tuple(autoinv.safe_inv(EYE)[1].shape)
    assert not autoinv.safe_inv(BAD["zeros"], singular="pinv")[1]


@pytest.mark.parametrize("singular", ["nan", "pinv"])
def test_compiled_and_mapped_calls_agree_with_the_eager_one(singular):
    A = torch.stack([*BAD.values(), *matrices(3, 3, 3)])
    expected, expected_ok = autoinv.safe_inv(A, singular=singular)
    for f in (
        torch.compile(lambda A: autoinv.safe_inv(A, singular=singular), fullgraph=True, backend="aot_eager"),
        torch.vmap(lambda A: autoinv.safe_inv(A, singular=singular)),
    ):
        inverse, ok = f(A)
        assert expected_ok.equal(ok)
        torch.testing.assert_close(inverse, expected, equal_nan=True)


def test_the_gradient_of_a_compiled_or_transformed_call_is_finite_too():
    A = torch.stack([*BAD.values(), 1e-200 * EYE, *matrices(3, 3, 3)])

    def loss(A):
        return autoinv.safe_inv(A)[0].pow(2).nansum()

    B, C = A.clone().requires_grad_(), A.clone().requires_grad_()
    loss(B).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(C).backward()
    assert B.grad.isfinite().all()
    torch.testing.assert_close(C.grad, B.grad)
    torch.testing.assert_close(torch.func.grad(loss)(A), B.grad)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(A), B.grad)


def test_a_training_run_continues_after_a_bad_matrix():
    A = torch.nn.Parameter(matrices(8, 3, 3))
    with torch.no_grad():
        A[3] = 0
    optimiser = torch.optim.Adam([A], lr=0.01)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        inverse, ok = autoinv.safe_inv(A)
        loss = (inverse[ok] - EYE).pow(2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.zeros(3, 3, dtype=F64).equal(A[3].detach())


@pytest.mark.parametrize("function", [autoinv.safe_inv, autoinv.inv_ex])
def test_an_exported_program_that_returns_the_named_tuple_is_saved_and_loaded(function, tmp_path):
    class Module(torch.nn.Module):
        def forward(self, A):
            return function(A)

    A = 2 * torch.eye(3).repeat(4, 1, 1)
    torch.export.save(torch.export.export(Module(), (A,)), tmp_path / "program.pt2")
    result = torch.export.load(tmp_path / "program.pt2").module()(A)
    assert type(result) is type(function(A))
    torch.testing.assert_close(result[0], torch.linalg.inv(A))


def test_the_result_is_a_named_tuple_of_inverse_and_ok():
    result = autoinv.safe_inv(torch.stack([torch.eye(2), torch.zeros(2, 2)]))
    assert isinstance(result, autoinv.SafeInverse)
    inverse, ok = result
    assert result.inverse is inverse
    assert result.ok is ok
    assert ok.tolist() == [True, False]
