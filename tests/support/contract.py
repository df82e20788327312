"""Helpers for the tests of the contract that every strategy keeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from autoinv.ops.inv.strategies import TABLE
from autoinv.problem import DTYPES, Problem
from autoinv.strategy import Strategy

THREADS = torch.get_num_threads()


def every(*sizes: int, batch: tuple[int, ...] = (20,), dtypes: str = "") -> pytest.MarkDecorator:
    """Parametrise a test over every strategy, dtype and n that it supports."""
    found = [
        pytest.param(strategy, dtype, n, id=f"{strategy.name}-{name}-{n}")
        for strategy, (name, dtype), n in itertools.product(TABLE, DTYPES.items(), sizes)
        if dtypes in name and strategy.supports(Problem("inv", ((*batch, n, n),), dtype, "cpu", THREADS))
    ]
    return pytest.mark.parametrize(("strategy", "dtype", "n"), found)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def bound(strategy: Strategy, A: torch.Tensor) -> Callable[..., torch.Tensor]:
    problem = Problem.of("inv", A)
    assert strategy.supports(problem), problem.key
    return strategy.bind(problem)
