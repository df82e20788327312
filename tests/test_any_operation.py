"""The engine alone carries an operation of two operands that the package does not contain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import trace_product
from file_makers import decision
from torch._subclasses.fake_tensor import FakeTensorMode

import autoinv
from autoinv import environment, settings
from autoinv.api import problem_of
from autoinv.calls.out import _may_write as may_write
from autoinv.ops.inv import CALL
from autoinv.ops.table import OPERATIONS
from autoinv.planning.dispatch import key_of
from autoinv.problem import Problem
from autoinv.store import decisions
from autoinv.tune import main
from autoinv.tuning.operands import slices as slices_of

OP = "trace_product"
f, expected = trace_product.trace_product, trace_product.torch_trace_product


@pytest.fixture(autouse=True)
def in_the_table(private_cache_dir, monkeypatch):
    """The operation is in the table for one test, and starts with nothing remembered."""
    trace_product.DISPATCHER.planner.forget()
    trace_product.DISPATCHER.forget()
    monkeypatch.setitem(OPERATIONS, OP, trace_product.CALL)
    yield
    trace_product.DISPATCHER.forget()


def pair(*batch, other=None, dtype=torch.float64, **options):
    generator = torch.Generator().manual_seed(0)
    shapes = (*batch, 3, 4), (*(batch if other is None else other), 4, 3)
    A, B = (torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)
    return A.requires_grad_(bool(options)), B.requires_grad_(bool(options))


def stored(folder):
    (path,) = folder.glob("decisions-v1-*.json")
    return json.loads(path.read_text())["decisions"]


def test_the_file_of_the_operation_is_short():
    assert len(Path(trace_product.__file__).read_text().splitlines()) <= 80


def test_a_call_is_tuned_kept_in_the_file_and_explained(private_cache_dir):
    A, B = pair(80)
    with autoinv.using(budget=1.0):
        torch.testing.assert_close(f(A, B), expected(A, B))
        assert key_of(A, B) in trace_product.DISPATCHER.memo
    threads = torch.get_num_threads()
    key = f"{OP}/80x3x4,80x4x3/float64/cpu/threads={threads}/contiguous,contiguous"
    assert list(stored(private_cache_dir)) == [key]
    explained = autoinv.explain(A, B, op=OP)
    assert (explained.source, explained.problem.key) == ("tuned", key)
    assert set(explained.seconds) == {"batched", "flat"}
    assert str(explained).startswith(f"{OP} of 80x3x4, 80x4x3 float64 on cpu")


def test_the_second_call_goes_straight_to_the_winner(monkeypatch):
    A, B = pair(80)
    with autoinv.using(budget=1.0):
        f(A, B)
        f(A, B)  # a contended decision serves once before it is tuned again
        monkeypatch.setattr(trace_product.DISPATCHER, "miss", lambda *a: pytest.fail("planned again"))
        torch.testing.assert_close(f(A, B), expected(A, B))


def test_operands_of_other_layouts_are_other_problems(private_cache_dir):
    A, B = pair(80)
    with autoinv.using(budget=1.0):
        for operands in (
            (A, B),
            (A.mT.contiguous().mT, B),
            (A, B.mT.contiguous().mT),
            (A, B[:1].expand(80, 4, 3)),
        ):
            torch.testing.assert_close(f(*operands), expected(*operands))
    layouts = sorted(key.rpartition("/")[2] for key in stored(private_cache_dir))
    assert layouts == [
        "contiguous,contiguous",
        "contiguous,expanded",
        "contiguous,transposed",
        "transposed,contiguous",
    ]


@pytest.mark.parametrize(
    ("batch", "other", "count", "slices"),
    [
        ((1000,), (1000,), 1000, ((64, 3, 4), (64, 4, 3))),
        ((1,), (1000,), 1000, ((1, 3, 4), (64, 4, 3))),
        ((10, 1), (80,), 800, ((1, 1, 3, 4), (64, 4, 3))),
        ((), (1000,), 1000, ((3, 4), (64, 4, 3))),
        ((20, 30), (30,), 600, ((2, 30, 3, 4), (30, 4, 3))),
    ],
)
def test_batch_and_slices_are_those_of_the_common_batch(batch, other, count, slices):
    A, B = pair(*batch, other=other)
    problem = Problem.of(OP, A, B)
    assert trace_product.DISPATCHER.operation.batch(problem) == count
    assert slices_of(trace_product.DISPATCHER.operation, problem)[0].shapes == slices
    with autoinv.using(budget=1.0):
        torch.testing.assert_close(f(A, B), expected(A, B))


def test_a_similar_batch_is_a_neighbour_and_a_shared_operand_is_not():
    decided = decision(problem=Problem.of(OP, *pair(80)), strategy="flat")
    decisions.opened(settings.cache_dir(), environment.of("cpu")).put(decided, 1.0)
    torch.testing.assert_close(f(*pair(90)), expected(*pair(90)))
    assert autoinv.explain(*pair(90), op=OP).why == f"as decided for {decided.problem.key}"
    assert autoinv.explain(*pair(90, other=(1,)), op=OP).source == "default"
    assert autoinv.explain(*pair(200), op=OP).source == "default"


def test_a_batch_that_only_repeats_is_computed_once():
    A, B = (x[:1].expand(50, *x.shape[1:]) for x in pair(2))
    torch.testing.assert_close(f(A, B), expected(A, B))
    assert "50x3x4,50x4x3 is expanded from 1x3x4,1x4x3" in str(autoinv.explain(A, B, op=OP))


def test_operands_whose_common_batch_is_ten_times_as_large_are_no_neighbours():
    small, large = pair(1, 10, other=(8, 10)), pair(10, 1, other=(80,))
    decided = decision(problem=Problem.of(OP, *small), strategy="flat")
    decisions.opened(settings.cache_dir(), environment.of("cpu")).put(decided, 1.0)
    assert autoinv.explain(*large, op=OP).source == "default"


def test_a_strategy_setting_holds_for_the_operations_that_have_it_and_is_silent_for_others(recwarn):
    A, B = pair(6)
    with autoinv.using(strategy="flat"):
        torch.testing.assert_close(autoinv.inv(A @ B), torch.linalg.inv(A @ B))
        assert autoinv.explain(A, B, op=OP).strategy == "flat"
    with autoinv.using(strategy="closed_form"):
        torch.testing.assert_close(f(A, B), expected(A, B))
    assert [str(warning.message) for warning in recwarn] == []
    with pytest.raises(ValueError, match=r"strategy is one of .*flat.*, not 'flatt'"):
        autoinv.configure(strategy="flatt")


def test_an_operation_that_does_not_work_in_place_never_writes_over_an_operand():
    A = torch.zeros(4, 3, 3)
    assert not may_write(trace_product.DISPATCHER.operation, A, A)
    assert may_write(OPERATIONS["inv"].operation, A, A)
    assert may_write(trace_product.DISPATCHER.operation, A[:2], A[2:])
    assert not may_write(OPERATIONS["inv"].operation, A[:2], A[1:3])


def test_pins_hold_and_are_forgotten():
    shapes = ((80, 3, 4), (80, 4, 3))
    autoinv.pin(shapes, "flat", op=OP, dtype=torch.float64)
    assert autoinv.explain(*pair(80), op=OP).source == "pin"
    torch.testing.assert_close(f(*pair(80)), expected(*pair(80)))
    assert autoinv.unpin("80x3x4,80x4x3", op=OP, dtype="float64")
    assert autoinv.explain(*pair(80), op=OP).source == "default"


def test_the_command_line_warms_shows_pins_and_forgets_it(capsys):
    assert main(["warm", "80x3x4,80x4x3", "--op", OP, "--dtype", "float64", "--budget", "1"]) == 0
    assert f"{OP} of float64 on cpu" in capsys.readouterr().out
    assert autoinv.explain(*pair(80), op=OP).source == "tuned"
    assert main(["explain", "80x3x4,80x4x3", "--op", OP, "--layout", "contiguous,transposed"]) == 0
    assert "contiguous, transposed" in capsys.readouterr().out
    assert main(["pin", "80x3x4,80x4x3", "flat", "--op", OP]) == 0
    assert main(["unpin", "80x3x4,80x4x3", "--op", OP]) == 0
    assert main(["forget", "80x3x4,80x4x3", "--op", OP]) == 0
    assert "1 decision forgotten" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shape", "text"),
    [("80x3x3", "the shapes of 2 operands"), ("80x3x4,80x3x4", "3 by k|m by k"), ("80x3x4,70x4x3", "m by k")],
)
def test_shapes_that_do_not_fit_are_refused_in_one_sentence(shape, text):
    with pytest.raises(ValueError, match=text):
        problem_of(shape, OP)


def test_warm_from_python_and_forget_of_everything():
    (decision,) = autoinv.warm(((80, 3, 4), (80, 4, 3)), op=OP, budget=1.0)
    assert decision.problem.shapes == ((80, 3, 4), (80, 4, 3))
    assert autoinv.forget(op=OP) == 1


@pytest.mark.parametrize("other", [(2,), (1,), (), (3, 2), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_of_first_and_second_order_and_forward_mode(other, dtype):
    A, B = pair(2, other=other, dtype=dtype, grad=True)
    assert torch.autograd.gradcheck(f, (A, B), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (A, B))


def test_a_gradient_of_one_operand_alone():
    A, B = pair(2, grad=True)
    f(A, B.detach()).sum().backward()
    torch.testing.assert_close(A.grad, B.detach().mT.expand_as(A).clone())
    assert B.grad is None
    _, tangent = torch.func.jvp(lambda A: f(A, B.detach()), (A.detach(),), (A.detach(),))
    torch.testing.assert_close(tangent, expected(A.detach(), B.detach()))


def test_a_program_that_only_trains_tunes_too(private_cache_dir):
    A, B = pair(80, grad=True)
    with autoinv.using(budget=1.0):
        f(A, B).sum().backward()
    assert len(stored(private_cache_dir)) == 1


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 0), (2, 1), (-1, 1)])
@pytest.mark.parametrize("other", [(5, 6), (6, 5, 6), (6,), (5, 5)])
def test_vmap_computes_one_batch_whichever_operand_is_mapped(in_dims, other):
    A, B = torch.randn(5, 5, 5, 3, 4), torch.randn(*other, 4, 3)
    function = torch.vmap(f, in_dims=in_dims)
    try:
        right = torch.vmap(expected, in_dims=in_dims)(A, B)
    except (ValueError, RuntimeError) as error:
        with pytest.raises(type(error)):
            function(A, B)
    else:
        torch.testing.assert_close(function(A, B), right)


def test_vmap_of_vmap_and_of_grad_and_jacobians():
    A, B = pair(4, 5)
    nested = torch.vmap(torch.vmap(f), in_dims=(0, None))(A, B[0])
    torch.testing.assert_close(nested, expected(A, B[:1]))
    gradient = torch.vmap(torch.func.grad(f, argnums=(0, 1)))(A[:, 0], B[:, 0])
    torch.testing.assert_close(gradient, (B[:, 0].mT.contiguous(), A[:, 0].mT.contiguous()))
    jacobian = torch.func.jacrev(f)(A[0, 0], B[0, 0]), torch.func.jacfwd(f)(A[0, 0], B[0, 0])
    torch.testing.assert_close(*jacobian)


def test_the_rules_serve_large_problems_under_transforms(monkeypatch):
    monkeypatch.setattr("autoinv.calls.transforms.SMALL", 0)
    test_vmap_of_vmap_and_of_grad_and_jacobians()


def test_it_is_one_operator_when_compiled_exported_or_faked():
    A, B = pair(4, grad=True)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A, B), expected(A, B))
    compiled(A, B).sum().backward()
    torch.testing.assert_close(A.grad, B.detach().mT.contiguous())

    class Module(torch.nn.Module):
        def forward(self, A, B):
            return f(A, B)

    program = torch.export.export(Module(), (A.detach(), B.detach()))
    assert f"autoinv.{OP}.default" in str(program.graph)
    one = B[:1]
    with FakeTensorMode() as mode:
        fake = f(mode.from_tensor(A), mode.from_tensor(one))
    assert (tuple(fake.shape), fake.dtype) == ((4,), torch.float64)
    assert f(A.to("meta"), B.to("meta")).shape == (4,)
    torch.library.opcheck(getattr(torch.ops.autoinv, OP), (A, B))


def test_out_is_filled_resized_and_refused_as_torch_does():
    A, B = pair(6)
    out = torch.empty(6, dtype=torch.float64)
    assert f(A, B, out=out) is out
    torch.testing.assert_close(out, expected(A, B))
    with pytest.warns(UserWarning, match="resized"):
        torch.testing.assert_close(f(A, B, out=torch.empty(2, dtype=torch.float64)), expected(A, B))
    inside = A.view(-1)[:6]
    right = expected(A, B)
    torch.testing.assert_close(f(A, B, out=inside), right)
    with pytest.raises(RuntimeError, match="out="):
        f(A.clone().requires_grad_(), B, out=torch.empty(6, dtype=torch.float64))
    single = torch.empty((), dtype=torch.float64)
    torch.testing.assert_close(f(A[0], B[0], out=single), expected(A[0], B[0]))


def test_patched_puts_it_under_its_name_and_takes_it_away():
    A, B = pair(7)
    with autoinv.using(strategy="flat"), autoinv.patched(ops=("inv", OP)):
        assert trace_product.OWNER.trace_product is not expected
        torch.testing.assert_close(trace_product.OWNER.trace_product(A, B=B), expected(A, B))
        assert key_of(A, B) in trace_product.DISPATCHER.memo
        X = A @ B
        torch.testing.assert_close(torch.inverse(X), torch.linalg.inv(X))
        assert key_of(X) in CALL.dispatcher.memo
    assert trace_product.OWNER.trace_product is expected
    with autoinv.patched():
        assert trace_product.OWNER.trace_product is expected


@pytest.mark.parametrize(
    "operands",
    [
        lambda A, B: (A, B.float()),
        lambda A, B: (A.int(), B.int()),
        lambda A, B: (A, B.mT),
        lambda A, B: (A[:2], B[:3]),
        lambda A, B: (A[0, 0], B),
        lambda A, B: (A[:0], B[:0]),
        lambda A, B: (A.half(), B.half()),
    ],
    ids=["mixed dtypes", "integers", "no fit", "no common batch", "a vector", "empty", "half"],
)
def test_operands_that_no_strategy_takes_go_to_pytorch(operands, private_cache_dir):
    A, B = operands(*pair(4))
    try:
        right = expected(A, B)
    except RuntimeError as error:
        with pytest.raises(type(error)):
            f(A, B)
    else:
        torch.testing.assert_close(f(A, B), right)
    assert list(private_cache_dir.glob("decisions*")) == []


def raising(A, B, out=None):
    raise RuntimeError("no such kernel")


def test_a_strategy_that_raises_is_replaced_by_pytorchs_call_with_one_warning(monkeypatch):
    monkeypatch.setattr(trace_product.TraceProduct.table[1], "run", raising)
    A, B = pair(8)
    with (
        autoinv.using(strategy="flat"),
        pytest.warns(autoinv.AutoinvWarning, match=r"\(8, 3, 4\), \(8, 4, 3\)"),
    ):
        torch.testing.assert_close(f(A, B), expected(A, B))
