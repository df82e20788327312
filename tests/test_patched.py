"""`patched`: torch's own functions go through autoinv inside the block, and only there."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import itertools
import pickle
import subprocess
import sys
import threading
import types

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property, resolve_name

import autoinv
from autoinv.ops.inv import CALL

NAMES = ((torch.linalg, "inv"), (torch.linalg, "inv_ex"), (torch, "inverse"), (torch.Tensor, "inverse"))
ORIGINALS = [getattr(owner, name) for owner, name in NAMES]
IDS = ["linalg.inv", "linalg.inv_ex", "inverse", "Tensor.inverse"]
each_name = pytest.mark.parametrize("number", range(len(NAMES)), ids=IDS)


def now(number):
    """What stands under one of the names at this moment."""
    owner, name = NAMES[number]
    return getattr(owner, name)


def matrices(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator) + 3 * torch.eye(
        shape[-1], dtype=torch.float64
    )


def state():
    """What stands under each name, and whether it is the owner's own attribute."""
    return [(getattr(owner, name), name in vars(owner)) for owner, name in NAMES]


def is_answered_by_autoinv(call):
    """Whether the memo holds what answered: it is emptied before."""
    dispatcher = CALL.dispatcher
    dispatcher.forget()
    call()
    return bool(dispatcher.memo)


_batches = itertools.count(1)


def goes_through_autoinv():
    """As the memo then holds a shape that nothing else has."""
    A = torch.eye(1).repeat(next(_batches), 1, 1)
    torch.linalg.inv(A)
    return any(key[0] == A.shape for key in list(CALL.dispatcher.memo))


@pytest.fixture(autouse=True)
def no_timing():
    with autoinv.using(mode="cached"):
        yield


@pytest.fixture(autouse=True)
def undone():
    before = state()
    yield
    assert before == state()


def test_every_name_goes_through_autoinv_inside_and_not_outside():
    A = matrices(4, 3, 3)
    calls = (torch.linalg.inv, torch.inverse, torch.Tensor.inverse, lambda A: torch.linalg.inv_ex(A).inverse)
    assert [False] * 4 == [is_answered_by_autoinv(lambda call=call: call(A)) for call in calls]
    with autoinv.patched():
        inside = (torch.linalg.inv(A), torch.inverse(A), A.inverse(), torch.linalg.inv_ex(A).inverse)
        inside += (torch.Tensor.inverse(A),)
        for call in (torch.linalg.inv, torch.inverse, torch.Tensor.inverse, lambda A: torch.linalg.inv_ex(A)):
            assert is_answered_by_autoinv(lambda call=call: call(A))
    for X in inside:
        torch.testing.assert_close(X, calls[0](A))
        assert X.stride() == calls[0](A).stride()
    assert not goes_through_autoinv()


def test_keywords_are_those_of_torch():
    A, out = matrices(4, 3, 3), torch.empty(4, 3, 3, dtype=torch.float64)
    with autoinv.patched():
        torch.testing.assert_close(torch.linalg.inv(A=A), autoinv.inv(A))
        torch.testing.assert_close(torch.inverse(input=A), autoinv.inv(A))
        torch.testing.assert_close(torch.inverse(x=A), autoinv.inv(A))
        assert out is torch.linalg.inv(A, out=out)
        assert out is torch.inverse(A, out=out)


A23, A33 = torch.zeros(2, 3), torch.eye(3)


@each_name
@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((), {}),
        ((A33, A33), {}),
        ((None,), {}),
        (([[1.0]],), {}),
        ((A33,), {"out": 3}),
        ((A33,), {"out": A33.int()}),
        ((A33,), {"check_errors": "yes"}),
        ((A33,), {"A": A33}),
        ((A33,), {"upper": True}),
        ((), {"A": None}),
        ((), {"input": 3}),
        ((), {"B": A33}),
        ((A23,), {}),
        ((A33.int(),), {}),
        ((torch.zeros(2, 3, 3),), {}),
        ((torch.zeros(2, 3, 3),), {"check_errors": True}),
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(number, args, keywords):
    def refusal():
        try:
            now(number)(*args, **keywords)
        except Exception as error:
            return type(error), str(error)
        return None

    expected = refusal()
    with autoinv.patched():
        assert expected == refusal()


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

    A = matrices(4, 3, 3)
    assert is_answered_by_autoinv(lambda: inverse(A))
    assert ("inverse", "Its docstring.") == (inverse.__name__, inverse.__doc__)
    assert not goes_through_autoinv()


