"""What a program does with kornia: cameras, warps and augmentations, and back. Run by pytest, patched and not."""

from __future__ import annotations

import kornia
import pytest
import torch
from kornia.core.utils import safe_inverse_with_mask
from kornia.geometry import transform
from kornia.geometry.camera import PinholeCamera

DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def camera(batch: int, dtype: torch.dtype) -> PinholeCamera:
    intrinsics = torch.eye(4, dtype=dtype).repeat(batch, 1, 1)
    intrinsics[:, 0, 0] = intrinsics[:, 1, 1] = 300 + 50 * torch.rand(batch, dtype=dtype)
    intrinsics[:, 0, 2], intrinsics[:, 1, 2] = 160, 120
    extrinsics = torch.eye(4, dtype=dtype).repeat(batch, 1, 1)
    axis_angle = 0.3 * torch.randn(batch, 3, dtype=dtype)
    extrinsics[:, :3, :3] = kornia.geometry.conversions.axis_angle_to_rotation_matrix(axis_angle)
    extrinsics[:, :3, 3] = torch.randn(batch, 3, dtype=dtype)
    size = torch.full((batch,), 240, dtype=dtype), torch.full((batch,), 320, dtype=dtype)
    return PinholeCamera(intrinsics, extrinsics, *size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 7, 200])
def test_points_go_into_a_picture_and_back(batch: int, dtype: torch.dtype) -> None:
    pinhole = camera(batch, dtype)
    points = torch.randn(batch, 10, 3, dtype=dtype) + torch.tensor([0, 0, 8], dtype=dtype)
    seen = points @ pinhole.rotation_matrix.mT + pinhole.translation_vector.mT
    pixels = pinhole.project(points)
    torch.testing.assert_close(pinhole.unproject(pixels, seen[..., 2:]), points, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_intrinsics_times_their_inverse_are_the_identity(dtype: torch.dtype) -> None:
    pinhole = camera(50, dtype)
    eye = torch.eye(4, dtype=dtype).expand(50, 4, 4)
    torch.testing.assert_close(pinhole.intrinsics @ pinhole.intrinsics_inverse(), eye, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_a_safe_inverse_masks_singular_matrices_and_has_finite_gradients(n: int, dtype: torch.dtype) -> None:
    wide = dtype if dtype != torch.float16 else torch.float32
    A = (torch.randn(20, n, n, dtype=wide) + 3 * torch.eye(n, dtype=wide)).to(dtype)
    A[5] = 0
    A[7, 0] = A[7, 1]
    A.requires_grad_()
    inverse, mask = safe_inverse_with_mask(A)
    assert mask.tolist() == [i not in (5, 7) for i in range(20)]
    expected = torch.linalg.inv(A.detach()[mask].to(wide)).to(dtype)
    torch.testing.assert_close(inverse.detach()[mask], expected)
    inverse[mask].sum().backward()
    assert A.grad is not None
    assert torch.isfinite(A.grad).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_picture_that_is_warped_and_warped_back_is_the_picture(dtype: torch.dtype) -> None:
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, 32, dtype=dtype), torch.linspace(-1, 1, 48, dtype=dtype), indexing="ij"
    )
    picture = torch.exp(-4 * (x**2 + y**2)).expand(5, 1, 32, 48)
    corners = torch.tensor([[0.0, 0], [47, 0], [47, 31], [0, 31]], dtype=dtype).repeat(5, 1, 1)
    H = transform.get_perspective_transform(corners, corners + 2 * torch.rand(5, 4, 2, dtype=dtype))
    there = transform.warp_perspective(picture, H, (32, 48))
    back = transform.warp_perspective(there, torch.linalg.inv(H), (32, 48))
    assert (back - picture)[..., 4:-4, 4:-4].abs().max() < 0.05


def test_an_augmentation_is_undone() -> None:
    augment = kornia.augmentation.AugmentationSequential(
        kornia.augmentation.RandomAffine(degrees=20.0, translate=(0.1, 0.1), scale=(0.9, 1.1), p=1.0),
        kornia.augmentation.RandomPerspective(0.2, p=1.0),
        data_keys=["input", "keypoints"],
    )
    points = 20 + 20 * torch.rand(4, 6, 2)
    picture, moved = augment(torch.rand(4, 3, 64, 64), points)
    _, back = augment.inverse(picture, moved)
    torch.testing.assert_close(
        torch.as_tensor(back.data if hasattr(back, "data") else back), points, rtol=1e-3, atol=1e-2
    )


def test_a_homography_that_is_learned_comes_close() -> None:
    registrator = transform.ImageRegistrator("similarity", num_iterations=5)
    picture = torch.rand(1, 1, 32, 32)
    model = registrator.register(picture, picture)
    torch.testing.assert_close(model, torch.eye(3)[None], rtol=0.1, atol=0.1)
