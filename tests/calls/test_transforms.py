"""``torch.func`` on the inverse: vmap, grad, jacrev, jacfwd, hessian, functional_call, in any order."""

from __future__ import annotations

import pytest
import torch
from nothing_timed_or_stored import nothing_timed_or_stored
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import autoinv
from autoinv.calls import transforms


@pytest.fixture(autouse=True, params=[0, transforms.SMALL], ids=["our rules", "torch's while small"])
def small(request, monkeypatch):
    """Every test runs by the rules of our own and by those that small inputs get."""
    monkeypatch.setattr(transforms, "SMALL", request.param)


def matrices(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator) + 3 * torch.eye(shape[-1], dtype=dtype)


def cubed(inv):
    """A scalar function with a non-constant second derivative."""
    return lambda A: inv(A).pow(3).sum().real


@pytest.mark.parametrize("in_dim", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("out_dim", [0, 2, -1])
def test_any_dim_may_be_mapped_in_and_out(in_dim, out_dim):
    A = matrices(4, 5, 3, 3).movedim(0, in_dim)
    expected = vmap(torch.linalg.inv, in_dims=in_dim, out_dims=out_dim)(A)
    torch.testing.assert_close(vmap(autoinv.inv, in_dims=in_dim, out_dims=out_dim)(A), expected)


def test_the_result_of_a_mapped_call_is_contiguous():
    A = matrices(4, 5, 3, 3)
    for in_dim in range(2):
        assert vmap(autoinv.inv, in_dims=in_dim)(A).is_contiguous()


def test_nested_maps_flatten_into_one_batch(monkeypatch):
    A = matrices(2, 4, 5, 3, 3)
    shapes = []

    def spy(dispatcher, operands):
        (A,) = operands
        shapes.append(tuple(A.shape))
        return torch.linalg.inv(A)

    monkeypatch.setattr("autoinv.calls.transforms.untimed_answer", spy)
    torch.testing.assert_close(vmap(vmap(vmap(autoinv.inv)))(A), torch.linalg.inv(A))
    assert [(2, 4, 5, 3, 3)] == [tuple(sorted(shape[:3])) + shape[3:] for shape in shapes]


def test_nested_maps_over_different_dims_keep_their_order():
    A = matrices(4, 2, 5, 3, 3)
    expected = vmap(vmap(torch.linalg.inv, in_dims=1, out_dims=1), in_dims=2)(A)
    torch.testing.assert_close(vmap(vmap(autoinv.inv, in_dims=1, out_dims=1), in_dims=2)(A), expected)


def test_a_tensor_that_is_not_mapped_is_inverted_once():
    A, b = matrices(3, 3), torch.randn(4, 3, dtype=torch.float64)
    expected = vmap(lambda b: torch.linalg.inv(A) @ b)(b)
    torch.testing.assert_close(vmap(lambda b: autoinv.inv(A) @ b)(b), expected)


def test_a_tensor_that_only_the_outer_map_maps_is_inverted_there():
    A, b = matrices(2, 3, 3), torch.randn(2, 4, 3, dtype=torch.float64)

    def both(inv):
        return vmap(lambda A, b: vmap(lambda b: inv(A) @ b)(b))(A, b)

    torch.testing.assert_close(both(autoinv.inv), both(torch.linalg.inv))


def test_a_singular_member_of_a_mapped_batch_raises_as_torch_does():
    A = matrices(5, 3, 3)
    A[3] = 0
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        vmap(torch.linalg.inv)(A)
    with pytest.raises(torch.linalg.LinAlgError) as actual:
        vmap(autoinv.inv)(A)
    assert str(expected.value) == str(actual.value)


def test_mapped_vectors_are_refused_although_the_batch_is_square():
    A = matrices(3, 3)
    with pytest.raises(RuntimeError, match="must have at least 2 dimensions"):
        vmap(autoinv.inv)(A)


def test_maps_work_after_a_call_that_raised():
    with pytest.raises(torch.linalg.LinAlgError):
        vmap(vmap(autoinv.inv))(torch.zeros(2, 3, 2, 2))
    A = matrices(2, 3, 2, 2)
    torch.testing.assert_close(vmap(vmap(autoinv.inv))(A), torch.linalg.inv(A))
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_a_chunked_map_gives_the_same():
    A = matrices(7, 3, 3)
    torch.testing.assert_close(vmap(autoinv.inv, chunk_size=3)(A), torch.linalg.inv(A))


@pytest.mark.parametrize(
    "transform", [jacrev, jacfwd, lambda f: jacrev(jacfwd(f)), lambda f: jacfwd(jacrev(f))]
)
def test_jacobians_equal_torchs(transform):
    A = matrices(2, 2, 2)
    torch.testing.assert_close(transform(autoinv.inv)(A), transform(torch.linalg.inv)(A))


@pytest.mark.parametrize(
    "transform",
    [
        grad,
        hessian,
        lambda f: vmap(grad(f)),
        lambda f: grad(lambda A: vmap(f)(A).sum()),
        lambda f: vmap(hessian(f)),
    ],
    ids=["grad", "hessian", "per-sample grad", "grad of vmap", "per-sample hessian"],
)
def test_derivatives_of_a_scalar_equal_torchs(transform):
    A = matrices(3, 2, 2)
    torch.testing.assert_close(transform(cubed(autoinv.inv))(A), transform(cubed(torch.linalg.inv))(A))


@pytest.mark.parametrize("transform", [grad, lambda f: vmap(grad(f))], ids=["grad", "per-sample grad"])
def test_complex_derivatives_follow_torchs_convention(transform):
    A = matrices(3, 2, 2, dtype=torch.complex128)
    torch.testing.assert_close(transform(cubed(autoinv.inv))(A), transform(cubed(torch.linalg.inv))(A))


def test_jvp_and_linearize_push_a_tangent_through():
    A, dA = matrices(4, 3, 3), matrices(4, 3, 3, seed=1)
    torch.testing.assert_close(jvp(autoinv.inv, (A,), (dA,)), jvp(torch.linalg.inv, (A,), (dA,)))
    output, tangent_of = linearize(autoinv.inv, A)
    torch.testing.assert_close((output, tangent_of(dA)), jvp(torch.linalg.inv, (A,), (dA,)))


def test_vjp_works_after_its_transform_has_ended():
    A, G = matrices(4, 3, 3), matrices(4, 3, 3, seed=1)
    _, expected = vjp(torch.linalg.inv, A)
    _, actual = vjp(autoinv.inv, A)
    torch.testing.assert_close(actual(G), expected(G))


def test_a_mapped_call_can_be_differentiated_from_outside():
    A, B = matrices(4, 3, 3).requires_grad_(), matrices(4, 3, 3).requires_grad_()
    vmap(autoinv.inv)(A).pow(2).sum().backward()
    vmap(torch.linalg.inv)(B).pow(2).sum().backward()
    torch.testing.assert_close(A.grad, B.grad)


def test_a_mapped_call_on_a_dual_tensor_keeps_its_tangent():
    A, dA = matrices(4, 3, 3), matrices(4, 3, 3, seed=1)

    def pushed(inv):
        return jvp(vmap(inv), (A,), (dA,))

    torch.testing.assert_close(pushed(autoinv.inv), pushed(torch.linalg.inv))


def test_functional_call_and_per_sample_gradients_of_a_module():
    class Whitening(torch.nn.Module):
        def __init__(self, inv):
            super().__init__()
            self.weight = torch.nn.Parameter(matrices(3, 3))
            self.inv = inv

        def forward(self, x):
            return self.inv(self.weight + torch.diag(x)) @ x

    def per_sample(inv):
        module = Whitening(inv)
        parameters = dict(module.named_parameters())
        loss = grad(lambda p, x: functional_call(module, p, (x,)).sum())
        return vmap(loss, in_dims=(None, 0))(parameters, torch.rand(5, 3, dtype=torch.float64))["weight"]

    torch.manual_seed(0)
    expected = per_sample(torch.linalg.inv)
    torch.manual_seed(0)
    torch.testing.assert_close(per_sample(autoinv.inv), expected)


def test_functionalize_runs_torchs_own_call():
    A = matrices(4, 3, 3)
    torch.testing.assert_close(torch.func.functionalize(autoinv.inv)(A), torch.linalg.inv(A))


def test_inv_ex_and_safe_inv_may_be_mapped():
    A = matrices(5, 3, 3)
    A[2] = 0
    answer = vmap(lambda A: tuple(autoinv.inv_ex(A)))(A)
    assert [0, 0, 1, 0, 0] == answer[1].tolist()
    inverse, ok = vmap(autoinv.safe_inv)(A)
    assert [True, True, False, True, True] == ok.tolist()
    torch.testing.assert_close(inverse[ok], torch.linalg.inv(A[ok]))


def test_a_tensor_that_escaped_its_map_raises_or_answers_but_never_crashes():
    escaped = []
    vmap(lambda A: escaped.append(A) or A)(matrices(4, 3, 3))
    with pytest.raises(RuntimeError):
        autoinv.inv(escaped[0]).sum().item()


@pytest.mark.parametrize(
    "call",
    [
        lambda A: vmap(autoinv.inv)(A),
        lambda A: vmap(vmap(autoinv.inv))(A[None]),
        lambda A: grad(cubed(autoinv.inv))(A),
        lambda A: jacfwd(autoinv.inv)(A),
        lambda A: vmap(grad(cubed(autoinv.inv)))(A),
        lambda A: jvp(autoinv.inv, (A,), (A,)),
        lambda A: vmap(autoinv.inv)(A.clone().requires_grad_()).sum().backward(),
        lambda A: vmap(autoinv.safe_inv)(A),
    ],
    ids=["vmap", "nested", "grad", "jacfwd", "per-sample grad", "jvp", "vmap with gradient", "safe_inv"],
)
def test_nothing_is_timed_or_stored_under_a_transform(call, private_cache_dir):
    with nothing_timed_or_stored(private_cache_dir):
        call(matrices(8, 3, 3))


def test_the_check_of_nothing_timed_fails_for_an_untransformed_call(private_cache_dir):
    with (
        pytest.raises(pytest.fail.Exception, match="something was timed"),
        nothing_timed_or_stored(private_cache_dir),
    ):
        autoinv.inv(matrices(8, 3, 3))


def test_a_transformed_call_uses_the_memo_of_untransformed_calls(monkeypatch):
    A = matrices(80, 3, 3)
    with autoinv.using(strategy="closed_form"):
        autoinv.inv(A)
        called = []
        from autoinv.ops.inv.strategies import _lu

        monkeypatch.setattr(_lu, "inv", lambda *args, **kwargs: called.append("torch"))
        vmap(autoinv.inv)(A)
    assert [] == called


@pytest.mark.parametrize(
    "view", [torch.conj, lambda A: A[:1].expand(6, 3, 3)], ids=["conjugated", "expanded"]
)
def test_a_mapped_view_is_answered_by_the_memo_and_plans_nothing_again(view, monkeypatch):
    A = matrices(6, 3, 3).to(torch.complex128)
    with autoinv.using(strategy="closed_form"):
        for known in (A, A[:1]):
            autoinv.inv(known)
        monkeypatch.setattr("autoinv.calls.answer._known_run", lambda *a: pytest.fail("planned again"))
        torch.testing.assert_close(vmap(autoinv.inv)(view(A)), torch.linalg.inv(view(A)))
