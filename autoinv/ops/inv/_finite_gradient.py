"""The identity, whose gradient is zero for each matrix where it would not be finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling


class _FiniteGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> Tensor:
        return A.view_as(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        del ctx
        return torch.where(is_finite(G)[..., None, None], G, 0)


class _FiniteGradientWithTangent(_FiniteGradient):
    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> Tensor:
        del ctx
        return dA.view_as(dA)


def with_finite_gradient(A: Tensor) -> Tensor:
    """Return ``A``, for whose matrices ``(*, n, n)`` no infinite or NaN gradient will arrive."""
    # Dynamo takes no Function with a rule for forward mode, and has no forward mode to lose.
    identity = _FiniteGradient if is_dynamo_compiling() else _FiniteGradientWithTangent
    B: Tensor = identity.apply(A)  # type: ignore[no-untyped-call]
    return B


def is_finite(X: Tensor) -> Tensor:
    """Return for each matrix of ``(*, n, n)`` whether all of its elements are finite: bool ``(*)``."""
    return torch.isfinite(X).all(-1).all(-1)
