"""The answer for an ordinary tensor: by the chosen strategy, timed when need be, or never timed."""

from __future__ import annotations

from torch import Tensor

from autoinv import settings
from autoinv.errors import warn_once
from autoinv.ops.inv.operation import DISPATCHER, torch_inv
from autoinv.ops.inv.strategies._lu import inv as torch_linalg_inv
from autoinv.planning.dispatch import key_of
from autoinv.problem import Problem
from autoinv.strategy import LinAlgError, Run


def answer(A: Tensor) -> Tensor:
    """Return the inverse of an ordinary tensor, as the plain lane does: memo, else plan, then run.

    Raises:
        torch.linalg.LinAlgError: when a matrix is singular.
    """
    key = key_of(A)
    run = DISPATCHER.memo.get(key) or DISPATCHER.miss(key, A)
    try:
        return run(A)
    except LinAlgError:
        raise
    except Exception as error:
        return DISPATCHER.failed(key, A, None, error)


def untimed_answer(A: Tensor) -> Tensor:
    """Return the inverse by what is known already; times nothing and stores nothing.

    Raises:
        torch.linalg.LinAlgError: when a matrix is singular.
    """
    if not DISPATCHER.takes(A):
        return torch_inv(A)
    A = A.resolve_conj().resolve_neg()
    run = DISPATCHER.memo.get(key_of(A)) or _known_run(A)
    try:
        return run(A)
    except LinAlgError:
        raise
    except Exception:
        return torch_inv(A)


def torchs_own(A: Tensor) -> Tensor:
    """Return PyTorch's own answer, contiguous as any; it looks at no size that a trace would record.

    Raises:
        Exception: whatever ``torch.linalg.inv`` raises.
    """
    return torch_linalg_inv(A).contiguous()


def _known_run(A: Tensor) -> Run:
    if settings.current().mode == "off":
        return torch_inv
    try:
        problem = Problem.of("inv", A)
        return DISPATCHER.explain(problem).strategy.bind(problem)
    except Exception as error:  # as on a miss: the caller gets the right answer
        warn_once(
            f"planning {type(error).__name__}",
            f"choosing a strategy of inv failed with {type(error).__name__}: {error}",
            "PyTorch's own call answers; please report this with what `python -m autoinv.tune doctor` says.",
        )
        return torch_inv
