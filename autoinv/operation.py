"""What an operation is: its table of strategies, and all that the tuner must know of its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from autoinv.problem import Problem
from autoinv.strategy import Strategy

Operands = tuple[torch.Tensor, ...]
Strides = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked for, and the ways there are to do it.

    ``table`` stands in order of preference; ``references`` names PyTorch's own ways, the first that
    supports a problem being its reference. ``operands`` makes random ones with the given strides;
    ``sliced`` gives the same problem with few matrices; ``reject_reason(operands, result, expected)``
    says why a result is not accurate enough, or None.
    """

    name: str
    table: tuple[Strategy, ...]
    references: tuple[str, ...]
    operands: Callable[[Problem, Strides], Operands]
    sliced: Callable[[Problem], Problem]
    reject_reason: Callable[[Operands, torch.Tensor, torch.Tensor], str | None]

    def strategy(self, name: str) -> Strategy | None:
        """Return the strategy of this name, or None."""
        return next((s for s in self.table if s.name == name), None)

    def reference(self, problem: Problem) -> Strategy:
        """Return PyTorch's own way to answer this problem."""
        named = [s for s in self.table if s.name in self.references]
        return next((s for s in named if s.supports(problem)), named[0])

    def names(self) -> list[str]:
        """Return every strategy's name, in order of preference."""
        return [s.name for s in self.table]
