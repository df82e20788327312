"""`safe_inv`: the inverse that one bad matrix does not stop."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

from autoinv.calls.state import is_ordinary_type, is_traced, is_transformed, wants_gradient
from autoinv.ops.inv import inv
from autoinv.ops.inv.ex import inv_ex
from autoinv.strategy import LinAlgError

Singular = Literal["nan", "pinv", "raise"]
SINGULAR = get_args(Singular)

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class SafeInverse(NamedTuple):
    """What `safe_inv` returns: the inverses ``(*, n, n)``, and bool ``(*)``, True where there is one."""

    inverse: Tensor
    ok: Tensor


pytree._register_namedtuple(
    SafeInverse, serialized_type_name="autoinv.SafeInverse"
)  # so that torch.export can save it


def safe_inv(A: Tensor, *, eps: float = 0.0, singular: Singular = "nan") -> SafeInverse:
    """Return the inverse of each matrix, and which of them have one.

    One bad matrix among thousands does not end a training run, and its gradient does not spoil the others'.
    Regularise with ``eps`` where nearly singular matrices are expected (covariances, ``J^T J``): for positive
    semi-definite ones it bounds the inverse by ``1 / eps``, at the price of a bias. Where the inverse is only
    multiplied by something, rather use ``torch.linalg.solve``: it is more accurate and saves that product.

    Args:
        A: ``(*, n, n)``; float16 and bfloat16 are computed in float32 and rounded back.
        eps: added to the diagonal first.
        singular: what stands where there is no inverse: ``"nan"``; ``"pinv"``, the Moore-Penrose
            pseudo-inverse (NaN where the matrix itself is not finite); or ``"raise"``. While torch compiles
            or transforms, no value can be looked at: ``"raise"`` then sees only what LU calls singular.

    Returns:
        A named tuple ``(inverse, ok)``: ``(*, n, n)``, contiguous, of A's dtype; and bool ``(*)``, False where
        LU meets a zero pivot or the result is not finite. The gradient is finite everywhere: zero where not ok, and
        zero for a matrix whose own gradient overflows.

    Raises:
        RuntimeError: when the matrices are not square, and for what `inv` refuses.
        torch.linalg.LinAlgError: with ``singular="raise"``; the text names the flat index of the first.
        ValueError: when ``singular`` is none of the three.

    Example:
        >>> import torch, autoinv
        >>> A = torch.tensor([[[4.0, 7.0], [2.0, 6.0]], [[0.0, 0.0], [0.0, 0.0]]])
        >>> inverse, ok = autoinv.safe_inv(A)
        >>> ok
        tensor([ True, False])
        >>> inverse[0]
        tensor([[ 0.6000, -0.7000],
                [-0.2000,  0.4000]])
    """
    if singular not in SINGULAR:
        raise ValueError(f"singular={singular!r} is none of {', '.join(map(repr, SINGULAR))}")
    _refuse_misfits(A)
    dtype = A.dtype
    differentiates = is_transformed() or wants_gradient(A)
    B = _with_finite_gradient(A) if differentiates else A
    B = B.to(_WIDER.get(dtype, dtype))
    if eps:
        B = B + eps * torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
    if not _may_look_at(B):
        return _unseen(B, dtype, singular)
    X, info = inv_ex(B)
    ok = (info == 0) & _is_finite(X.detach().to(dtype))
    if bool(ok.all()):
        return SafeInverse(X.to(dtype), ok)
    if singular == "raise":
        _raise_for(info, ok, dtype)
    filling = _pseudo_inverse_of_rows(B.detach(), ok) if singular == "pinv" else torch.full_like(X, torch.nan)
    if differentiates:  # a bad matrix must be gone before, or it spoils the gradient: 0 * inf is NaN
        X = inv(_replaced(B, ok))
    return SafeInverse(_where(ok, X, filling).to(dtype), ok)


def _refuse_misfits(A: Tensor) -> None:
    if not isinstance(A, Tensor) or A.dim() < 2 or not (A.is_floating_point() or A.is_complex()):
        inv(A)  # raises, in torch's words
    if A.shape[-1] != A.shape[-2]:
        raise RuntimeError(
            f"safe_inv: matrices of {A.shape[-2]} by {A.shape[-1]} are not square and have no inverse; "
            "torch.linalg.pinv gives their pseudo-inverse, torch.linalg.lstsq solves with them"
        )


def _may_look_at(B: Tensor) -> bool:
    """Whether Python may branch on values: nothing traces or transforms, and no subclass is in the way."""
    return is_ordinary_type(B) and not is_traced() and not is_transformed()


def _where(ok: Tensor, X: Tensor, other: Tensor) -> Tensor:
    return torch.where(ok[..., None, None], X, other)


def _replaced(B: Tensor, ok: Tensor) -> Tensor:
    return _where(ok, B, torch.eye(B.shape[-1], dtype=B.dtype, device=B.device))


def _unseen(B: Tensor, dtype: torch.dtype, singular: str) -> SafeInverse:
    """Answer without a look at any value, at the price of inverting twice."""
    if singular == "raise":
        X = inv(B).to(dtype)
        return SafeInverse(X, _is_finite(X.detach()))
    bare = B.detach()
    guess, info = inv_ex(bare)
    ok = (info == 0) & _is_finite(guess.to(dtype))
    filling = torch.full_like(bare, torch.nan)
    if singular == "pinv":
        has_one = ~ok & _is_finite(bare)
        filling = _where(has_one, torch.linalg.pinv(_where(has_one, bare, torch.zeros_like(bare))), filling)
    return SafeInverse(_where(ok, inv(_replaced(B, ok)), filling).to(dtype), ok)


def _pseudo_inverse_of_rows(B: Tensor, ok: Tensor) -> Tensor:
    filling = torch.full_like(B, torch.nan, memory_format=torch.contiguous_format)
    has_one = ~ok & _is_finite(B)
    filling[has_one] = torch.linalg.pinv(B[has_one])
    return filling


def _raise_for(info: Tensor, ok: Tensor, dtype: torch.dtype) -> None:
    first = int((~ok).flatten().nonzero()[0])
    if int(info.flatten()[first]) != 0:
        torch._linalg_check_errors(info, "safe_inv", is_matrix=info.dim() == 0)
    where = "" if ok.dim() == 0 else f"(Batch element {first}): "
    raise LinAlgError(
        f"safe_inv: {where}The inverse is not finite in {str(dtype).removeprefix('torch.')}: "
        "the matrix holds NaN or infinity, or is too close to a singular one"
    )


class _FiniteGradient(torch.autograd.Function):
    """The identity, whose gradient is zero for each matrix where it would not be finite."""

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
        return torch.where(_is_finite(G)[..., None, None], G, 0)


class _FiniteGradientWithTangent(_FiniteGradient):
    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> Tensor:
        del ctx
        return dA.view_as(dA)


def _with_finite_gradient(A: Tensor) -> Tensor:
    """Return ``A``, for whose matrices ``(*, n, n)`` no infinite or NaN gradient will arrive."""
    # Dynamo takes no Function with a rule for forward mode, and has no forward mode to lose.
    identity = _FiniteGradient if is_dynamo_compiling() else _FiniteGradientWithTangent
    B: Tensor = identity.apply(A)  # type: ignore[no-untyped-call]
    return B


def _is_finite(X: Tensor) -> Tensor:
    """Return for each matrix of ``(*, n, n)`` whether all of its elements are finite: bool ``(*)``."""
    return torch.isfinite(X).all(-1).all(-1)
