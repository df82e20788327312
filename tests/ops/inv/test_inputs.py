"""Unusual inputs, and inputs that PyTorch answers itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from nothing_timed_or_stored import nothing_timed_or_stored
from torch.overrides import TorchFunctionMode

import autoinv
from autoinv import native


def matrices(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator) + 3 * torch.eye(shape[-1], dtype=dtype)


def assert_same(A, inv=autoinv.inv):
    X, expected = inv(A), torch.linalg.inv(A)
    torch.testing.assert_close(X, expected)
    assert type(expected) is type(X)
    assert X.is_contiguous()
    return X


def assert_same_error(A, call=autoinv.inv, torch_call=torch.linalg.inv):
    with pytest.raises(Exception) as expected:
        torch_call(A)
    with pytest.raises(expected.type) as actual:
        call(A)
    assert str(expected.value) == str(actual.value)


# --- a wrong input raises torch's own error


REFUSED = {
    "int64": lambda: torch.ones(2, 2).long(),
    "bool": lambda: torch.ones(2, 2).bool(),
    "float16": lambda: torch.ones(2, 2).half(),
    "bfloat16": lambda: torch.ones(2, 2).bfloat16(),
    "one dim": lambda: torch.ones(3),
    "no dim": lambda: torch.ones(()),
    "not square": lambda: torch.ones(4, 2, 3),
    "empty and not square": lambda: torch.ones(0, 3),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse csr": lambda: torch.eye(3).to_sparse_csr(),
    "mkldnn": lambda: torch.eye(3).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.eye(2), torch.eye(3)]),
    "quantised": lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
    "singular": lambda: torch.zeros(3, 2, 2),
    "float16 with gradient": lambda: torch.ones(2, 2).half().requires_grad_(),
    "sparse with gradient": lambda: torch.eye(3).to_sparse().requires_grad_(),
    "not square with gradient": lambda: torch.ones(2, 3, requires_grad=True),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_input_that_torch_refuses_is_refused_in_its_words(kind):
    assert_same_error(REFUSED[kind]())


@pytest.mark.parametrize("A", [None, 3, [[1.0]], "A"])
def test_an_input_that_is_not_a_tensor_is_a_type_error(A):
    assert_same_error(A)


def test_a_numpy_array_is_a_type_error():
    numpy = pytest.importorskip("numpy", reason="numpy is optional for torch")
    assert_same_error(numpy.eye(3))


# --- views, lazy bits and storage


@pytest.mark.parametrize("view", [lambda A: A.conj(), lambda A: A.mH, lambda A: A.conj().mT[:2]])
def test_a_conj_view_is_inverted_with_its_values_and_gives_a_plain_result(view):
    A = view(matrices(4, 3, 3, dtype=torch.complex128))
    assert A.is_conj()
    assert not assert_same(A).is_conj()


def test_every_strategy_inverts_a_contiguous_conj_view():
    A = matrices(4, 3, 3, dtype=torch.complex128).conj()
    for name in autoinv.ops.inv.operation.INV.names():
        with autoinv.using(strategy=name):
            torch.testing.assert_close(autoinv.inv(A), torch.linalg.inv(A))
            assert not autoinv.inv(A).is_conj()


@pytest.mark.parametrize("shape", [(4, 3, 3), (1, 1), (1, 1, 1)])
def test_a_neg_view_is_inverted_with_its_values(shape):
    C = matrices(*shape, dtype=torch.complex128) + 1j
    A = C.conj().imag
    assert A.is_neg()
    assert not assert_same(A).is_neg()
    assert_same(torch._neg_view(matrices(*shape)))


def test_a_view_with_an_offset_is_inverted_not_the_storages_start():
    A = matrices(6, 3, 3)
    torch.testing.assert_close(autoinv.inv(A[3]), torch.linalg.inv(A.clone()[3].clone()))
    assert_same(A[2:5])
    assert_same(A.flatten()[1:19].view(2, 3, 3))


def test_a_copy_on_write_clone_is_inverted():
    A = matrices(4, 3, 3)
    assert_same(torch._lazy_clone(A))


def test_a_tensor_from_numpy_memory_is_inverted():
    numpy = pytest.importorskip("numpy", reason="numpy is optional for torch")
    backwards = numpy.ascontiguousarray(matrices(4, 3, 3).numpy())
    assert_same(torch.from_numpy(backwards))


def test_an_expanded_batch_is_inverted_once_and_filled():
    M = matrices(3, 3)
    X = assert_same(M.expand(10000, 3, 3))
    assert 10000 * 9 == X.untyped_storage().nbytes() // 8


# --- kinds of tensor


def test_a_parameter_gives_a_tensor():
    P = torch.nn.Parameter(matrices(4, 3, 3))
    assert torch.Tensor is type(autoinv.inv(P))
    assert autoinv.inv(P).requires_grad
    with torch.no_grad():
        assert torch.Tensor is type(autoinv.inv(P))
        assert not autoinv.inv(P).requires_grad
    frozen = torch.nn.Parameter(matrices(4, 3, 3), requires_grad=False)
    assert_same(frozen)


def test_a_buffer_is_an_ordinary_tensor():
    assert_same(torch.nn.Buffer(matrices(4, 3, 3)))


class Wrapped(torch.Tensor):
    """A subclass without handlers: torch's results are of it."""


