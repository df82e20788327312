"""torch.compile, export, make_fx, symbolic_trace, jit.trace, fake and meta tensors: one op, nothing timed."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from nothing_timed_or_stored import nothing_timed_or_stored
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import autoinv

STATES = ("contiguous", "transposed", "every second", "expanded")


def matrices(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator) + 3 * torch.eye(shape[-1], dtype=dtype)


def in_state(A, state):
    return {
        "contiguous": A,
        "transposed": A.mT,
        "every second": A[::2],
        "expanded": A[:1].expand(A.shape),
    }[state]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(f, **settings):
    return torch.compile(f, fullgraph=True, backend="aot_eager", **settings)


def targets(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("state", STATES)
def test_a_compiled_call_gives_what_eager_gives(state):
    A = in_state(matrices(6, 3, 3), state)
    actual = compiled(lambda A: autoinv.inv(A) + 1)(A)
    torch.testing.assert_close(actual, autoinv.inv(A) + 1)
    assert actual.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_compiled_call_has_the_gradient_of_the_eager_one(dtype):
    A, B = matrices(6, 3, 3, dtype=dtype).requires_grad_(), matrices(6, 3, 3, dtype=dtype).requires_grad_()
    compiled(lambda A: autoinv.inv(A).pow(2).abs().sum())(A).backward()
    torch.linalg.inv(B).pow(2).abs().sum().backward()
    torch.testing.assert_close(A.grad, B.grad)


def test_inductor_gives_what_eager_gives_forward_and_backward():
    A, B = matrices(80, 3, 3).requires_grad_(), matrices(80, 3, 3).requires_grad_()
    f = torch.compile(lambda A: (autoinv.inv(A) * 2).pow(2).sum(), fullgraph=True, backend="inductor")
    f(A).backward()
    (torch.linalg.inv(B) * 2).pow(2).sum().backward()
    torch.testing.assert_close(A.grad, B.grad)


def test_inductor_takes_dynamic_batches_and_any_layout_of_intermediates():
    f = torch.compile(
        lambda A: autoinv.inv((A * 2).mT).reshape(-1).sin(), fullgraph=True, backend="inductor", dynamic=True
    )
    for batch in (2, 5, 9):
        A = matrices(batch, 3, 3)
        torch.testing.assert_close(f(A), torch.linalg.inv((A * 2).mT).reshape(-1).sin())


def test_one_compilation_serves_every_batch_size_and_call():
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    f = torch.compile(lambda A: autoinv.inv(A), fullgraph=True, backend=backend, dynamic=True)
    for batch in (2, 3, 7, 7, 80):
        A = matrices(batch, 3, 3)
        torch.testing.assert_close(f(A), torch.linalg.inv(A))
    assert 1 == len(compilations)
    assert ["autoinv.inv.default"] == targets(compilations[0].graph)


def test_a_compiled_call_raises_for_a_singular_matrix_as_eager_does():
    f = compiled(lambda A: autoinv.inv(A) + 1)
    for A in (torch.zeros(2, 2), torch.zeros(3, 2, 2)):
        with pytest.raises(torch.linalg.LinAlgError) as expected:
            torch.linalg.inv(A)
        with pytest.raises(torch.linalg.LinAlgError) as actual:
            f(A)
        assert str(expected.value) == str(actual.value).partition("\n")[0]  # torch 2.6 adds the node's name


def test_a_compiled_model_may_use_a_parameter_and_train():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(matrices(4, 3, 3))

        def forward(self, x):
            return autoinv.inv(self.weight) @ x

    model, x = Model(), matrices(4, 3, 3, seed=1)
    torch.compile(model, fullgraph=True, backend="aot_eager")(x).sum().backward()
    (expected,) = torch.autograd.grad((torch.linalg.inv(model.weight) @ x).sum(), model.weight)
    torch.testing.assert_close(model.weight.grad, expected)


@pytest.mark.parametrize(
    "transform",
    [
        torch.vmap,
        lambda f: torch.func.grad(lambda A: f(A).pow(3).sum()),
        torch.func.jacfwd,
        lambda f: torch.vmap(torch.func.grad(lambda A: f(A).pow(3).sum())),
        lambda f: torch.func.hessian(lambda A: f(A).pow(3).sum()),
    ],
    ids=["vmap", "grad", "jacfwd", "per-sample grad", "hessian"],
)
def test_a_transform_may_be_compiled(transform):
    A = matrices(2, 2, 2)
    torch.testing.assert_close(compiled(transform(autoinv.inv))(A), transform(torch.linalg.inv)(A))


def test_a_compiled_dual_tensor_keeps_its_tangent():
    A, dA = matrices(2, 2, 2), matrices(2, 2, 2, seed=1)

    def tangent(inv):
        return lambda A, dA: torch.func.jvp(inv, (A,), (dA,))

    torch.testing.assert_close(compiled(tangent(autoinv.inv))(A, dA), tangent(torch.linalg.inv)(A, dA))


def test_an_untransformed_compiled_call_is_the_op_and_a_transformed_one_torchs():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    A = matrices(2, 2, 2)
    torch.compile(autoinv.inv, fullgraph=True, backend=backend)(A)
    torch.compile(torch.vmap(autoinv.inv), fullgraph=True, backend=backend)(A)
    assert ["autoinv.inv.default"] == targets(graphs[0].graph)
    assert any("linalg_inv" in target for target in targets(graphs[1].graph))


def test_inv_ex_safe_inv_and_out_may_be_compiled():
    A = matrices(4, 3, 3)
    A[1] = 0
    inverse, info = compiled(lambda A: tuple(autoinv.inv_ex(A)))(A)
    assert [0, 1, 0, 0] == info.tolist()
    assert inverse.is_contiguous()
    X, ok = compiled(autoinv.safe_inv)(A)
    assert [True, False, True, True] == ok.tolist()
    torch.testing.assert_close(X[ok], torch.linalg.inv(A[ok]))
    B, out = matrices(4, 3, 3), torch.empty(4, 3, 3, dtype=torch.float64)
    compiled(lambda A, out: autoinv.inv(A, out=out))(B, out)
    torch.testing.assert_close(out, torch.linalg.inv(B))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_comes_back_from_its_file(strict):
    class Model(torch.nn.Module):
        def forward(self, A):
            return autoinv.inv(A) * 2

    batch = torch.export.Dim("batch", min=2, max=100)
    program = torch.export.export(
        Model(), (matrices(4, 3, 3),), dynamic_shapes={"A": {0: batch}}, strict=strict
    )
    assert "autoinv.inv.default" in targets(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again, A = torch.export.load(file).module(), matrices(7, 3, 3)
    torch.testing.assert_close(again(A), 2 * torch.linalg.inv(A))


def test_make_fx_records_one_op():
    A = matrices(4, 3, 3)
    graph = make_fx(lambda A: autoinv.inv(A))(A)
    assert ["autoinv.inv.default"] == targets(graph.graph)
    torch.testing.assert_close(graph(2 * A), torch.linalg.inv(2 * A))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_one_op_in_every_mode_and_under_a_gradient(mode):
    A = matrices(4, 3, 3)
    graph = make_fx(torch.func.grad(lambda A: autoinv.inv(A).pow(2).sum()), tracing_mode=mode)(A)
    assert 1 == targets(graph.graph).count("autoinv.inv.default")
    expected = torch.func.grad(lambda A: torch.linalg.inv(A).pow(2).sum())(A)
    torch.testing.assert_close(graph(A), expected)


def test_symbolic_trace_keeps_one_call_of_autoinv():
    graph = torch.fx.symbolic_trace(lambda A: autoinv.inv(A) + 1)
    assert [autoinv.inv] == [n.target for n in graph.graph.nodes if n.op == "call_function"][:1]
    A = matrices(4, 3, 3)
    torch.testing.assert_close(graph(A), torch.linalg.inv(A) + 1)


@pytest.mark.parametrize("wants_gradient", [False, True])
def test_jit_trace_holds_torchs_own_call_without_a_warning(wants_gradient):
    A = matrices(4, 3, 3).requires_grad_(wants_gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(lambda A: autoinv.inv(A) + 1, A)
    assert "aten::linalg_inv" in str(traced.graph)
    B = matrices(9, 3, 3)
    torch.testing.assert_close(traced(B), torch.linalg.inv(B) + 1)


SHAPES = [(4, 3, 3), (3, 3), (2, 3, 4, 4), (0, 3, 3), (4, 0, 0), (1, 1), (5, 1, 1), (0, 1, 1), (2, 0, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("state", ["contiguous", "transposed"])
def test_fake_and_traced_results_have_the_strides_of_real_ones(shape, state):
    A = in_state(torch.eye(shape[-1], dtype=torch.float64).expand(shape).contiguous(), state)
    real = torch.ops.autoinv.inv(A)
    with FakeTensorMode() as mode:
        fake = autoinv.inv(mode.from_tensor(A))
    assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)
    assert torch.empty(shape).stride() == real.stride()
    assert real.stride() == autoinv.inv(A).stride()


def test_a_fake_tensor_outside_its_mode_gives_a_fake_inverse():
    fake = FakeTensorMode().from_tensor(matrices(4, 3, 3))
    X = autoinv.inv(fake)
    assert type(fake) is type(X)
    assert (9, 3, 1) == X.stride()


def test_a_meta_tensor_gives_a_meta_inverse():
    for A in (torch.empty(4, 3, 3, device="meta"), torch.empty(4, 3, 3, device="meta", requires_grad=True)):
        X = autoinv.inv(A)
        assert ("meta", (4, 3, 3), (9, 3, 1)) == (X.device.type, tuple(X.shape), X.stride())


@pytest.mark.parametrize(
    "bad", [torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 2).half(), torch.zeros(2, 2).long()]
)
def test_fake_tensors_raise_torchs_own_errors(bad):
    with FakeTensorMode() as mode, pytest.raises((RuntimeError, AssertionError)) as expected:
        torch.linalg.inv(mode.from_tensor(bad))
    with FakeTensorMode() as mode, pytest.raises((RuntimeError, AssertionError)) as actual:
        autoinv.inv(mode.from_tensor(bad))
    assert (expected.type, str(expected.value)) == (actual.type, str(actual.value))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(3, 3), (4, 2, 2), (0, 3, 3)])
def test_the_op_passes_torchs_own_checks(shape, dtype):
    for A in (matrices(*shape, dtype=dtype), matrices(*shape, dtype=dtype).requires_grad_()):
        torch.library.opcheck(torch.ops.autoinv.inv.default, (A,))


def _dispatch_mode(call):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Logging(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Logging() as mode:
        result = call()
    return mode.seen, result


def test_a_dispatch_mode_sees_one_op_and_the_values_are_right():
    A = matrices(4, 3, 3)
    seen, X = _dispatch_mode(lambda: autoinv.inv(A))
    assert ["autoinv.inv.default"] == seen
    torch.testing.assert_close(X, torch.linalg.inv(A))


def test_a_gradient_may_be_taken_under_a_dispatch_mode():
    A = matrices(4, 3, 3).requires_grad_()
    _, actual = _dispatch_mode(lambda: torch.autograd.grad(autoinv.inv(A).sum(), A)[0])
    torch.testing.assert_close(actual, torch.autograd.grad(torch.linalg.inv(A).sum(), A)[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda A: compiled(autoinv.inv)(A),
        lambda A: compiled(autoinv.inv)(A.requires_grad_()).sum().backward(),
        lambda A: make_fx(lambda A: autoinv.inv(A))(A),
        lambda A: autoinv.inv(FakeTensorMode().from_tensor(A)),
        lambda A: autoinv.inv(A.to("meta")),
        # check_trace would make an ordinary call
        lambda A: torch.jit.trace(lambda A: autoinv.inv(A), A, check_trace=False),
        lambda A: torch.jit.trace(lambda A: autoinv.inv(A), A.requires_grad_(), check_trace=False),
        lambda A: torch.fx.symbolic_trace(lambda A: autoinv.inv(A)),
        lambda A: _dispatch_mode(lambda: autoinv.inv(A)),
        lambda A: _dispatch_mode(lambda: autoinv.inv_ex(A)),
        lambda A: _dispatch_mode(lambda: autoinv.safe_inv(A)),
        lambda A: _dispatch_mode(lambda: autoinv.inv(A, out=torch.empty_like(A))),
    ],
)
def test_nothing_is_timed_or_stored_while_torch_traces_or_fakes(call, private_cache_dir):
    with nothing_timed_or_stored(private_cache_dir):
        call(matrices(8, 3, 3))


def test_a_real_tensor_under_a_fake_mode_is_not_timed(private_cache_dir):
    A = matrices(8, 3, 3)
    with nothing_timed_or_stored(private_cache_dir), FakeTensorMode(allow_non_fake_inputs=True):
        assert (8, 3, 3) == tuple(autoinv.inv(A).shape)


def test_an_expanded_batch_in_a_graph_runs_by_what_is_known_of_the_single_matrix(monkeypatch):
    """As in eager mode, where each different matrix is computed once."""
    from autoinv.ops.inv import CALL
    from autoinv.ops.inv.strategies.closed_form import ClosedForm

    batches, bind = [], ClosedForm.bind
    monkeypatch.setattr(ClosedForm, "bind", lambda self, p: batches.append(p.shape) or bind(self, p))
    A = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).expand(40, 3, 3)
    with autoinv.using(strategy="closed_form"):
        X = CALL.library_op(A)
    torch.testing.assert_close(X, torch.linalg.inv(A))
    assert X.is_contiguous()
    assert batches == [(1, 3, 3)]
    with pytest.raises(torch.linalg.LinAlgError, match="Batch element 0"):
        CALL.library_op(torch.zeros(3, 3).expand(4, 3, 3))
