"""`inv_as_torch`: the bits of `inv` with the strides of `torch.linalg.inv`'s results, in every state of a tensor."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import autoinv
from autoinv.ops.inv import CALL, inv_as_torch
from autoinv.ops.inv.strategies import TABLE
from autoinv.planning.dispatch import key_of

F64 = torch.float64


def rand(*shape: int, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    """Matrices, batches, empty ones, 1x1, and every layout."""
    shapes = (
        (3, 3),
        (1, 1),
        (5, 1, 1),
        (1, 3, 3),
        (10, 8, 3, 3),
        (1, 8, 1, 3, 3),
        (4, 7, 7),
        (4, 12, 12),
        (3, 20, 20),
    )
    empty = ((0, 3, 3), (5, 0, 0), (0, 0), (4, 1, 0, 0), (0, 5, 3, 3), (2, 0, 1, 1))
    contiguous = [rand(*shape, dtype=dtype) for shape in (*shapes, *empty, (2, 70, 70))]
    A, B = rand(8, 3, 3, dtype=dtype), rand(8, 10, 3, 3, dtype=dtype)
    return [
        *contiguous,
        rand(3, 3, dtype=dtype).mT,
        A.mT,
        A[::2],
        rand(3, 8, 3, dtype=dtype).permute(1, 0, 2),
        B.transpose(0, 1),
        A[:1].expand(6, 3, 3),
        B[:, :1].expand(8, 6, 3, 3),
        A[0].expand(4, 6, 3, 3),
        rand(8, 6, 6, dtype=dtype)[:, 1:4, ::2],
        rand(1, 1, 1, dtype=dtype).expand(6, 1, 1),
        rand(5, 2, 2, dtype=dtype)[:, :1, :1],
        torch._neg_view(rand(4, 3, 3, dtype=dtype)),
        A.conj(),
    ]


@pytest.mark.parametrize("dtype", (torch.float32, F64, torch.complex128), ids=str)
def test_strides_are_torchs_and_bits_are_those_of_inv_for_every_shape_layout_and_strategy(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a pinned strategy that does not take a shape
        for strategy in TABLE:
            with autoinv.using(strategy=strategy.name, mode="cached"):
                for A in inputs(dtype):
                    for X in (inv_as_torch(A), inv_as_torch(A)):  # a miss, a hit
                        assert X.stride() == torch.linalg.inv(A).stride(), (
                            strategy.name,
                            A.shape,
                            A.stride(),
                        )
                        assert X.equal(autoinv.inv(A)), (strategy.name, A.shape, A.stride())
    with autoinv.using(mode="off"):
        assert inv_as_torch(rand(4, 3, 3)).stride() == (9, 1, 3)


def test_out_is_written_as_it_is_and_gets_torchs_strides_where_it_is_resized():
    A = rand(8, 3, 3)
    for out in (torch.empty_like(A), torch.empty_like(A).mT):
        before = out.stride()
        assert inv_as_torch(A, out=out) is out
        assert out.stride() == before
        torch.testing.assert_close(out, torch.linalg.inv(A))
    resized = inv_as_torch(A, out=torch.empty(0, dtype=F64))
    assert resized.stride() == torch.linalg.inv(A).stride()
    with pytest.raises(RuntimeError, match="must be batches of square matrices"):
        inv_as_torch(rand(2, 3), out=torch.empty(0, dtype=F64))


def test_gradients_transforms_and_modes_keep_torchs_strides():
    A, G = rand(5, 3, 3), rand(5, 3, 3)
    expected = torch.linalg.inv(A).stride()
    for leaf in (A.clone().requires_grad_(), torch.nn.Parameter(A.clone())):
        for _ in range(2):  # a miss, a hit
            X, R = inv_as_torch(leaf), torch.linalg.inv(leaf)
            assert X.stride() == expected
            torch.testing.assert_close(torch.autograd.grad(X, leaf, G), torch.autograd.grad(R, leaf, G))
        with torch.no_grad():
            assert inv_as_torch(leaf).stride() == expected
    assert torch.autograd.gradgradcheck(inv_as_torch, A[:2].clone().requires_grad_())
    for dims in ({}, {"in_dims": 1}, {"out_dims": 1}):
        B = rand(3, 3, 3)
        mapped, by_torch = torch.vmap(inv_as_torch, **dims)(B), torch.vmap(torch.linalg.inv, **dims)(B)
        assert mapped.stride() == by_torch.stride()
        torch.testing.assert_close(mapped, by_torch)
    X, tangent = torch.func.jvp(inv_as_torch, (A,), (G,))
    R, by_torch = torch.func.jvp(torch.linalg.inv, (A,), (G,))
    assert X.stride() == R.stride()
    torch.testing.assert_close(tangent, by_torch)
    with torch.inference_mode():
        assert inv_as_torch(A).is_inference()
        assert inv_as_torch(A).stride() == expected
    with torch.device("meta"):
        assert inv_as_torch(A).stride() == expected
        assert inv_as_torch(A).is_cpu
    with FakeTensorMode():
        assert inv_as_torch(torch.empty(5, 3, 3)).stride() == expected
    assert inv_as_torch(torch.empty(5, 3, 3, device="meta")).stride() == expected


def test_a_compiled_program_gets_torchs_strides_from_one_operator():
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    A = rand(5, 3, 3)
    compiled = torch.compile(inv_as_torch, fullgraph=True, backend=backend)
    assert compiled(A).stride() == torch.linalg.inv(A).stride()
    torch.testing.assert_close(compiled(A), torch.linalg.inv(A))
    assert "autoinv.inv" in graphs[0].code


def test_errors_are_torchs_own():
    singular = torch.eye(3, dtype=F64).repeat(4, 1, 1)
    singular[2] = 0
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError, match="Batch element 2"):
            inv_as_torch(singular)
    with pytest.raises(RuntimeError, match="must be batches of square matrices"):
        inv_as_torch(rand(2, 3))
    with pytest.raises(TypeError):
        inv_as_torch(None)


def test_a_strategy_that_raises_is_answered_for_by_torch_with_one_warning():
    A = rand(4, 3, 3)
    inv_as_torch(A)
    with autoinv.using(mode="off"):
        autoinv.inv(A)
        key = (*key_of(A), "torch")

        def broken(A: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken")

        CALL.dispatcher.memo[key] = broken
        with pytest.warns(RuntimeWarning, match="of inv raised RuntimeError") as caught:
            X = inv_as_torch(A)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = inv_as_torch(A)
        for answer in (X, again):
            assert answer.stride() == (9, 1, 3)
            torch.testing.assert_close(answer, torch.linalg.inv(A))
