"""An operation on a ``DTensor``: each rank gives its shard to the strategy.

Where batch dims are sharded, or nothing is, the shards are inverted where they lie. All else is for DTensor's own
dispatch of the registered operator, which has a sharding rule: it puts matrices together that are spread over ranks,
and records gradients. The placements are those of torch's rules for linear algebra.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autoinv import lazy
from autoinv.calls.answer import answer
from autoinv.calls.call import Call
from autoinv.calls.state import is_overridden, is_traced, is_transformed, resolved
from autoinv.operation import Operands
from autoinv.planning.dispatch import key_of

_with_rule: dict[Callable[..., Tensor], bool] = {}
"""Whether an operator could be given its rule, by operator."""


def is_sharded(call: Call, operands: Operands) -> bool:
    """Whether this is a ``DTensor`` that is answered here: one operand, and nothing traces or transforms."""
    module = sys.modules.get("torch.distributed.tensor")  # where it was never imported there is none
    if module is None or type(operands[0]) is not module.DTensor or len(operands) != 1:
        return False
    if is_traced() or is_transformed() or is_overridden():
        return False
    if call.library_op not in _with_rule:
        with lazy.importing:
            _with_rule[call.library_op] = _give_rule(call)
    return _with_rule[call.library_op]


def sharded_answer(call: Call, A: Any) -> Tensor:
    """Return the answer for a ``DTensor``, placed as torch's own would be.

    Raises:
        torch.linalg.LinAlgError: on the ranks whose shard has no answer, say for a singular matrix, and on these
            alone. Torch's own call raises on every rank: it gathers its check, which takes a collective a call.
        Exception: whatever PyTorch's own call raises.
    """
    spec, shard = A._spec, A._local_tensor
    is_whole = _is_whole(call, spec)
    is_recorded = A.requires_grad and torch.is_grad_enabled()
    if is_whole and type(shard) is Tensor and A.is_contiguous() and not is_recorded:
        result: Tensor = answer(call.dispatcher, (resolved(shard),))
        return type(A)(result, spec, requires_grad=False)  # DTensor.from_local takes 15 us, this 2
    if not call.operation.takes(A):
        return call.operation.torch_call(A)
    return _dispatched(call, A, is_whole)


def _dispatched(call: Call, A: Any, is_whole: bool) -> Tensor:
    from torch.distributed.tensor import Replicate

    if any(placement.is_partial() for placement in A.placements):
        # As torch's rules do; the rule below alone would choose to scatter, which moves less.
        A = A.redistribute(placements=[Replicate() if p.is_partial() else p for p in A.placements])
    if is_whole:
        _plan(call, A)
    result = call.library_op(A)
    if not is_whole:
        _plan(call, result)  # of the shape that the shard had once its matrices were whole
    return result


def _plan(call: Call, A: Any) -> None:
    """Choose the strategy for a rank's shard, timed when need be: the operator itself times nothing."""
    with torch.no_grad():
        shard = resolved(A.to_local())
    key = key_of(shard)
    if key not in call.dispatcher.memo:
        call.dispatcher.miss(key, shard.detach())


def _is_whole(call: Call, spec: Any) -> bool:
    """Whether each rank holds whole matrices, and torch's rules would leave them there."""
    shape, mesh = spec.shape, spec.mesh
    batch_dims = len(shape) - call.operation.core_dims((shape,))[0]
    ranks = [1] * batch_dims
    for mesh_dim, placement in enumerate(spec.placements):
        if placement.is_replicate():
            continue
        if type(placement).__name__ != "Shard" or not 0 <= placement.dim < batch_dims:
            return False  # partial, or one of the kinds that know of strides or blocks
        ranks[placement.dim] *= mesh.size(mesh_dim)
        if shape[placement.dim] < ranks[placement.dim]:
            return False  # some ranks would have no matrix: torch replicates
    return True


def _give_rule(call: Call) -> bool:
    try:
        from torch.distributed.tensor import DTensor, Replicate, Shard
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:  # a torch that can be given none: its own call answers
        return False

    def rule(A: Any) -> list[tuple[list[Any], list[Any]]]:
        """List for one mesh dim how result and operand may be placed."""
        dims = range(A.ndim - call.operation.core_dims([A.shape])[0])
        return [([p], [p]) for p in (Replicate(), *map(Shard, dims))]

    register_sharding(call.library_op)(rule)  # type: ignore[arg-type]  # an operator's overload
    return hasattr(DTensor, "_spec") and hasattr(DTensor, "_local_tensor")
