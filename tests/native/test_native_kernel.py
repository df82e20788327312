"""The binding of the C++ kernels: arguments, layouts, matrices that need fallback, memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from native_calls import CODES, EXTENSION, by_dtype, call_inv, call_strided, isa, needs_extension, randn

pytestmark = needs_extension
__all__ = ["isa"]  # a fixture

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 32, 33, 64)


@by_dtype
@pytest.mark.parametrize("n", SIZES)
def test_a_batch_of_any_length_gives_each_matrix_its_own_inverse(isa, dtype, n):
    for batch in (1, 2, 3, 4, 5, 8, 15, 16, 17, 33):
        A = randn(batch, n, n, dtype=dtype) + 3 * torch.eye(n, dtype=dtype)
        X = torch.full_like(A, math.nan)
        assert call_inv(A, X) == []
        torch.testing.assert_close(X, torch.linalg.inv(A), rtol=2e-3, atol=2e-3)


@by_dtype
@pytest.mark.parametrize("n", SIZES)
def test_nothing_outside_the_result_is_written(isa, dtype, n):
    for batch in (1, 3, 16, 19):
        around = torch.full((batch * n * n + 64,), 7.0, dtype=dtype)
        X = around[31 : 31 + batch * n * n]  # element-aligned only
        A = randn(batch * n * n + 1, dtype=dtype)[1:].view(batch, n, n)
        call_inv(A, X.view(batch, n, n))
        assert around[:31].tolist() == [7.0] * 31
        assert around[31 + batch * n * n :].tolist() == [7.0] * 33


@by_dtype
@pytest.mark.parametrize("n", SIZES)
def test_a_batch_is_inverted_in_place_and_matrices_that_need_fallback_keep_their_input(isa, dtype, n):
    A = randn(37, n, n, dtype=dtype)
    A[5] = 0
    expected = torch.empty_like(A)
    assert call_inv(A, expected) == [5]
    expected[5] = A[5]
    X = A.clone()
    assert call_inv(X, X) == [5]
    assert torch.equal(expected, X)


@by_dtype
@pytest.mark.parametrize("n", (1, 2, 3, 4, 6, 8, 9, 16, 20, 64))
@pytest.mark.parametrize("bad", (math.nan, math.inf, -math.inf))
def test_a_matrix_with_nan_or_inf_needs_fallback_and_the_others_do_not(isa, dtype, n, bad):
    places = {0, n * n // 2, n * n - 1, (n - 1) * n, n - 1}
    A = randn(2 * len(places) + 1, n, n, dtype=dtype)
    clean = torch.empty_like(A)
    assert call_inv(A, clean) == []
    for i, place in enumerate(sorted(places)):
        A[2 * i + 1].view(-1)[place] = bad
    X = torch.full_like(A, 5)
    assert list(range(1, 2 * len(places), 2)) == call_inv(A, X)
    assert torch.equal(clean[::2], X[::2])
    assert bool((X[1::2] == 5).all())


@by_dtype
@pytest.mark.parametrize("n", (2, 3, 4, 5, 8, 12, 16, 24, 64))
def test_singular_matrices_need_fallback_even_where_rounding_makes_them_invertible(isa, dtype, n):
    A = randn(64, n, n, dtype=dtype)
    A[::2, n - 1] = A[::2, : n - 1].sum(-2)  # dependent up to rounding
    A[1::4] = torch.randint(-4, 5, (16, n, n), generator=torch.Generator().manual_seed(1)).to(dtype)
    A[1::4, 0] = A[1::4, n - 1]  # exactly singular
    X = torch.full_like(A, 5)
    needs_fallback = call_inv(A, X)
    _, info = torch.linalg.inv_ex(A)
    assert set(info.nonzero().flatten().tolist()) <= set(needs_fallback)
    assert set(range(1, 64, 4)) <= set(needs_fallback)
    assert not (set(range(3, 64, 4)) & set(needs_fallback))


@by_dtype
@pytest.mark.parametrize("scale", (1e-30, 1e-13, 1e-6, 0.1, 1.0, 1e10, 1e30))
def test_well_conditioned_matrices_of_any_scale_need_no_fallback(isa, dtype, scale):
    for n in (1, 2, 3, 4, 8, 16, 24, 64):
        A = torch.eye(n, dtype=dtype).roll(1, 0).repeat(19, 1, 1) * scale
        X = torch.empty_like(A)
        assert call_inv(A, X) == []
        torch.testing.assert_close(X, torch.linalg.inv(A), rtol=1e-6, atol=0)


@by_dtype
def test_matrices_whose_inverse_overflows_need_fallback(isa, dtype):
    n, huge = 64, torch.finfo(dtype).max
    step = 32 * n * torch.finfo(dtype).eps
    A = torch.eye(n, dtype=dtype) * step + torch.eye(n, dtype=dtype).roll(1, 1).triu()
    for batch in (A[None], A[None, :40, :40].contiguous(), torch.full((1, 1, 1), 1 / huge, dtype=dtype)):
        assert call_inv(batch, torch.empty_like(batch)) == [0]


def _layouts(batch: int, n: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    A = randn(batch, n, n, dtype=dtype)
    wide = randn(2 * batch, n + 2, 2 * n + 3, dtype=dtype, seed=1)
    return {
        "contiguous": A,
        "transposed": A.mT,
        "every second": randn(2 * batch, n, n, dtype=dtype)[::2],
        "every second, transposed": randn(2 * batch, n, n, dtype=dtype)[::2].mT,
        "columns sliced": wide[:batch, :n, 1 : n + 1],
        "rows and columns apart": wide[::2, 1 : n + 1, 1 : 2 * n + 1 : 2],
        "batch last": randn(n, n, batch, dtype=dtype).permute(2, 0, 1),
        "two batch dims": randn(3, batch, n, n, dtype=dtype).transpose(0, 1),
        "partly expanded": A[:, None].expand(batch, 3, n, n),
        "ones between": A[:, None, :, None].transpose(2, 3),
    }


@by_dtype
@pytest.mark.parametrize("n", (1, 2, 3, 4, 5, 8, 11, 16, 18, 40))
@pytest.mark.parametrize("layout", _layouts(2, 1, torch.float32))
@pytest.mark.parametrize("threads", (None, 2))
def test_every_layout_gives_what_its_contiguous_copy_gives(isa, dtype, n, layout, threads):
    A = _layouts(21, n, dtype)[layout]
    X = torch.empty(A.shape, dtype=dtype)
    expected = torch.empty_like(X)
    assert call_strided(A, X, threads) == []
    plain = A.contiguous().view(-1, n, n)
    assert call_inv(plain, expected) == []
    assert torch.equal(expected, X)


@by_dtype
@pytest.mark.parametrize("n", (1, 3, 8, 16, 40))
def test_an_expanded_matrix_is_inverted_once_and_written_everywhere(isa, dtype, n):
    A = randn(1, n, n, dtype=dtype)
    once, X = torch.empty_like(A), torch.empty(7, 3, n, n, dtype=dtype)
    assert call_strided(A.expand(7, 3, n, n), X) == call_inv(A, once) == []
    assert torch.equal(once.expand(7, 3, n, n), X)


def test_every_copy_of_an_expanded_singular_matrix_needs_fallback(isa):
    A = torch.ones(1, 3, 3).expand(5, 3, 3)
    X = torch.full((5, 3, 3), 7.0)
    assert call_strided(A, X) == [0, 1, 2, 3, 4]
    assert bool((X == 7).all())


@by_dtype
@pytest.mark.parametrize("n", (1, 2, 3, 4, 5, 8, 16, 17, 33, 64))
def test_the_gradient_is_minus_xt_g_xt(isa, dtype, n):
    for batch in (1, 3, 16, 19):
        X, G = randn(batch, n, n, dtype=dtype), randn(batch, n, n, dtype=dtype, seed=1)
        D = torch.full_like(X, math.nan)
        arguments = (X.data_ptr(), G.data_ptr(), D.data_ptr(), CODES[dtype], n, batch)
        assert EXTENSION.gradient(*arguments) is None
        torch.testing.assert_close(D, -X.mT @ G @ X.mT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("inv", (0, 64, 1, 3, 1), "address is 0"),
        ("inv", (64, 0, 1, 3, 1), "address is 0"),
        ("inv", (64, 64, 2, 3, 1), "dtype must be 0"),
        ("inv", (64, 64, 1, 65, 1), "n must be from 0 to 64, got 65"),
        ("inv", (64, 64, 1, -1, 1), "n must be from 0 to 64, got -1"),
        ("inv", (64, 64, 1, 3, -1), "batch must not be negative, got -1"),
        ("inv_parallel", (64, 64, 1, 3, 1, 0), "threads must be at least 1, got 0"),
        ("inv_parallel", (64, 0, 1, 3, 1, 2), "address is 0"),
        ("inv_strided", (0, 64, 1, (2, 3, 3), (9, 3, 1)), "address is 0"),
        ("inv_strided", (64, 64, 1, (2, 3, 4), (12, 4, 1)), "square, got 3 by 4"),
        ("inv_strided", (64, 64, 1, (3,), (1,)), "same length, from 2"),
        ("inv_strided", (64, 64, 1, (2, 3, 3), (3, 1)), "same length, from 2"),
        ("inv_strided", (64, 64, 1, (2**40, 2**40, 3, 3), (0, 0, 3, 1)), "64 bits"),
        ("inv_parallel_strided", (64, 64, 1, (-2, 3, 3), (9, 3, 1), 2), "batch must not be negative"),
        ("gradient", (64, 0, 64, 1, 3, 1), "address is 0"),
        ("use_isa", ("abacus",), "cannot run an instruction set called 'abacus'"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(function, arguments, message):
    take = getattr(EXTENSION, function)
    with pytest.raises(ValueError, match=message) as refused:
        take(*arguments) if function != "use_isa" else take(arguments[0])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("arguments", [(0, 0, 1, 0, 5), (0, 0, 1, 3, 0)])
def test_an_empty_batch_reads_no_address(arguments):
    assert EXTENSION.inv(*arguments) is None
    assert EXTENSION.inv_parallel(*arguments, 2) is None
    assert EXTENSION.gradient(0, *arguments) is None
    n, batch = arguments[3:]
    assert EXTENSION.inv_strided(0, 0, 1, (batch, n, n), (n * n, n, 1)) is None


def _in_a_fresh_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-c", code], {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_importing_the_package_does_not_load_the_extension():
    code = "import sys, autoinv.native; print('autoinv.native._native' in sys.modules)"
    assert _in_a_fresh_process(code).stdout == "False\n"


def test_the_environment_chooses_the_instruction_set_and_an_unknown_one_warns_once():
    code = "from autoinv import native; native.load(); print(native.load().isa())"
    for name in EXTENSION.isas():
        assert f"{name}\n" == _in_a_fresh_process(code, AUTOINV_ISA=name).stdout
    done = _in_a_fresh_process(code, AUTOINV_ISA="abacus")
    assert f"{EXTENSION.isas()[-1]}\n" == done.stdout
    assert done.stderr.count("variable AUTOINV_ISA is ignored, because isa is one of best, baseline") == 1


def test_build_reports_the_compiler_and_the_flags_of_every_set(isa):
    assert {"compiler", "sources", isa} <= set(EXTENSION.build())
    assert EXTENSION.measure_fma(1, 1000) >= 1000 and EXTENSION.measure_fma(0, 1000) >= 1000
