"""Each operation in every unusual state of its operands and of torch: it does what PyTorch's own function does."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
import trace_product
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import autoinv
from autoinv.ops.table import OPERATIONS
from autoinv.planning.dispatch import key_of

FLOAT64, COMPLEX128 = torch.float64, torch.complex128

OPERANDS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "inv": lambda dtype: (randn(5, 3, 3, dtype=dtype) + 3 * torch.eye(3, dtype=dtype),),
    "trace_product": lambda dtype: (randn(5, 3, 4, dtype=dtype), randn(5, 4, 3, dtype=dtype)),
}
"""Operands for each operation of the table, and for one that is in none."""

CALLS = {**OPERATIONS, "trace_product": trace_product.CALL}


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


class Subclass(torch.Tensor):
    """A tensor that leaves everything to torch."""


class Seen(TorchDispatchMode):
    """Counts what reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Bypassed(TorchFunctionMode):
    """Answers 7 to everything."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return torch.tensor(7.0)


def negated(x):
    """A view whose memory holds the negatives."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def each(change):
    """The state that every operand is in after this change."""
    return lambda f, operands: f(*map(change, operands))


def within(mode):
    """The state in which this mode is active."""

    def state(f, operands):
        with mode():
            return f(*operands)

    return state


def dual(f, operands):
    with forward_ad.dual_level():
        made = [forward_ad.make_dual(x, torch.ones_like(x)) for x in operands]
        return tuple(forward_ad.unpack_dual(f(*made)))


def traced(f, operands):
    return make_fx(lambda *xs: f(*xs))(*operands)(*[2 * x for x in operands])


def dispatched(f, operands):
    with Seen() as seen:
        result = f(*operands)
    assert seen.count > 0
    return result


def faked(f, operands):
    with FakeTensorMode() as mode:
        result = f(*[mode.from_tensor(x) for x in operands])
    return result.shape, str(result.dtype)


def faked_with_real_inputs(f, operands):
    with FakeTensorMode(allow_non_fake_inputs=True):
        result = f(*operands)
    return result.shape, str(result.dtype)


def jit_traced(f, operands):
    return torch.jit.trace(lambda *xs: f(*xs), operands, check_trace=False)(*[2 * x for x in operands])


def compiled(f, operands):
    return torch.compile(lambda *xs: f(*xs), backend="eager", fullgraph=True)(*operands)


def escaped(f, operands):
    kept = []
    torch.vmap(lambda x: (kept.append(x), x)[1])(operands[0])
    return f(kept[0], *operands[1:])


def differentiated(f, operands):
    inputs = [x.requires_grad_() for x in operands]
    result = f(*inputs)
    return (result.detach(), *torch.autograd.grad(result.abs().sum(), inputs))


def functionalized(f, operands):
    return torch.func.functionalize(lambda *xs: f(*xs))(*operands)


def inferred(f, operands):
    with torch.inference_mode():
        result = f(*operands)
    return result.clone(), result.is_inference()


