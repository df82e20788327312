"""`patched`: torch's own functions go through autoinv inside the block, and only there."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

import autoinv

NAMES = ((torch.linalg, "inv"), (torch, "inverse"), (torch.Tensor, "inverse"))


def matrices(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator) + 3 * torch.eye(
        shape[-1], dtype=torch.float64
    )


def state():
    """What stands under each name, and whether it is the owner's own attribute."""
    return [(getattr(owner, name), name in vars(owner)) for owner, name in NAMES]


def goes_through_autoinv(A=None):
    """Autoinv's inverses are contiguous, torch's are column-major."""
    return torch.linalg.inv(matrices(4, 3, 3) if A is None else A).is_contiguous()


@pytest.fixture(autouse=True)
def undone():
    before = state()
    yield
    assert before == state()


def test_every_name_goes_through_autoinv_inside_and_not_outside():
    A = matrices(4, 3, 3)
    calls = (torch.linalg.inv, torch.inverse, torch.Tensor.inverse)
    assert [False] * 3 == [call(A).is_contiguous() for call in calls]
    with autoinv.patched():
        inside = (torch.linalg.inv(A), torch.inverse(A), A.inverse())
    assert [True] * 3 == [X.is_contiguous() for X in inside]
    for X in inside:
        torch.testing.assert_close(X, calls[0](A))
    assert not goes_through_autoinv()


def test_keywords_are_those_of_torch():
    A, out = matrices(4, 3, 3), torch.empty(4, 3, 3, dtype=torch.float64)
    with autoinv.patched():
        torch.testing.assert_close(torch.linalg.inv(A=A), autoinv.inv(A))
        torch.testing.assert_close(torch.inverse(input=A), autoinv.inv(A))
        assert out is torch.linalg.inv(A, out=out)
        assert out is torch.inverse(A, out=out)


def test_errors_and_refusals_are_torchs():
    with (
        autoinv.patched(),
        pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.inv: \(Batch element 0\)"),
    ):
        torch.linalg.inv(torch.zeros(2, 3, 3))
    with autoinv.patched(), pytest.raises(TypeError):
        torch.linalg.inv()


def test_a_reference_strategy_inside_does_not_call_itself():
    A = matrices(4, 3, 3)
    for name in autoinv.ops.inv.operation.INV.names():
        with autoinv.patched(), autoinv.using(strategy=name):
            torch.testing.assert_close(torch.linalg.inv(A), A.inverse())
    with autoinv.patched(), autoinv.using(mode="off"):
        assert goes_through_autoinv()


def test_blocks_nest():
    with autoinv.patched():
        with autoinv.patched():
            assert goes_through_autoinv()
        assert goes_through_autoinv()
    assert not goes_through_autoinv()


def test_one_object_may_be_entered_twice():
    context = autoinv.patched()
    with context, context:
        assert goes_through_autoinv()
    with context:
        assert goes_through_autoinv()
    assert not goes_through_autoinv()


def test_an_exception_undoes_the_patch():
    with pytest.raises(KeyError), autoinv.patched():
        raise KeyError
    assert not goes_through_autoinv()


def test_a_decorated_function_runs_inside():
    @autoinv.patched()
    def inverse(A, depth=2):
        """Its docstring."""
        return inverse(A, depth - 1) if depth else A.inverse()

    assert inverse(matrices(4, 3, 3)).is_contiguous()
    assert ("inverse", "Its docstring.") == (inverse.__name__, inverse.__doc__)
    assert not goes_through_autoinv()


def test_the_replacement_has_the_name_and_docstring_of_the_original():
    names = [(f.__name__, f.__doc__) for f in (torch.linalg.inv, torch.inverse, torch.Tensor.inverse)]
    with autoinv.patched():
        assert names == [
            (f.__name__, f.__doc__) for f in (torch.linalg.inv, torch.inverse, torch.Tensor.inverse)
        ]