class Densified(torch.Tensor):
    """A subclass that computes its own inverse."""

    called: tuple[object, ...] = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.linalg.inv:
            cls.called = (*cls.called, func)
            return "its own inverse"
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_stays_of_its_class():
    A = matrices(4, 3, 3).as_subclass(Wrapped)
    X = autoinv.inv(A)
    assert Wrapped is type(X)
    torch.testing.assert_close(X.as_subclass(torch.Tensor), torch.linalg.inv(A.as_subclass(torch.Tensor)))


def test_a_subclass_with_a_handler_answers_for_itself():
    A = matrices(4, 3, 3).as_subclass(Densified)
    assert "its own inverse" == autoinv.inv(A)
    assert (torch.linalg.inv,) == Densified.called[-1:]


def test_a_subclass_is_never_timed(private_cache_dir):
    with nothing_timed_or_stored(private_cache_dir):
        autoinv.inv(matrices(4, 3, 3).as_subclass(Wrapped))
        autoinv.inv_ex(matrices(4, 3, 3).as_subclass(Wrapped))
        autoinv.safe_inv(matrices(4, 3, 3).as_subclass(Wrapped))


def test_an_object_with_torch_function_is_asked():
    class Lazy:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return (func, args)

    lazy = Lazy()
    assert (torch.linalg.inv, (lazy,)) == autoinv.inv(lazy)


# --- contexts


def test_inference_mode_gives_an_inference_tensor_and_tunes(private_cache_dir):
    A = matrices(80, 3, 3)
    with torch.inference_mode():
        assert assert_same(A).is_inference()
        assert_same(A.clone())
    assert not autoinv.inv(A).is_inference()


def test_a_tensor_made_in_inference_mode_may_be_inverted_outside():
    with torch.inference_mode():
        A = matrices(4, 3, 3)
    assert_same(A)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_autocast_acts_as_on_torchs_call(dtype, wants_gradient):
    A = matrices(4, 3, 3).to(dtype).requires_grad_(wants_gradient)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        X, expected = autoinv.inv(A), torch.linalg.inv(A)
    assert expected.dtype == X.dtype
    assert expected.requires_grad == X.requires_grad
    torch.testing.assert_close(X, expected)
    if wants_gradient:
        torch.testing.assert_close(
            torch.autograd.grad(X.sum(), A)[0], torch.autograd.grad(expected.sum(), A)[0]
        )


@pytest.mark.parametrize("strategy", autoinv.ops.inv.operation.INV.names())
def test_no_strategy_loses_precision_under_autocast(strategy):
    A = matrices(2, 4, 3, 3, dtype=torch.float32)
    with autoinv.using(strategy=strategy), torch.autocast("cpu", dtype=torch.bfloat16):
        X = autoinv.inv(A)
    torch.testing.assert_close(X, torch.linalg.inv(A))