STATES: dict[str, tuple[Callable[..., object], torch.dtype]] = {
    "plain": (each(lambda x: x), FLOAT64),
    "complex": (each(lambda x: x), COMPLEX128),
    "transposed memory": (each(lambda x: x.mT.contiguous().mT), FLOAT64),
    "negated view": (each(negated), FLOAT64),
    "one negated view": (lambda f, operands: f(negated(operands[0]), *operands[1:]), FLOAT64),
    "conjugated view": (each(torch.conj), COMPLEX128),
    "conjugate transpose and back": (each(lambda x: x.mH.resolve_conj().mH), COMPLEX128),
    "dual numbers": (dual, FLOAT64),
    "make_fx": (traced, FLOAT64),
    "a dispatch mode": (dispatched, FLOAT64),
    "fake": (faked, FLOAT64),
    "real under a fake mode": (faked_with_real_inputs, FLOAT64),
    "meta": (lambda f, operands: tuple(f(*[x.to("meta") for x in operands]).shape), FLOAT64),
    "vmap": (lambda f, operands: torch.vmap(f)(*operands), FLOAT64),
    "grad": (
        lambda f, operands: torch.func.grad(lambda *xs: f(*xs).sum(), tuple(range(len(operands))))(*operands),
        FLOAT64,
    ),
    "jvp": (lambda f, operands: torch.func.jvp(f, operands, operands), FLOAT64),
    "functionalize": (functionalized, FLOAT64),
    "reverse mode": (differentiated, FLOAT64),
    "reverse mode, complex": (differentiated, COMPLEX128),
    "compiled": (compiled, FLOAT64),
    "jit.trace": (jit_traced, FLOAT64),
    "a function mode": (within(Bypassed), FLOAT64),
    "a device context": (within(lambda: torch.device("cpu")), FLOAT64),
    "a device context of another device": (within(lambda: torch.device("meta")), FLOAT64),
    "a copy on write": (each(torch._lazy_clone), FLOAT64),
    "inference mode": (inferred, FLOAT64),
    "no_grad of a leaf": (lambda f, operands: f(*[x.requires_grad_() for x in operands]).detach(), FLOAT64),
    "autocast": (within(lambda: torch.autocast("cpu", dtype=torch.bfloat16)), torch.float32),
    "parameters": (each(lambda x: torch.nn.Parameter(x, requires_grad=False)), FLOAT64),
    "buffers": (each(torch.nn.Buffer), FLOAT64),
    "a subclass": (each(lambda x: x.as_subclass(Subclass)), FLOAT64),
    "one subclass": (lambda f, operands: f(operands[0].as_subclass(Subclass), *operands[1:]), FLOAT64),
    "sparse": (each(torch.Tensor.to_sparse), FLOAT64),
    "sparse CSR": (each(lambda x: x[0].to_sparse_csr()), FLOAT64),
    "nested": (each(lambda x: torch.nested.nested_tensor(list(x))), FLOAT64),
    "a functional wrapper": (each(torch._to_functional_tensor), FLOAT64),
    "mkldnn": (each(lambda x: x.float().to_mkldnn()), FLOAT64),
    "zero tensors": (each(lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype)), FLOAT64),
    "an escaped vmap tensor": (escaped, FLOAT64),
    "integers": (each(lambda x: x.to(torch.int64)), FLOAT64),
    "half": (each(torch.Tensor.half), FLOAT64),
    "empty": (each(lambda x: x[:0]), FLOAT64),
    "vectors": (each(lambda x: x[0, 0]), FLOAT64),
    "copied": (each(copy.deepcopy), FLOAT64),
}


def outcome(state, f, operands):
    """Return what a call gives: its values, or the type of its error."""
    try:
        return "values", state(f, operands)
    except Exception as error:
        return "raises", type(error)


def compare(actual, expected):
    """Assert equal values of equal types; whatever is not a tensor must be equal."""
    if isinstance(expected, tuple) and not isinstance(expected, torch.Size):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, check_stride=False, equal_nan=True)
    else:
        assert actual == expected


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("op", CALLS)
def test_each_operation_does_what_torch_does_in_each_state(op, state, is_known):
    run, dtype = STATES[state]
    call = CALLS[op]
    call.dispatcher.forget()
    if is_known:
        call.function(*OPERANDS[op](dtype))
    kind, expected = outcome(run, call.operation.torch_call, OPERANDS[op](dtype))
    actual_kind, actual = outcome(run, call.function, OPERANDS[op](dtype))
    assert actual_kind == kind, (expected, actual)
    if kind == "values":
        compare(actual, expected)
        assert type(actual) is type(expected)
    else:
        assert issubclass(actual, expected)


def first(inverse, info):
    """The inverse of what `inv_ex` returns."""
    del info
    return inverse