def test_other_threads_keep_torchs_own_functions():
    seen = {}
    with autoinv.patched():
        thread = threading.Thread(target=lambda: seen.update(inside=goes_through_autoinv()))
        thread.start()
        thread.join()
        assert goes_through_autoinv()
    assert {"inside": False} == seen


def test_overlapping_blocks_of_two_threads_are_undone_by_the_last():
    entered, leave = threading.Event(), threading.Event()
    seen = {}

    def other():
        with autoinv.patched():
            entered.set()
            leave.wait(30)
            seen["other"] = goes_through_autoinv()
        seen["after"] = goes_through_autoinv()

    thread = threading.Thread(target=other)
    with autoinv.patched():
        thread.start()
        assert entered.wait(30)
    assert not goes_through_autoinv()
    leave.set()
    thread.join()
    assert {"other": True, "after": False} == seen


def test_many_concurrent_blocks_restore_torch():
    wrong = []

    def work():
        for _ in range(50):
            with autoinv.patched():
                if not goes_through_autoinv():
                    wrong.append("inside")
            if goes_through_autoinv():
                wrong.append("outside")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == wrong


def test_a_foreign_patch_made_inside_is_left_alone(monkeypatch):
    with autoinv.patched():
        ours = torch.linalg.inv
        theirs = lambda A: ours(A)  # noqa: E731 -- a wrapper around the function in place
        torch.linalg.inv = theirs
    try:
        assert theirs is torch.linalg.inv
        assert not goes_through_autoinv()
    finally:
        torch.linalg.inv = autoinv.ops.inv.strategies._lu.inv


def test_a_foreign_patch_made_outside_is_kept():
    before, calls = torch.linalg.inv, []

    def theirs(A):
        calls.append(tuple(A.shape))
        return before(A)

    torch.linalg.inv = theirs
    try:
        with autoinv.patched():
            torch.linalg.inv(matrices(4, 3, 3))
        assert theirs is torch.linalg.inv
        torch.linalg.inv(matrices(2, 3, 3))
    finally:
        torch.linalg.inv = before
    assert [(2, 3, 3)] == calls


def test_gradients_transforms_and_subclasses_work_inside():
    A = matrices(4, 3, 3).requires_grad_()
    with autoinv.patched():
        (gradient,) = torch.autograd.grad(A.inverse().sum(), A)
        mapped = torch.vmap(torch.linalg.inv)(A.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(torch.linalg.inv(A).sum(), A)[0])
    torch.testing.assert_close(mapped, torch.linalg.inv(A.detach()))

    class Wrapped(torch.Tensor):
        pass

    with autoinv.patched():
        assert Wrapped is type(A.detach().as_subclass(Wrapped).inverse())


def test_a_call_compiled_inside_is_one_op():
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    A = matrices(4, 3, 3)
    with autoinv.patched():
        X = torch.compile(lambda A: torch.linalg.inv(A), fullgraph=True, backend=backend)(A)
    torch._dynamo.reset()
    torch.testing.assert_close(X, torch.linalg.inv(A))
    assert [["autoinv.inv.default"]] == graphs


def transform_points(transform, points):
    """The idea of kornia's ``transform_points`` and ``relative_transformation``: third-party code.

    Inverts rigid motions ``(B, 4, 4)`` and moves points ``(B, N, 3)`` by them, as such libraries do.
    """
    homogeneous = torch.nn.functional.pad(points, (0, 1), value=1.0)
    moved = homogeneous @ torch.inverse(transform).mT
    return moved[..., :3] / moved[..., 3:]


def test_third_party_code_gives_the_same_inside(monkeypatch):
    transform, points = matrices(64, 4, 4), matrices(64, 7, 3, 3)[..., 0]
    expected = transform_points(transform, points)
    with autoinv.patched():
        actual = transform_points(transform, points)
    torch.testing.assert_close(actual, expected)


def test_a_coroutine_of_the_same_thread_is_inside():
    async def inverse():
        await asyncio.sleep(0)
        return goes_through_autoinv()

    with autoinv.patched():
        assert asyncio.run(inverse())