def test_the_replacement_has_the_name_and_docstring_of_the_original():
    def names():
        functions = [now(number) for number in range(len(NAMES))]
        return [(f.__name__, f.__qualname__, f.__doc__, getattr(f, "__module__", None)) for f in functions]

    expected = names()
    with autoinv.patched():
        assert expected == names()
        assert ("inverse", ORIGINALS[3].__doc__) == (A33.inverse.__name__, A33.inverse.__doc__)


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


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial], ids=["function", "partial"])
def test_a_foreign_patch_made_outside_is_kept(wrap):
    before, calls = torch.linalg.inv, []

    @wrap
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
    assert X.stride() == torch.linalg.inv(A).stride()
    ((op, *strides),) = graphs
    assert (op, {*strides} <= {"<built-in function getattr>"}) == ("autoinv.inv.default", True)


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


# --- what overrides torch's functions sees the originals


class Lazy:
    """The idea of linear_operator's ``LinearOperator``: no tensor, with handlers by torch's function."""

    handlers = {}  # noqa: RUF012 -- as those libraries have it

    def __init__(self, diagonal):
        self.diagonal, self.seen = diagonal, []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        lazy = next(x for x in (*args, *(kwargs or {}).values()) if isinstance(x, Lazy))
        lazy.seen.append((function, args, kwargs))
        return cls.handlers[function](*args, **(kwargs or {}))


def implements(function, handlers=Lazy.handlers):
    def decorate(handler):
        handlers[function] = handler
        return handler

    return decorate


@implements(torch.linalg.inv)
@implements(torch.inverse)
def inverse_of_diagonal(*args, **keywords):
    (lazy,) = (*args, *keywords.values())
    return Lazy(1 / lazy.diagonal)