PATCHED = {
    "inv_ex": (lambda A: first(*autoinv.inv_ex(A)), lambda A: first(*torch.linalg.inv_ex(A))),
    "torch.linalg.inv": (lambda A: torch.linalg.inv(A),) * 2,
    "torch.linalg.inv_ex": (lambda A: first(*torch.linalg.inv_ex(A)),) * 2,
    "torch.inverse": (lambda A: torch.inverse(A),) * 2,
    "Tensor.inverse": (lambda A: A.inverse(),) * 2,
}
"""The other functions of `inv`: ours, which is called inside `patched`, and torch's own."""


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", PATCHED)
def test_inv_ex_and_torchs_own_names_do_what_torch_does_in_each_state(name, state):
    run, dtype = STATES[state]
    ours, theirs = PATCHED[name]
    autoinv.inv_ex(*OPERANDS["inv"](dtype))
    kind, expected = outcome(run, theirs, OPERANDS["inv"](dtype))
    torch._dynamo.reset()
    with autoinv.patched():
        actual_kind, actual = outcome(run, ours, OPERANDS["inv"](dtype))
    assert actual_kind == kind, (expected, actual)
    if kind == "values":
        compare(actual, expected)
        assert type(actual) is type(expected)
    else:
        assert issubclass(actual, expected)


@pytest.mark.parametrize("way", ["a block", "a default device", "two blocks"])
def test_a_device_context_takes_the_fast_path_and_any_other_mode_sees_torchs_call(way, private_cache_dir):
    (A,) = OPERANDS["inv"](FLOAT64)
    expected, out = torch.linalg.inv(A), torch.empty_like(A)
    leaf = A.clone().requires_grad_()

    def answers():
        (gradient,) = torch.autograd.grad(autoinv.inv(leaf).sum(), leaf)
        return autoinv.inv(A), autoinv.inv_ex(A).inverse, autoinv.inv(A, out=out), gradient

    allocated = []

    def run(A, out=None):  # what the mode would intercept, were it asked
        allocated.append(torch.empty(1).device.type)
        return torch.linalg.inv(A).contiguous() if out is None else out.copy_(torch.linalg.inv(A))

    memo = OPERATIONS["inv"].dispatcher.memo
    with contextlib.ExitStack() as blocks:
        if way == "a default device":
            blocks.callback(torch.set_default_device, None)
            torch.set_default_device("meta")
        for _ in range(way.count("block") + way.count("two")):
            blocks.enter_context(torch.device("meta"))
        with autoinv.using(strategy="native"):
            *found, gradient = answers()
            torch.testing.assert_close(found, [expected] * 3)
            torch.testing.assert_close(gradient, torch.autograd.grad(autoinv.inv(leaf).sum(), leaf)[0])
            assert memo
        memo.clear()
        memo[key_of(A)] = run
        torch.testing.assert_close(answers()[:3], (expected,) * 3)
        assert allocated and set(allocated) == {"cpu"}
        with Bypassed():
            answer = autoinv.inv(A)
    assert answer.shape == ()  # the mode's 7
    assert list(private_cache_dir.glob("decisions*")) == []


def test_a_subclass_as_out_overrides_under_a_device_context_too():
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return function.__name__

    (A,) = OPERANDS["inv"](FLOAT64)
    out, info = torch.empty_like(A).as_subclass(Refusing), torch.empty(5, dtype=torch.int32)
    with torch.device("cpu"):
        assert autoinv.inv(A, out=out) == "linalg_inv"
        with autoinv.patched():
            assert torch.linalg.inv(A, out=out) == "linalg_inv"
            assert torch.linalg.inv_ex(A, out=(out, info)) == "linalg_inv_ex"


@pytest.mark.parametrize("op", CALLS)
def test_every_operation_of_the_table_has_operands_here(op):
    assert op in OPERANDS


@pytest.mark.parametrize("op", [op for op, call in CALLS.items() if "native" in call.operation.names()])
def test_a_freed_storage_raises_and_does_not_end_the_process(op):
    """PyTorch's own call reads address 0, which ends the process."""
    first, *others = OPERANDS[op](FLOAT64)
    first = first.clone()
    first.untyped_storage().resize_(0)
    with pytest.raises((RuntimeError, ValueError)), autoinv.using(strategy="native"):
        CALLS[op].function(first, *others)
