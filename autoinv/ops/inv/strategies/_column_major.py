"""Results with the strides of ``torch.linalg.inv``'s: each matrix column-major, the batch contiguous."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from autoinv.strategy import Run


def column_major(X: torch.Tensor) -> torch.Tensor:
    """Return ``X`` itself where its matrices are column-major and not empty, or else a copy where they are."""
    return X if X.mT.is_contiguous() else X.mT.contiguous().mT


def offers_column_major(run: Run, bind: Callable[[], Run]) -> None:
    """Note at a strategy's run what binds one whose results have these strides, at no cost above its own."""
    run.bind_column_major = bind  # type: ignore[attr-defined]


def column_major_run(run: Run) -> Run:
    """Return what answers as ``run`` does, without ``out``, with these strides."""
    bind: Callable[[], Run] | None = getattr(run, "bind_column_major", None)
    if bind is not None:
        return bind()

    def converted(A: torch.Tensor) -> torch.Tensor:
        return column_major(run(A))

    return converted


def template(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor of these strides and no memory: ``empty_like`` of it is the fastest way to a result."""
    *batch, n, _ = shape
    like = torch.empty((*batch, n, n), dtype=dtype, device="cpu").mT
    like.untyped_storage().resize_(0)
    return like
