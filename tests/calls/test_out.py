"""``out=``: torch's rules to the letter."""

from __future__ import annotations

import warnings

import pytest
import torch

import autoinv
from autoinv.ops.inv.operation import INV

F64 = torch.float64


def matrices(*shape, dtype=F64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator) + 3 * torch.eye(shape[-1], dtype=dtype)


@pytest.fixture(params=[*INV.names(), "tuned"])
def strategy(request):
    """Each strategy in turn, where it supports the problem, and whichever the tuner takes."""
    with autoinv.using(strategy=None if request.param == "tuned" else request.param):
        yield request.param


def into(A, out):
    """Call three times: the first fills the memo, the later ones take the fast path."""
    for _ in range(3):
        returned = autoinv.inv(A, out=out)
        assert out is returned
    return out


@pytest.mark.parametrize("shape", [(10, 8, 3, 3), (3, 3), (4, 1, 1), (1, 1), (5, 16, 16), (2, 65, 65)])
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.complex128])
def test_a_fitting_out_is_filled_and_returned(strategy, shape, dtype):
    A = matrices(*shape, dtype=dtype)
    out = torch.full_like(A, torch.nan)
    torch.testing.assert_close(into(A, out), torch.linalg.inv(A))


@pytest.mark.parametrize("shape", [(10, 8, 3, 3), (3, 3), (4, 1, 1), (1, 1), (5, 16, 16)])
def test_out_may_be_the_input_itself(strategy, shape):
    A = matrices(*shape)
    expected = torch.linalg.inv(A)
    for _ in range(3):
        B = A.clone()
        assert B is autoinv.inv(B, out=B)
        torch.testing.assert_close(B, expected)


@pytest.mark.parametrize("shift", [1, 3, 9, 17, 18])
@pytest.mark.parametrize("forwards", [True, False])
def test_out_may_overlap_the_input(strategy, shift, forwards):
    expected = torch.linalg.inv(matrices(2, 3, 3))
    for _ in range(3):
        memory = torch.zeros(40, dtype=F64)
        low, high = memory[:18].view(2, 3, 3), memory[shift : shift + 18].view(2, 3, 3)
        A, out = (low, high) if forwards else (high, low)
        A.copy_(matrices(2, 3, 3))
        autoinv.inv(A, out=out)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "view",
    [lambda M: M.mT, lambda M: M[:, ::2], lambda M: M[::2], lambda M: M.permute(1, 2, 0)],
    ids=["transposed", "every second row", "every second", "permuted"],
)
def test_an_out_of_any_strides_keeps_them(strategy, view):
    A = matrices(3, 3, 3)
    big = torch.full(
        (6, 6, 3) if view(torch.empty(6, 6, 3)).shape[0] == 6 else (3, 3, 3), torch.nan, dtype=F64
    )
    for candidate in (
        torch.full((3, 3, 3), torch.nan, dtype=F64),
        torch.full((6, 3, 3), torch.nan, dtype=F64),
        big,
    ):
        out = view(candidate)
        if out.shape == A.shape:
            stride = out.stride()
            torch.testing.assert_close(into(A, out), torch.linalg.inv(A))
            assert stride == out.stride()


def test_out_may_be_the_inputs_own_transpose(strategy):
    A = matrices(4, 3, 3)
    expected = torch.linalg.inv(A)
    for _ in range(3):
        B = A.clone()
        autoinv.inv(B, out=B.mT)
        torch.testing.assert_close(B.mT, expected)
        C = A.mT.contiguous().mT
        autoinv.inv(C, out=C.mT)
        torch.testing.assert_close(C.mT, expected)


@pytest.mark.parametrize("kind", [lambda x: x.conj(), lambda x: x.mH, lambda x: x.conj()[:, :, :]])
def test_a_lazily_conjugated_out_holds_the_inverse(kind):
    A = matrices(4, 3, 3, dtype=torch.complex128)
    out = kind(torch.zeros(4, 3, 3, dtype=torch.complex128))
    torch.testing.assert_close(into(A, out), torch.linalg.inv(A))
    torch.testing.assert_close(into(A.conj(), torch.zeros_like(A)), torch.linalg.inv(A.conj()))


def neg_view(A):
    """A neg view that holds -A."""
    return torch.complex(A, A).conj().imag


