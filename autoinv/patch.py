"""`patched`: torch's own names for the inverse go through autoinv, for code that one does not own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from autoinv import fork
from autoinv.ops.inv import inv

_NAMES: tuple[tuple[Any, str], ...] = ((torch.linalg, "inv"), (torch, "inverse"), (torch.Tensor, "inverse"))

_lock = fork.Lock()
_restores: list[Callable[[], None]] = []
_blocks = 0  # how many `with patched()` are open, in all threads


class _Here(threading.local):
    depth = 0  # how many are open in this thread


_here = _Here()


def patched() -> ContextDecorator:
    """Return a context, or decorator, in which torch's inverses are autoinv's.

    ``torch.linalg.inv``, ``torch.inverse`` and ``Tensor.inverse`` go through `inv` in the thread that
    entered; other threads keep PyTorch's own, also those started inside. A name that was bound before, as
    by ``from torch.linalg import inv``, is not reached. Blocks may nest and overlap, an exception undoes
    them, and after the last one torch is as it was before the first. Results are contiguous, as from `inv`.

    Example:
        >>> import torch, autoinv
        >>> with autoinv.patched():
        ...     torch.tensor([[4.0, 7.0], [2.0, 6.0]]).inverse()
        tensor([[ 0.6000, -0.7000],
                [-0.2000,  0.4000]])
    """
    return _Patched()


class _Patched(ContextDecorator):
    def _recreate_cm(self) -> _Patched:
        return _Patched()

    def __enter__(self) -> None:
        global _blocks
        with _lock:
            if _blocks == 0:
                _restores[:] = [_replace(owner, name) for owner, name in _NAMES]
            _blocks += 1
        _here.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _blocks
        del kind, error, trace
        _here.depth -= 1
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                while _restores:
                    _restores.pop()()


def _replace(owner: Any, name: str) -> Callable[[], None]:
    """Put our function under a name of torch's; return what puts the old state back."""
    before = getattr(owner, name)
    is_own = name in vars(owner)  # Tensor.inverse is inherited: it is undone by removing ours

    @functools.wraps(before)
    def ours(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or _here.depth:
            return _call(*args, **kwargs)
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


def _call(*args: Any, **kwargs: Any) -> torch.Tensor:
    for name in ("A", "input"):  # torch.linalg.inv(A=...), torch.inverse(input=...)
        if not args and name in kwargs:
            args = (kwargs.pop(name),)
    return inv(*args, **kwargs)
