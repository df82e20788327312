"""NumPy's own tests of ``numpy.linalg.inv``, with autoinv underneath."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import autoinv

numpy = pytest.importorskip("numpy", reason="numpy is among the test extras")
numpys_tests = pytest.importorskip(
    "numpy.linalg.tests.test_linalg",
    reason="this numpy was installed without its tests",
    exc_type=ImportError,
)


def inv(a):
    """``numpy.linalg.inv`` by autoinv: NumPy's conversions around our call."""
    array = numpy.asarray(a)
    if not numpy.issubdtype(array.dtype, numpy.inexact):
        array = array.astype(float)
    if any(step < 0 for step in array.strides):
        array = array.copy()  # torch knows no negative strides
    inverse = autoinv.inv(torch.from_numpy(array)).numpy()
    return inverse.view(type(a)) if isinstance(a, numpy.ndarray) else inverse


@pytest.fixture(autouse=True)
def autoinv_underneath(monkeypatch):
    """Let NumPy's tests find our inv where they look for theirs."""
    monkeypatch.setattr(numpys_tests, "linalg", SimpleNamespace(inv=inv))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
class TestNumpysOwn(numpys_tests.TestInv):
    """All that ``numpy.linalg.tests.test_linalg.TestInv`` holds, collected here."""