def test_a_lazily_negated_out_holds_the_inverse():
    A = matrices(4, 3, 3)
    torch.testing.assert_close(
        into(A, torch.zeros(4, 3, 3, dtype=torch.complex128).conj().imag), torch.linalg.inv(A)
    )
    one = matrices(1, 1)
    torch.testing.assert_close(
        into(one, torch.zeros(1, 1, dtype=torch.complex128).conj().imag), torch.linalg.inv(one)
    )
    torch.testing.assert_close(into(neg_view(A), torch.zeros_like(A)), torch.linalg.inv(-A))


@pytest.mark.parametrize("shape", [(0,), (5,), (2, 2, 3, 3), (3, 3)])
def test_an_out_of_another_shape_is_resized_with_torchs_warning(shape):
    A = matrices(2, 3, 3)

    def warnings_of(inv):
        out = torch.empty(shape, dtype=F64)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            inv(A, out=out)
        torch.testing.assert_close(out, torch.linalg.inv(A))
        return [(w.category, str(w.message)) for w in caught]

    assert warnings_of(torch.linalg.inv) == warnings_of(autoinv.inv)


def test_a_resized_out_is_contiguous():
    out = torch.empty(0, dtype=F64)
    assert autoinv.inv(matrices(2, 3, 3), out=out).is_contiguous()


def assert_same_error(make, out_of=lambda A: torch.empty_like(A)):
    A = make()
    with pytest.raises(Exception) as expected:
        torch.linalg.inv(A, out=out_of(A))
    for warm in (False, True):
        A = make()
        if warm:
            autoinv.inv(A.detach(), out=torch.empty_like(A.detach()))
        with pytest.raises(expected.type) as actual:
            autoinv.inv(A, out=out_of(A))
        assert str(expected.value).splitlines()[0] == str(actual.value).splitlines()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.complex128])
def test_an_out_of_another_dtype_is_refused_in_torchs_words(dtype):
    assert_same_error(lambda: matrices(2, 3, 3), lambda A: torch.empty(2, 3, 3, dtype=dtype))


def test_an_out_on_another_device_is_refused_in_torchs_words():
    assert_same_error(lambda: matrices(2, 3, 3), lambda A: torch.empty(2, 3, 3, dtype=F64, device="meta"))


@pytest.mark.parametrize("which", ["A", "out"])
def test_a_wanted_gradient_is_refused_in_torchs_words(which):
    assert_same_error(
        lambda: matrices(2, 3, 3).requires_grad_(which == "A"),
        lambda A: torch.empty(2, 3, 3, dtype=F64).requires_grad_(which == "out"),
    )


def test_without_grad_mode_requires_grad_is_accepted():
    A = matrices(2, 3, 3).requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(into(A, torch.empty_like(A).requires_grad_()), torch.linalg.inv(A))


def test_an_expanded_out_is_refused_in_torchs_words():
    assert_same_error(lambda: matrices(2, 3, 3), lambda A: torch.empty(1, 3, 3, dtype=F64).expand(2, 3, 3))


def test_an_inference_tensor_as_out_is_refused_in_torchs_words():
    with torch.inference_mode():
        out = torch.full((2, 3, 3), 7.0, dtype=F64)
        transposed = torch.full((2, 3, 3), 7.0, dtype=F64).mT
    assert_same_error(lambda: matrices(2, 3, 3), lambda A: out)
    assert_same_error(lambda: matrices(2, 3, 3), lambda A: transposed)


def test_out_works_in_inference_mode():
    with torch.inference_mode():
        A = matrices(2, 3, 3)
        torch.testing.assert_close(into(A, torch.empty_like(A)), torch.linalg.inv(A))


@pytest.mark.parametrize("out", [[1.0], 3, "out"])
def test_an_out_that_is_not_a_tensor_is_a_type_error(out):
    assert_same_error(lambda: matrices(2, 3, 3), lambda A: out)


@pytest.mark.parametrize(
    "make", [lambda: torch.zeros(2, 3, 3), lambda: torch.ones(2, 3), lambda: torch.ones(2, 2).half()]
)
def test_a_bad_input_with_out_raises_torchs_error(make):
    with pytest.raises(RuntimeError) as expected:
        torch.linalg.inv(make(), out=torch.empty_like(make()))
    with pytest.raises(expected.type) as actual:
        autoinv.inv(make(), out=torch.empty_like(make()))
    assert str(expected.value) == str(actual.value)


def test_a_singular_matrix_with_out_is_named_by_its_flat_index(strategy):
    A, good = matrices(2, 4, 3, 3), matrices(2, 4, 3, 3)
    A[1, 2] = 0
    out = torch.empty_like(A)
    into(good, out)
    for target in (out, A):
        with pytest.raises(torch.linalg.LinAlgError, match=r"\(Batch element 6\)"):
            autoinv.inv(A, out=target)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0)])
