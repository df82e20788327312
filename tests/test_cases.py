"""Faults from public reports on inverting batches of matrices: each is kept as a test."""

from __future__ import annotations

import itertools

import pytest
import torch

import autoinv
from autoinv.ops.inv.operation import INV

F64 = torch.float64
STRATEGIES = INV.names()


def matrices(*shape, dtype=F64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator) + 3 * torch.eye(shape[-1], dtype=dtype)


@pytest.fixture(params=[*STRATEGIES, "tuned"])
def strategy(request):
    """Each strategy in turn, where it supports the problem, and whichever the tuner takes."""
    with autoinv.using(strategy=None if request.param == "tuned" else request.param):
        yield request.param


def test_one_zero_matrix_in_thousands_is_named_by_inv_and_marked_by_inv_ex_and_safe_inv(strategy):
    """Source: https://github.com/pytorch/pytorch/issues/25095."""
    few = strategy in ("loop", "vmap")  # these are slow on thousands of matrices
    A = matrices(20 if few else 40, 50, 3, 3)
    A[17, 23] = 0
    flat = 17 * 50 + 23
    with pytest.raises(
        torch.linalg.LinAlgError, match=rf"\(Batch element {flat}\).*diagonal element 1 is zero"
    ):
        autoinv.inv(A)
    inverse, info = autoinv.inv_ex(A)
    assert [flat] == info.flatten().nonzero().flatten().tolist()
    _, ok = autoinv.safe_inv(A)
    assert [flat] == (~ok).flatten().nonzero().flatten().tolist()
    good = ok.clone()
    torch.testing.assert_close(inverse[good], torch.linalg.inv(A[good]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_a_nan_stays_in_its_own_matrix(strategy, value, n):
    """Source: https://github.com/pytorch/pytorch/issues/138451."""
    A = matrices(6, n, n)
    A[2, 0, n - 1] = value
    X = autoinv.inv(A)
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(X[others], torch.linalg.inv(A[others]))
    torch.testing.assert_close(X[2], torch.linalg.inv(A)[2], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_refused_in_torchs_words_and_taken_by_safe_inv(dtype):
    """Source: https://github.com/pytorch/pytorch/issues/17413."""
    A = matrices(4, 3, 3, dtype=torch.float32).to(dtype)
    with pytest.raises(RuntimeError) as expected:
        torch.linalg.inv(A)
    with pytest.raises(RuntimeError) as actual:
        autoinv.inv(A)
    assert str(expected.value) == str(actual.value)
    inverse, ok = autoinv.safe_inv(A)
    assert ok.all()
    assert torch.linalg.inv(A.float()).to(dtype).equal(inverse)


def test_a_masked_singular_matrix_leaks_no_nan_into_the_gradient():
    """Source: https://github.com/pytorch/pytorch/issues/68425."""
    A = matrices(4, 3, 3)
    A[1] = 0
    A.requires_grad_()
    inverse, ok = autoinv.safe_inv(A)
    torch.where(ok[:, None, None], inverse, 0).pow(2).sum().backward()
    assert A.grad.isfinite().all()
    assert torch.zeros(3, 3, dtype=F64).equal(A.grad[1])


def test_a_compiled_call_on_zeros_raises_as_eager_does():
    """Source: https://github.com/pytorch/pytorch/issues/151309."""
    torch._dynamo.reset()
    f = torch.compile(lambda A: autoinv.inv(A), fullgraph=True, backend="aot_eager")
    with pytest.raises(torch.linalg.LinAlgError, match="diagonal element 1 is zero"):
        f(torch.zeros(2, 2))
    torch._dynamo.reset()


def test_a_mapped_call_is_one_batch(monkeypatch):
    """Source: https://github.com/pytorch/functorch/issues/984."""
    batches = []

    def spy(dispatcher, operands):
        (A,) = operands
        batches.append(tuple(A.shape))
        return torch.linalg.inv(A)

    monkeypatch.setattr("autoinv.calls.transforms.untimed_answer", spy)
    torch.vmap(autoinv.inv)(matrices(7, 3, 3))
    assert [(7, 3, 3)] == batches


@pytest.mark.parametrize("view", [lambda A: A.conj(), lambda A: A.mH, lambda A: A.mT.conj()[::2]])
def test_a_complex_view_is_inverted_into_a_plain_result(strategy, view):
    """Source: https://github.com/pytorch/pytorch/issues/59945."""
    A = view(matrices(4, 3, 3, dtype=torch.complex128))
    X = autoinv.inv(A)
    assert not X.is_conj()
    torch.testing.assert_close(X, torch.linalg.inv(A))


def test_the_view_is_inverted_not_the_start_of_its_storage(strategy):
    """Source: https://github.com/pytorch/pytorch/issues/78363."""
    mats = matrices(6, 3, 3)
    torch.testing.assert_close(autoinv.inv(mats[3]), torch.linalg.inv(mats[3].clone()))
    torch.testing.assert_close(autoinv.inv(mats[1:4]), torch.linalg.inv(mats[1:4].clone()))
    torch.testing.assert_close(autoinv.inv(mats[1::2, 1:, 1:]), torch.linalg.inv(mats[1::2, 1:, 1:].clone()))


def test_an_expanded_matrix_is_inverted_once_and_not_copied_before(monkeypatch):
    """Source: https://github.com/pytorch/pytorch/issues/71406."""
    M = matrices(3, 3)
    X = autoinv.inv(M.expand(10000, 3, 3))
    assert X.is_contiguous()
    torch.testing.assert_close(X[[0, 5000, 9999]], torch.linalg.inv(M).expand(3, 3, 3))
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profile:
        autoinv.inv(M.expand(10000, 3, 3))
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
    assert allocated < 1.5 * 10000 * 9 * 8


@pytest.mark.parametrize("perturb", [0, 1, 2])
def test_out_passes_torchs_checks_and_may_be_the_input(strategy, perturb):
    """Source: https://github.com/pytorch/pytorch/issues/92819."""
    A = matrices(4 + perturb, 3, 3)
    expected = torch.linalg.inv(A)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype double, but got float instead"):
        autoinv.inv(A, out=torch.empty(4 + perturb, 3, 3))
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.testing.assert_close(autoinv.inv(A, out=torch.empty(7, dtype=F64)), expected)
    torch.testing.assert_close(autoinv.inv(A, out=A), expected)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_permutation_matrix_is_inverted_exactly(strategy, n):
    """Source: https://github.com/JuliaArrays/StaticArrays.jl/issues/250."""
    P = torch.eye(n, dtype=F64)[torch.tensor(list(itertools.permutations(range(n))))]
    assert P.mT.contiguous().equal(autoinv.inv(P).abs())


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_a_zero_leading_minor_does_not_make_a_matrix_singular(strategy, n):
    """Source: https://github.com/FlagOpen/FlagGems/issues/6349."""
    A = matrices(8, n, n)
    A[:, 0, 0] = 0
    A[:4, :2, :2] = 0 if n > 3 else A[:4, :2, :2]
    torch.testing.assert_close(autoinv.inv(A), torch.linalg.inv(A))


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.complex128])
def test_inv_ex_marks_the_singular_one_and_inverts_the_other(strategy, n, dtype):
    """Source: https://github.com/google/jax/issues/21785."""
    A = torch.stack([matrices(n, n, dtype=dtype), torch.ones(n, n, dtype=dtype)])
    inverse, info = autoinv.inv_ex(A)
    assert torch.linalg.inv_ex(A).info.equal(info)
    torch.testing.assert_close(inverse[0], torch.linalg.inv(A[0]))
    assert inverse.is_contiguous()
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.inv_ex: \(Batch element 1\)"):
        autoinv.inv_ex(A, check_errors=True)


def test_inv_ex_gives_what_torch_gives_where_every_matrix_is_good():
    A = matrices(2, 4, 3, 3)
    answer, expected = autoinv.inv_ex(A), torch.linalg.inv_ex(A)
    assert ("inverse", "info") == answer._fields
    torch.testing.assert_close(answer.inverse, expected.inverse)
    assert expected.info.equal(answer.info)
    assert torch.int32 == answer.info.dtype


def test_a_model_with_inv_is_exported_without_a_graph_break():
    """Source: https://github.com/pytorch/pytorch/issues/107948."""

    class Model(torch.nn.Module):
        def forward(self, A, B):
            return autoinv.inv(A) @ B

    A, B = matrices(4, 3, 3), matrices(4, 3, 3, seed=1)
    program = torch.export.export(Model(), (A, B))
    torch.testing.assert_close(program.module()(A, B), torch.linalg.inv(A) @ B)


def test_a_subclass_is_deferred_to_and_never_densified():
    """Source: https://github.com/pytorch/pytorch/issues/176955."""

    class Diagonal(torch.Tensor):
        """Holds only a diagonal, and knows its own inverse."""

        @staticmethod
        def __new__(cls, diagonal):
            n = diagonal.shape[-1]
            return torch.Tensor._make_wrapper_subclass(cls, (*diagonal.shape, n), dtype=diagonal.dtype)

        def __init__(self, diagonal):
            self.diagonal_ = diagonal

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.linalg.inv:
                return cls(1 / args[0].diagonal_)
            return super().__torch_function__(func, types, args, kwargs or {})

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(f"{func} would densify")

    D = Diagonal(torch.tensor([1.0, 2.0, 4.0]))
    X = autoinv.inv(D)
    assert Diagonal is type(X)
    assert [1.0, 0.5, 0.25] == X.diagonal_.tolist()
