"""What a program does with torch-kf: many small Kalman filters at once. Run by pytest, patched and not."""

from __future__ import annotations

import pytest
import torch
from torch_kf import GaussianState
from torch_kf.ckf import constant_kalman_filter

DTYPES = [torch.float32, torch.float64]


def covariances(*batch: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    factor = torch.randn(*batch, n, n, dtype=dtype)
    return factor @ factor.mT + torch.eye(n, dtype=dtype)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_mahalanobis_is_that_of_a_solve(n: int, dtype: torch.dtype) -> None:
    state = GaussianState(torch.randn(50, n, 1, dtype=dtype), covariances(50, n=n, dtype=dtype))
    measure = torch.randn(50, n, 1, dtype=dtype)
    diff = state.mean - measure
    expected = (diff.mT @ torch.linalg.solve(state.covariance, diff))[..., 0, 0]
    torch.testing.assert_close(state.mahalanobis_squared(measure), expected)
    assert state.precision is not None
    assert state.precision.is_contiguous()  # the library relies on torch's column-major inverses


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [1, 2])
def test_filter_and_smoother_follow_a_line(order: int, dtype: torch.dtype) -> None:
    kf = constant_kalman_filter(0.1, 0.01, dim=2, order=order).to(dtype)
    times = torch.arange(30, dtype=dtype)[:, None, None, None]
    truth = times * torch.tensor([1.0, -2.0], dtype=dtype)[:, None]
    measures = truth + 0.1 * torch.randn(30, 20, 2, 1, dtype=dtype)
    size = 2 * (order + 1)
    start = GaussianState(
        torch.zeros(20, size, 1, dtype=dtype), 50 * torch.eye(size, dtype=dtype).repeat(20, 1, 1)
    )
    filtered = kf.filter(start, measures, update_first=True, return_all=True)
    smoothed = kf.rts_smooth(filtered)
    for found in (filtered, smoothed):
        error = (found.mean[10:, :, :2] - truth[10:]).abs().mean()
        assert error < 0.3
    assert torch.isfinite(smoothed.covariance).all()


def test_the_likelihood_can_be_learned_from() -> None:
    covariance = covariances(40, n=3, dtype=torch.float64).requires_grad_()
    state = GaussianState(torch.randn(40, 3, 1, dtype=torch.float64), covariance)
    measure = torch.randn(40, 3, 1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(state.mahalanobis_squared(measure).sum(), covariance)
    solved = torch.linalg.solve(covariance.detach(), state.mean - measure)
    torch.testing.assert_close(gradient, -solved @ solved.mT)
