"""PyTorch's own samples of ``linalg.inv`` and ``linalg.inv_ex``, fed through autoinv and through `patched`."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import autoinv

samples = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations",
    reason="torch's samples need expecttest, which is among the test extras",
    exc_type=ImportError,
)

OPS = {op.name: op for op in samples.op_db if op.name in ("linalg.inv", "linalg.inv_ex")}
THEIRS = {
    "linalg.inv": torch.linalg.inv,
    "linalg.inv_ex": lambda A, **kwargs: tuple(torch.linalg.inv_ex(A, **kwargs)),
}


@autoinv.patched()
def patched_inv(A, **kwargs):
    return torch.linalg.inv(A, **kwargs)


@autoinv.patched()
def patched_inv_ex(A, **kwargs):
    return tuple(torch.linalg.inv_ex(A, **kwargs))


OURS = {
    "linalg.inv": {"autoinv": autoinv.inv, "patched": patched_inv},
    "linalg.inv_ex": {
        "autoinv": lambda A, **kwargs: tuple(autoinv.inv_ex(A, **kwargs)),
        "patched": patched_inv_ex,
    },
}

CASES = [(name, dtype) for name, op in sorted(OPS.items()) for dtype in sorted(op.dtypes, key=str)]
each_way = pytest.mark.parametrize("way", ["autoinv", "patched"])


def inputs(name, dtype, **kwargs):
    return list(OPS[name].sample_inputs("cpu", dtype, **kwargs))


def test_torch_has_samples_of_both():
    assert {"linalg.inv", "linalg.inv_ex"} == set(OPS)
    assert all(len(inputs(name, dtype)) > 4 for name, dtype in CASES)


@each_way
@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.parametrize("noncontiguous", [False, True])
def test_values_equal_torchs(way, name, dtype, noncontiguous):
    for sample in inputs(name, dtype):
        A = sample.noncontiguous().input if noncontiguous else sample.input
        actual, expected = OURS[name][way](A, **sample.kwargs), THEIRS[name](A, **sample.kwargs)
        torch.testing.assert_close(actual, expected)


@each_way
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_gradients_equal_torchs(way, name, dtype):
    for sample in inputs(name, dtype, requires_grad=True):
        A = sample.input

        def gradient(call, A=A, sample=sample):
            X = call(A, **sample.kwargs)
            X = X[0] if isinstance(X, tuple) else X
            return torch.autograd.grad(X.abs().sum(), A)

        torch.testing.assert_close(gradient(OURS[name][way]), gradient(THEIRS[name]))


@each_way
@pytest.mark.parametrize(
    ("name", "dtype"), [case for case in CASES if case[1] in (torch.float64, torch.complex128)]
)
def test_derivatives_of_torchs_samples_agree_with_finite_differences(way, name, dtype):
    for sample in inputs(name, dtype, requires_grad=True):

        def inverse(A, sample=sample):
            X = OURS[name][way](A, **sample.kwargs)
            return X[0] if isinstance(X, tuple) else X

        assert gradcheck(inverse, (sample.input,), check_forward_ad=True, fast_mode=True)
        assert gradgradcheck(inverse, (sample.input,), fast_mode=True)


@each_way
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_out_is_filled_with_the_values(way, name, dtype):
    for sample in inputs(name, dtype):
        expected = THEIRS[name](sample.input, **sample.kwargs)
        pair = isinstance(expected, tuple)
        out = tuple(map(torch.empty_like, expected)) if pair else torch.empty_like(expected)
        actual = OURS[name][way](sample.input, out=out, **sample.kwargs)
        torch.testing.assert_close(actual, expected)
        assert all(a is o for a, o in zip(actual, out, strict=True)) if pair else actual is out