def test_a_tuning_under_autocast_rejects_no_strategy_for_precision():
    A = matrices(64, 3, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autoinv.inv(A)
    assert not [reason for reason in autoinv.explain(A).rejected.values() if "residual" in reason]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_does_not_move_the_result(device):
    A = matrices(80, 3, 3)
    with torch.device(device):
        X = autoinv.inv(A)
        R = autoinv.inv(A.clone().requires_grad_())
        info = autoinv.inv_ex(A).info
        safe, ok = autoinv.safe_inv(A, eps=0.0, singular="pinv")
    assert {"cpu"} == {x.device.type for x in (X, R, info, safe, ok)}
    torch.testing.assert_close(X, torch.linalg.inv(A))


def test_a_default_device_does_not_stop_the_tuning():
    A = matrices(80, 3, 3)
    with torch.device("cpu"):
        autoinv.inv(A)
    assert autoinv.explain(A).source in ("tuned", "file")


def test_a_default_dtype_does_not_change_the_result_dtype():
    A = matrices(80, 3, 3, dtype=torch.float32)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.float32 == autoinv.inv(A).dtype
        assert torch.float32 == autoinv.safe_inv(A, eps=1e-3)[0].dtype
    finally:
        torch.set_default_dtype(before)


def test_a_function_mode_sees_torchs_own_call(private_cache_dir):
    class Recording(TorchFunctionMode):
        seen: tuple[object, ...] = ()

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen = (*self.seen, func)
            return func(*args, **(kwargs or {}))

    A = matrices(4, 3, 3)
    for operand in (A, A.clone().requires_grad_(), torch.nn.Parameter(A.clone())):
        with nothing_timed_or_stored(private_cache_dir), Recording() as mode:
            X = autoinv.inv(operand)
        assert torch.linalg.inv in mode.seen
        torch.testing.assert_close(X, torch.linalg.inv(operand))
        assert X.is_contiguous()


def test_saved_tensor_hooks_see_the_inverse_that_is_saved():
    A, packed = matrices(4, 3, 3).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.shape) or x, lambda x: x):
        autoinv.inv(A).sum().backward()
    assert (4, 3, 3) in [tuple(shape) for shape in packed]


FREED = """
import sys, torch, autoinv
A, out = torch.randn(4, 3, 3), torch.empty(4, 3, 3)
autoinv.configure(strategy="native")
for _ in range(3):
    autoinv.inv(A, out=out)
    autoinv.inv(A)
for freed, call in (
    (A.clone(), lambda x: autoinv.inv(x)),
    (A.clone().requires_grad_(), lambda x: autoinv.inv(x)),
    (A.clone(), lambda x: autoinv.inv(x, out=out)),
    (out.clone(), lambda x: autoinv.inv(A, out=x)),
):
    freed.untyped_storage().resize_(0)
    try:
        call(freed)
    except ValueError as error:
        print("refused:", error)
"""


@pytest.mark.skipif(native.load() is None, reason="PyTorch's own call, all there is without kernels, crashes")
def test_a_freed_storage_is_refused_and_does_not_end_the_process():
    """Torch's own call ends the process there, so a child tries ours."""
    child = subprocess.run(
        [sys.executable, "-c", FREED], capture_output=True, text=True, timeout=120, check=False
    )
    assert 0 == child.returncode, child.stderr
    assert 4 == child.stdout.count("refused: a tensor has no memory behind it"), child.stdout


def test_the_zero_tensor_raises_as_zeros_do_on_every_path():
    Z, A = torch._efficientzerotensor((4, 3, 3), dtype=torch.float64), matrices(4, 3, 3)
    for _ in range(3):
        autoinv.inv(A, out=torch.empty_like(A))
        with pytest.raises(torch.linalg.LinAlgError):
            autoinv.inv(Z)
        with pytest.raises(torch.linalg.LinAlgError):
            autoinv.inv(Z, out=torch.empty_like(A))
