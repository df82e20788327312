"""What `native` and `native_parallel` share: which problems the C++ kernels take, and the call into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import torch

from autoinv import native
from autoinv.ops.inv.strategies._column_major import offers_column_major, template
from autoinv.ops.inv.strategies._lu import fall_back
from autoinv.problem import Problem
from autoinv.strategy import Run

MOST_N = 64

_CODES = {torch.float32: 0, torch.float64: 1}

Kernel = Callable[..., "Sequence[int] | None"]
"""Inverts a batch at an address into another; returns the flat indices of the matrices that it left to torch."""


def kernels() -> ModuleType:
    """Return the extension where a strategy has already said that it supports the problem.

    Raises:
        RuntimeError: when this install has no extension.
    """
    extension = native.load()
    if extension is None:
        raise RuntimeError(native.why_missing())
    return extension


def supported(problem: Problem) -> bool:
    """Real dtypes on the CPU up to n = 64, where the extension was built."""
    is_fit = problem.on_cpu and problem.dtype in _CODES and 0 < problem.n <= MOST_N and problem.batch > 0
    return is_fit and native.load() is not None


def bound(problem: Problem, dense: Kernel, strided: Kernel, *extra: int) -> Run:
    """Return the run that calls the kernel for this layout, with all that is constant bound."""
    is_dense = problem.layout == "contiguous"
    run = _bound_dense(problem, dense, extra) if is_dense else _bound_strided(problem, strided, extra)
    offers_column_major(run, partial(_bound_column_major, problem, dense if is_dense else strided, extra))
    return run


def _bound_dense(problem: Problem, dense: Kernel, extra: tuple[int, ...]) -> Run:
    code, n, batch, empty_like = _CODES[problem.dtype], problem.n, problem.batch, torch.empty_like

    def run_with(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if A.is_neg():  # its memory holds the negatives
            A = A.resolve_neg()
        X = empty_like(A) if out is None else out
        left = dense(A.data_ptr(), X.data_ptr(), code, n, batch, *extra)
        if left is not None:
            fall_back(A, X, left)
        return X

    def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if A.is_neg():  # its memory holds the negatives
            A = A.resolve_neg()
        X = empty_like(A) if out is None else out
        left = dense(A.data_ptr(), X.data_ptr(), code, n, batch)  # run_with, less the 30 ns of unpacking
        if left is not None:
            fall_back(A, X, left)
        return X

    if extra:
        return run_with
    run.address_call = (dense, code, n, batch)  # type: ignore[attr-defined]
    return run


def address_call(run: Run) -> tuple[Kernel, int, int, int] | None:
    """Return what a dense run calls with two addresses: the kernel and its other arguments; else None."""
    call: tuple[Kernel, int, int, int] | None = getattr(run, "address_call", None)
    return call


def _bound_strided(problem: Problem, strided: Kernel, extra: tuple[int, ...]) -> Run:
    code, shape, dtype = _CODES[problem.dtype], problem.shape, problem.dtype

    def run(A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        A = A.resolve_neg()
        X = torch.empty(shape, dtype=dtype, device="cpu")
        left = strided(A.data_ptr(), X.data_ptr(), code, shape, A.stride(), *extra)
        if left is not None:
            fall_back(A, X, left)
        return X if out is None else out.copy_(X)

    return run


def _bound_column_major(problem: Problem, kernel: Kernel, extra: tuple[int, ...]) -> Run:
    code, n, batch, shape, empty_like = (
        _CODES[problem.dtype],
        problem.n,
        problem.batch,
        problem.shape,
        torch.empty_like,
    )
    like, is_dense = template(shape, problem.dtype), problem.layout == "contiguous"

    def run(A: torch.Tensor) -> torch.Tensor:
        if A.is_neg():  # its memory holds the negatives
            A = A.resolve_neg()
        X = empty_like(like)
        left = kernel(A.data_ptr(), X.data_ptr(), code, n, batch, True)
        if left is not None:
            fall_back(A, X, left)
        return X

    def run_with(A: torch.Tensor) -> torch.Tensor:
        A = A.resolve_neg()
        X = empty_like(like)
        size = (n, batch) if is_dense else (shape, A.stride())
        left = kernel(A.data_ptr(), X.data_ptr(), code, *size, *extra, True)
        if left is not None:
            fall_back(A, X, left)
        return X

    return run if is_dense and not extra else run_with
