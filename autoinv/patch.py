"""`patched`: torch's own names for an operation go through autoinv, for code that one does not own."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

from torch.compiler import is_dynamo_compiling

from autoinv import fork
from autoinv.calls.call import Call, Replaced
from autoinv.ops.table import DEFAULT, operation_call

_lock = fork.lock()
_restores: dict[str, list[Callable[[], None]]] = {}
_blocks: Counter[str] = Counter()
"""How many blocks are open for an operation, in all threads."""


class _Here(threading.local):
    """How many blocks are open for an operation in this thread."""

    def __init__(self) -> None:
        self.depth: Counter[str] = Counter()


_here = _Here()


def patched(ops: Sequence[str] = (DEFAULT,)) -> ContextDecorator:
    """Return a context, or decorator, in which torch's own functions for these operations are autoinv's.

    ``torch.linalg.inv``, ``torch.inverse`` and ``Tensor.inverse`` go through `inv` in the thread that
    entered; other threads keep PyTorch's own, also those started inside. A name that was bound before, as
    by ``from torch.linalg import inv``, is not reached. Blocks may nest and overlap, an exception undoes
    them, and after the last one torch is as it was before the first. Results are contiguous, as from `inv`.

    Args:
        ops: the operations.

    Raises:
        ValueError: when there is no such operation.

    Example:
        >>> import torch, autoinv
        >>> with autoinv.patched():
        ...     torch.tensor([[4.0, 7.0], [2.0, 6.0]]).inverse()
        tensor([[ 0.6000, -0.7000],
                [-0.2000,  0.4000]])
    """
    return _Patched([operation_call(op) for op in ((ops,) if isinstance(ops, str) else ops)])


class _Patched(ContextDecorator):
    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    def _recreate_cm(self) -> _Patched:
        return _Patched(self._calls)

    def __enter__(self) -> None:
        for call in self._calls:
            name = call.operation.name
            with _lock:
                if not _blocks[name]:
                    _restores[name] = [_replace(call, replaced) for replaced in call.replaces]
                _blocks[name] += 1
            _here.depth[name] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        for call in reversed(self._calls):
            name = call.operation.name
            _here.depth[name] -= 1
            with _lock:
                _blocks[name] -= 1
                if not _blocks[name]:
                    for restore in reversed(_restores.pop(name)):
                        restore()


def _replace(call: Call, replaced: Replaced) -> Callable[[], None]:
    """Put our function under a name of torch's; return what puts the old state back."""
    owner, name, op = replaced.owner, replaced.name, call.operation.name
    before = getattr(owner, name)
    is_own = name in vars(owner)  # Tensor.inverse is inherited: it is undone by removing ours

    @functools.wraps(before)
    def ours(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or _here.depth[op]:
            # torch.linalg.inv(A=...), torch.inverse(input=...): ours may name its operands otherwise
            for operand in replaced.operand_names[len(args) :]:
                if operand not in kwargs:
                    break
                args = (*args, kwargs.pop(operand))
            return call.function(*args, **kwargs)
        return before(*args, **kwargs)

    def restore() -> None:
        if vars(owner).get(name) is not ours:
            return  # another patch stands on ours; without an open block it calls through to torch
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

    setattr(owner, name, ours)
    return restore
