"""PyTorch's own LU, and what every strategy of ``inv`` shares around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autoinv import fork
from autoinv.problem import Problem
from autoinv.strategy import LinAlgError

inv = torch.linalg.inv  # captured at import, so that a patched torch never calls itself
inv_ex = torch.linalg.inv_ex

BROKEN_ABOVE_N = 128
"""With several threads torch's batched LU on the CPU fails beyond this size.

Source: https://github.com/pytorch/pytorch/issues/181570; n = 140 was still right, 150 and 151 were not.
"""

ONE_BY_ONE_UP_TO = 8
"""As many matrices are done again one at a time; more are worth the team that torch wakes for two."""

SAME_BITS_UP_TO_N = 8
"""Beyond this size the bits of torch's batched LU depend on a matrix's alignment, which a place in a batch changes.

Measured with MKL; a single matrix has the allocator's alignment, ``ALIGNMENT``. Beyond `MULTITHREADED_ABOVE_N` a
single one is besides shared among threads, and one of a batch is not.
"""
ALIGNMENT = 64


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
    """``inv_ex`` of ``(b, n, n)``, the bits of each as if it were alone; for a few it wakes no team of threads."""
    if fork.is_child:
        inverses = torch.empty_like(matrices)
        return inverses, _each_alone(matrices, inverses, range(len(matrices)))
    n = matrices.shape[-1]
    is_aligned = n <= MULTITHREADED_ABOVE_N and n * n * matrices.itemsize % ALIGNMENT == 0
    has_same_bits = n <= SAME_BITS_UP_TO_N or is_aligned
    is_threaded = torch.get_num_threads() > 1
    may_be_batched = not is_threaded or len(matrices) > ONE_BY_ONE_UP_TO
    if len(matrices) == 1 or (has_same_bits and may_be_batched):
        inverses, info = inv_ex(matrices)
        return inverses, info
    each, infos = zip(*map(inv_ex, matrices.unbind()), strict=True)
    return torch.stack(each), torch.stack(infos)


def fall_back(A: torch.Tensor, X: torch.Tensor, left: Sequence[int]) -> None:
    """Put LU's inverses of the matrices that a kernel left into ``X``, both ``(*, n, n)``.

    ``left`` holds their flat indices. ``X`` is contiguous, or its matrices are column-major; it may be ``A`` if
    those matrices are intact.

    Raises:
        torch.linalg.LinAlgError: when LU calls one of them singular; `answered_but_for_singular` has the rest.
    """
    n = A.shape[-1]
    index = torch.tensor(left, device=A.device)
    flat = X.view(-1, n, n)
    if fork.is_child:  # copies of much wake a team of threads, too
        info = _each_alone(A.reshape(-1, n, n), flat, left)
    else:
        inverses, info = _single_threaded_inv_ex(A.reshape(-1, n, n).index_select(0, index))
        flat.index_copy_(0, index, inverses)
    if not info.any():
        return
    every = torch.zeros(len(flat), dtype=info.dtype, device=A.device).index_copy_(0, index, info)
    try:
        raise_if_singular(every, is_matrix=A.dim() == 2)
    except LinAlgError as error:
        error.answered = (X, every)
        raise


def _each_alone(matrices: torch.Tensor, inverses: torch.Tensor, left: Sequence[int]) -> torch.Tensor:
    """Invert these matrices in a forked child, where more at a time would wait for a team that is not there."""
    infos = []
    for i in left:
        inverse, info = inv_ex(matrices[i])
        inverses[i].copy_(inverse)
        infos.append(info)
    return torch.stack(infos)


def answered_but_for_singular(error: BaseException) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return what was computed before a kernel's call failed for a singular matrix: all inverses and flat infos.

    In the place of a singular matrix stands what ``torch.linalg.inv_ex`` gives. None where nothing was kept.
    """
    answered: tuple[torch.Tensor, torch.Tensor] | None = getattr(error, "answered", None)
    return answered