def test_an_empty_batch_fills_an_empty_out(shape):
    A = torch.empty(shape)
    out = torch.empty(shape)
    assert out is autoinv.inv(A, out=out)
    assert shape == tuple(autoinv.inv(A, out=torch.empty(0)).shape)


def test_autograd_notices_that_a_saved_tensor_was_overwritten(strategy):
    A = matrices(4, 3, 3)
    for _ in range(3):
        out = torch.ones_like(A)
        x = torch.ones_like(A, requires_grad=True)
        total = (x * out).sum()
        autoinv.inv(A, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_the_version_counter_goes_up_once_a_call():
    A, out = matrices(4, 3, 3), torch.empty(4, 3, 3, dtype=F64)
    with autoinv.using(strategy="native"):
        for _ in range(3):
            before = out._version
            autoinv.inv(A, out=out)
            assert out._version > before


def test_a_fitting_out_allocates_nothing():
    A, out = matrices(10, 8, 3, 3), torch.empty(10, 8, 3, 3, dtype=F64)
    into(A, out)
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profile:
        autoinv.inv(A, out=out)
    chosen = autoinv.explain(A).strategy
    allocated = [event for event in profile.events() if event.cpu_memory_usage > 0]
    assert chosen != "native" or [] == allocated


def test_vmap_with_out_raises_as_torch_does():
    A, out = matrices(4, 3, 3), torch.empty(4, 3, 3, dtype=F64)
    with pytest.raises(RuntimeError):
        torch.vmap(lambda A, out: torch.linalg.inv(A, out=out))(A, out)
    with pytest.raises(RuntimeError):
        torch.vmap(lambda A, out: autoinv.inv(A, out=out))(A, out)


def test_a_changed_thread_count_or_setting_is_noticed():
    A, out = matrices(80, 3, 3), torch.empty(80, 3, 3, dtype=F64)
    into(A, out)
    with autoinv.using(mode="off"):
        torch.testing.assert_close(into(A, out.zero_()), torch.linalg.inv(A))
    torch.testing.assert_close(into(A, out.zero_()), torch.linalg.inv(A))


# --- inv_ex


def test_inv_ex_fills_a_fitting_pair():
    A = matrices(4, 3, 3)
    A[2] = 0
    for kind in (tuple, list):
        out = kind((torch.empty(4, 3, 3, dtype=F64), torch.empty(4, dtype=torch.int32)))
        answer = autoinv.inv_ex(A, out=out)
        assert out[0] is answer.inverse
        assert out[1] is answer.info
        expected = torch.linalg.inv_ex(A)
        assert expected.info.equal(answer.info)
        torch.testing.assert_close(answer.inverse, expected.inverse, equal_nan=True)


def test_inv_ex_resizes_with_torchs_warning():
    A = matrices(4, 3, 3)

    def warnings_of(inv_ex):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = inv_ex(A, out=(torch.empty(7, dtype=F64), torch.empty(2, dtype=torch.int32)))
        assert (4, 3, 3) == tuple(answer.inverse.shape)
        assert (4,) == tuple(answer.info.shape)
        return [str(w.message) for w in caught]

    assert warnings_of(torch.linalg.inv_ex) == warnings_of(autoinv.inv_ex)


@pytest.mark.parametrize(
    "out",
    [
        lambda: (torch.empty(4, 3, 3, dtype=F64), torch.empty(4, dtype=torch.int64)),
        lambda: (torch.empty(4, 3, 3), torch.empty(4, dtype=torch.int32)),
        lambda: torch.empty(4, 3, 3, dtype=F64),
        lambda: (torch.empty(4, 3, 3, dtype=F64),),
        lambda: (torch.empty(4, 3, 3, dtype=F64, requires_grad=True), torch.empty(4, dtype=torch.int32)),
    ],
    ids=["info of int64", "inverse of float32", "one tensor", "a tuple of one", "gradient"],
)
def test_inv_ex_refuses_what_torch_refuses(out):
    A = matrices(4, 3, 3)
    with pytest.raises((RuntimeError, TypeError)) as expected:
        torch.linalg.inv_ex(A, out=out())
    with pytest.raises(expected.type) as actual:
        autoinv.inv_ex(A, out=out())
    assert str(expected.value) == str(actual.value)