class Logging(torch.Tensor):
    """A subclass that notes what arrives."""

    seen = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append((function, len(args), kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs or {})


class LoggingMode(TorchFunctionMode):
    def __init__(self):
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append((function, len(args), kwargs or {}))
        return function(*args, **(kwargs or {}))


def only(seen, original):
    """Whether torch's own function arrived, once: the very object, not one that is equal to it."""
    return [id(original)] == [id(function) for function, *_ in seen if function == original]


@each_name
def test_a_subclass_sees_the_original_once(number):
    Logging.seen.clear()
    with autoinv.patched():
        answer = now(number)(matrices(4, 3, 3).as_subclass(Logging))
        seen = list(Logging.seen)
    assert only(seen, ORIGINALS[number])
    assert [(1, {})] == [entry[1:] for entry in seen]
    assert Logging is type(answer[0] if number == 1 else answer)


def test_a_method_of_a_subclass_arrives_as_the_method():
    Logging.seen.clear()
    with autoinv.patched():
        assert Logging is type(matrices(4, 3, 3).as_subclass(Logging).inverse())
    assert only(Logging.seen, ORIGINALS[3])


@each_name
def test_a_function_mode_sees_the_original_once(number):
    with autoinv.patched(), LoggingMode() as mode:
        now(number)(matrices(4, 3, 3))
        assert only(mode.seen, ORIGINALS[number])
        with torch.device(
            "cpu"
        ):  # a mode above: a method reaches this one by way of torch's own, as an equal
            now(number)(matrices(4, 3, 3))
    assert 2 == sum(function == ORIGINALS[number] for function, *_ in mode.seen)


@pytest.mark.parametrize("number", [0, 2])
def test_a_lazy_operator_finds_its_handlers_by_position_and_by_keyword(number):
    name = "A" if number == 0 else "input"
    lazy = Lazy(torch.tensor([2.0, 4.0]))
    with autoinv.patched():
        by_position, by_name = now(number)(lazy), now(number)(**{name: lazy})
    for inverse in (by_position, by_name):
        torch.testing.assert_close(inverse.diagonal, torch.tensor([0.5, 0.25]))
    assert [(ORIGINALS[number], (lazy,), None), (ORIGINALS[number], (), {name: lazy})] == [
        (function, args, kwargs or None) for function, args, kwargs in lazy.seen
    ]
    assert all(function is ORIGINALS[number] for function, *_ in lazy.seen)


@each_name
def test_registries_filled_inside_work_after_and_those_filled_before_work_inside(number):
    before, inside = {ORIGINALS[number]: "before"}, {}
    with autoinv.patched():
        implements(now(number), inside)("inside")
        assert ("before", "inside") == (before[now(number)], inside[ORIGINALS[number]])
        assert now(number) == ORIGINALS[number] and ORIGINALS[number] == now(number)
        assert now(number) not in [f for f in ORIGINALS if f is not ORIGINALS[number]]
    assert "inside" == inside[now(number)]
    with autoinv.patched():
        assert "inside" == inside[now(number)]


# --- what looks at the functions


@each_name
def test_a_function_is_pickled_and_copied_as_torchs_own(number):
    with autoinv.patched():
        texts = [pickle.dumps(now(number), protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
        assert all(pickle.loads(text) is now(number) for text in texts)
        assert copy.copy(now(number)) is copy.deepcopy(now(number)) is now(number)
        kept = now(number)
    assert all(pickle.loads(text) is ORIGINALS[number] for text in (*texts, pickle.dumps(kept)))
    assert "autoinv" not in str(texts)


@each_name
def test_torch_and_inspect_say_of_a_function_what_they_say_outside(number):
    def said():
        function = now(number)

        @functools.wraps(function)
        def wrapper():
            pass

        with pytest.raises(ValueError, match="no signature found") as unsigned:
            inspect.signature(function)
        names = (wrapper.__name__, wrapper.__qualname__, wrapper.__doc__, sorted(vars(wrapper)))
        return resolve_name(function), is_tensor_method_or_property(function), names, str(unsigned.value)

    expected = said()
    with autoinv.patched():
        assert expected == said()
        assert "autoinv" in repr(now(number))
        with pytest.raises(AttributeError):
            now(number).no_such_attribute  # noqa: B018


PROGRAM = """
import torch, autoinv
from torch.linalg import inv as by_name

def linalg_inv(x: torch.Tensor): return torch.linalg.inv(x)
def linalg_inv_ex(x: torch.Tensor): return torch.linalg.inv_ex(x)[0]
def inverse(x: torch.Tensor): return torch.inverse(x)
def method(x: torch.Tensor): return x.inverse()
def named(x: torch.Tensor): return by_name(x)
def own(x: torch.Tensor): return autoinv.inv(x)
def own_into(x: torch.Tensor): return autoinv.inv(x, out=x)
"""
FUNCTIONS = ("linalg_inv", "linalg_inv_ex", "inverse", "method", "named")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A module in a file, as TorchScript wants its source."""
    (tmp_path / "inverting_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "inverting_program", raising=False)
    import inverting_program

    return inverting_program


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scripts_traces_and_graphs_are_made_inside(program, name):
    A, function = matrices(4, 3, 3), getattr(program, name)
    expected = function(A)
    scripted_outside, symbolic_outside = (
        torch.jit.script(function).code,
        torch.fx.symbolic_trace(function).code,
    )
    with autoinv.patched(modules=[program]):
        scripted, traced = torch.jit.script(function), torch.jit.trace(function, A)
        symbolic, graph = torch.fx.symbolic_trace(function), make_fx(function)(A)
        for made in (scripted, traced, symbolic, graph):
            torch.testing.assert_close(made(A), expected)
    assert (scripted_outside, symbolic_outside) == (scripted.code, symbolic.code)
    for made in (scripted, traced, symbolic, graph, torch.jit.script(function)):
        torch.testing.assert_close(made(A), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_are_compiled_and_exported_inside(program, name):
    A, function = matrices(4, 3, 3), getattr(program, name)
    expected = function(A)
    torch._dynamo.reset()
    with autoinv.patched(modules=[program]):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(A), expected)
    torch.testing.assert_close(compiled(A), expected)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_compiles_inv_itself_as_the_operator(program):
    A = matrices(4, 3, 3).requires_grad_()
    scripted = torch.jit.script(program.own)
    assert "autoinv::inv" in str(scripted.graph)
    torch.testing.assert_close(scripted(A), autoinv.inv(A))
    actual, expected = (torch.autograd.grad(f(A).sum(), A)[0] for f in (scripted, autoinv.inv))
    torch.testing.assert_close(actual, expected)
    with pytest.raises(RuntimeError, match="Keyword argument out unknown"):
        torch.jit.script(program.own_into)


SCRIPT_FIRST_INSIDE = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, autoinv, inverting_program as program
with autoinv.patched():
    torch.jit.script(program.inverse)
for name in ("linalg_inv", "linalg_inv_ex", "inverse", "method"):
    torch.jit.script(getattr(program, name))(torch.eye(3))
"""


def test_torchscript_may_be_used_inside_first(program, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT_FIRST_INSIDE, str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)


# --- inv_ex


def test_the_result_of_inv_ex_is_torchs_named_tuple():
    A = torch.cat([matrices(3, 3, 3), torch.zeros(1, 3, 3, dtype=torch.float64)])
    expected = torch.linalg.inv_ex(A)
    with autoinv.patched():
        out = (torch.empty_like(A), torch.empty(4, dtype=torch.int32))
        answers = [torch.linalg.inv_ex(A), torch.linalg.inv_ex(A=A, out=out), torch.linalg.inv_ex(A)]
        mapped = torch.vmap(torch.linalg.inv_ex)(A[:3])
        with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.inv_ex: \(Batch element 3\)"):
            torch.linalg.inv_ex(A, check_errors=True)
    for answer in answers:
        assert type(expected) is type(answer)
        assert expected.info.equal(answer.info)
        torch.testing.assert_close(answer.inverse[:3], expected.inverse[:3])
    assert (out[0], out[1]) == (answers[1].inverse, answers[1].info) or out[0] is answers[1].inverse
    torch.testing.assert_close(mapped[0], expected.inverse[:3])


# --- names bound before, and other threads


@pytest.fixture
def library():
    """A module that imported torch's functions by name, before."""
    module = types.ModuleType("library")
    module.inv, module.invert, module.inv_ex = torch.linalg.inv, torch.inverse, torch.linalg.inv_ex
    module.method, module.unrelated = torch.Tensor.inverse, torch.det
    return module


def test_names_bound_before_are_reached_in_the_modules_given(library):
    A, before = matrices(4, 3, 3), dict(vars(library))
    with autoinv.patched():
        assert not is_answered_by_autoinv(lambda: library.inv(A))
        with autoinv.patched(modules=[library, torch.linalg]):
            for call in (library.inv, library.invert, library.inv_ex, library.method):
                assert is_answered_by_autoinv(lambda call=call: call(A))
        assert before == vars(library) and all(vars(library)[name] is f for name, f in before.items())
    with pytest.raises(TypeError, match=r"modules, such as sys\.modules\['library'\], not str"):
        autoinv.patched(modules=["library"])


def test_names_in_modules_are_put_back_when_a_block_raises_and_when_blocks_overlap(library):
    before = dict(vars(library))

    def is_back():
        return all(vars(library)[name] is f for name, f in before.items())

    with pytest.raises(KeyError), autoinv.patched(modules=[library]):
        raise KeyError
    assert is_back()
    first, second = autoinv.patched(modules=[library]), autoinv.patched(modules=[library])
    in_thread = threading.Thread(target=second.__enter__)
    first.__enter__()
    in_thread.start()
    in_thread.join()
    first.__exit__(None, None, None)
    assert library.inv == before["inv"] and library.inv is not before["inv"]
    second.__exit__(None, None, None)
    assert is_back()


def test_a_name_that_a_module_rebinds_inside_stays_its_own(library):
    with autoinv.patched(modules=[library]):
        library.inv = torch.det
    assert torch.det is library.inv


def test_a_block_that_cannot_be_entered_leaves_nothing_behind(library):
    class Frozen(types.ModuleType):
        def __setattr__(self, name, value):
            raise AttributeError("frozen")

    frozen = Frozen("frozen")
    vars(frozen)["inv"] = torch.linalg.inv
    before = dict(vars(library))
    with pytest.raises(AttributeError, match="frozen"):
        autoinv.patched(modules=[library, frozen]).__enter__()
    assert before == vars(library) and torch.linalg.inv is ORIGINALS[0]
    assert not goes_through_autoinv()


def in_another_thread(function):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(function()))
    thread.start()
    thread.join()
    return seen[0]


def test_all_threads_are_reached_when_asked():
    with autoinv.patched(all_threads=True):
        assert in_another_thread(goes_through_autoinv)
        with autoinv.patched():
            pass
        assert goes_through_autoinv() and in_another_thread(goes_through_autoinv)
    with autoinv.patched():
        assert goes_through_autoinv() and not in_another_thread(goes_through_autoinv)


def test_a_block_may_be_left_in_another_thread_than_it_was_entered_in():
    block = autoinv.patched()
    with autoinv.patched():
        in_another_thread(lambda: [block.__enter__(), block.__enter__()])
        block.__exit__(None, None, None)
        block.__exit__(None, None, None)
        assert goes_through_autoinv()
    assert not goes_through_autoinv()
    with autoinv.patched():
        assert not in_another_thread(goes_through_autoinv)
