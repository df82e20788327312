"""What a strategy is: one way to do one operation, under one name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch

from autoinv.problem import Problem

LinAlgError = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch does not list it as public

Run = Callable[..., torch.Tensor]
"""``run(*operands, out=None)``: the answer, contiguous; written into ``out`` and returned when that is given.

``out`` has the right shape, dtype and device, is contiguous, and overlaps no operand, unless it is that operand and
the operation works in place. The result has the operands' dtype, also where autocast would lower that of a product.
"""


class Strategy(ABC):
    """One way to do an operation. Stateless; knows which problems it supports, and binds itself to one of them."""

    name: ClassVar[str]
    limits: ClassVar[str] = ""
    """What it supports, in words for people: "matrices up to 4 x 4"."""

    @abstractmethod
    def supports(self, problem: Problem) -> bool:
        """Whether this is a legal, accurate answer for the problem. Cheap; asked again at every use."""

    @abstractmethod
    def bind(self, problem: Problem) -> Run:
        """Return the function that answers this problem, with all that is constant already looked up."""

    def is_multithreaded(self, problem: Problem) -> bool:
        """Whether a call wakes a team of threads, so that its time depends on how busy the machine is."""
        del problem
        return False

    def may_be_slow(self, problem: Problem) -> bool:
        """Whether one call may cost many times the best, so that it is screened on a slice first."""
        del problem
        return False
