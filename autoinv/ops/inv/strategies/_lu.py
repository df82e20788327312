"""PyTorch's own LU, and what every strategy of ``inv`` shares around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autoinv.problem import Problem

inv = torch.linalg.inv  # captured at import, so that a patched torch never calls itself
inv_ex = torch.linalg.inv_ex

BROKEN_ABOVE_N = 128
"""With several threads torch's batched LU on the CPU fails beyond this size.

Source: https://github.com/pytorch/pytorch/issues/181570; n = 140 was still right, 150 and 151 were not.
"""

ONE_BY_ONE_UP_TO = 8
"""As many matrices are done again one at a time; more are worth the team that torch wakes for two."""


def batched_is_broken(problem: Problem) -> bool:
    """Whether PyTorch's batched call raises, hangs or is wrong on this problem."""
    return problem.on_cpu and problem.batch > 1 and problem.n > BROKEN_ABOVE_N and problem.threads > 1


MULTITHREADED_ABOVE_N = 16
"""From beyond this size MKL shares even one matrix among threads.

Measured with torch 2.13.0+cpu and two threads: processor time over this thread's own is 1.0 at 16, 2.0 at 24.
"""


def lu_is_multithreaded(problem: Problem) -> bool:
    """Whether torch's call on this problem wakes a team of threads: it does for the smallest batches.

    Its grain is ``int(min(1, 3200 / n^3)) * threads`` matrices, where ``max`` was meant.
    Source: https://github.com/pytorch/pytorch/pull/93037.
    """
    grain = problem.threads if problem.n**3 <= 3200 else 1
    return (
        problem.on_cpu
        and problem.threads > 1
        and (problem.batch > grain or problem.n > MULTITHREADED_ABOVE_N)
    )


def inv_into(A: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write the inverse into ``out``, which is contiguous and may be ``A``; return it."""
    # Torch solves in place where out is column-major, as contiguous 1x1 are: then inv(A, out=A) is all ones.
    return inv(A, out=out) if A.shape[-1] > 1 else out.copy_(inv(A))


def raise_if_singular(info: torch.Tensor, *, is_matrix: bool) -> None:
    """Let torch raise for the first non-zero of the flat ``info``, in its own class and words.

    Raises:
        torch.linalg.LinAlgError: as ``torch.linalg.inv`` does, naming the flat index in the batch.
    """
    torch._linalg_check_errors(info, "linalg.inv", is_matrix=is_matrix)


def lu_inverses(matrices: torch.Tensor, index: torch.Tensor, *, is_matrix: bool) -> torch.Tensor:
    """Return LU's inverses of ``matrices[index]``, chosen from ``(b, n, n)``.

    Raises:
        torch.linalg.LinAlgError: when LU calls one of them singular.
    """
    if not matrices.is_cpu:
        # There the batch size decides which library factors: only the whole batch is torch's own answer.
        return inv(matrices[0] if is_matrix else matrices).reshape(matrices.shape).index_select(0, index)
    inverses, info = _single_threaded_inv_ex(matrices.index_select(0, index))
    if info.any():
        every = torch.zeros(len(matrices), dtype=info.dtype, device=matrices.device)
        raise_if_singular(every.index_copy_(0, index, info), is_matrix=is_matrix)
    return inverses


def _single_threaded_inv_ex(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``inv_ex`` of ``(b, n, n)``, which for a few wakes no team of threads."""
    if not 1 < len(matrices) <= ONE_BY_ONE_UP_TO or torch.get_num_threads() == 1:
        inverses, info = inv_ex(matrices)
        return inverses, info
    inverses, info = zip(*map(inv_ex, matrices.unbind()), strict=True)
    return torch.stack(inverses), torch.stack(info)


def fall_back(A: torch.Tensor, X: torch.Tensor, left: Sequence[int]) -> None:
    """Put LU's inverses of the matrices that a kernel left into ``X``, both ``(*, n, n)``.

    ``left`` holds their flat indices. ``X`` is contiguous; it may be ``A`` if those matrices are intact.

    Raises:
        torch.linalg.LinAlgError: when LU calls one of them singular.
    """
    n = A.shape[-1]
    index = torch.tensor(left, device=A.device)
    X.view(-1, n, n).index_copy_(0, index, lu_inverses(A.reshape(-1, n, n), index, is_matrix=A.dim() == 2))
