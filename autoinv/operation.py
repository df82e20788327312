"""What an operation is: its strategies, what it takes and returns, its derivatives, and how accurate it must be."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from autoinv.problem import DTYPES, MOST_DIMS, Problem, Shape, broadcast
from autoinv.strategy import Strategy

Operands = tuple[Tensor, ...]
Strides = Sequence[Sequence[int]]

_COMPUTED = frozenset(DTYPES.values())


class Rules(ABC):
    """The derivatives of an operation, the same for all of its strategies.

    Written in operations of torch, so that they can be differentiated again. How a batch is mapped by vmap, and what
    a fake result looks like, follows from the operation's shapes.
    """

    @abstractmethod
    def saved(self, operands: Operands, result: Tensor) -> Operands:
        """Return the tensors that the derivatives are functions of."""

    @abstractmethod
    def backward(self, saved: Operands, G: Tensor, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
        """Return the gradient that arrives at each operand when ``G`` arrives at the result.

        It may have the shape that the operand is broadcast to. None is right where it is not wanted.
        """

    @abstractmethod
    def jvp(self, saved: Operands, tangents: Sequence[Tensor | None]) -> Tensor:
        """Return the tangent of the result; None stands for an operand without a tangent."""


class Operation(ABC):
    """One thing that can be asked for. Its operands are batches, and the batch dims are broadcast."""

    name: ClassVar[str]
    operand_names: ClassVar[tuple[str, ...]]
    """As the registered operator names its arguments."""
    takes_what: ClassVar[str]
    """What shapes it takes, in words for an error: "batches of square matrices, such as 10x8x3x3"."""
    works_in_place: ClassVar[bool] = False
    """Whether ``out`` may be an operand, the very same elements: each strategy has read what it then overwrites."""
    table: tuple[Strategy, ...]
    """In order of preference."""
    references: tuple[str, ...]
    """Names of PyTorch's own ways; the first that supports a problem is its reference."""
    defaults: tuple[str, ...] = ()
    """Names of what serves while nothing was timed: the first that supports a problem, else its reference."""
    rules: Rules
    torch_call: Callable[..., Tensor]
    """PyTorch's own function, taken at import, so that a patched torch never calls itself."""

    @abstractmethod
    def fits(self, *shapes: Sequence[int]) -> bool:
        """Whether the operation takes operands of these shapes, apart from how many dims they have."""

    @abstractmethod
    def result_shape(self, *shapes: Sequence[int]) -> Shape:
        """Return the shape of the result for operands of shapes that fit."""

    @abstractmethod
    def work(self, *shapes: Sequence[int]) -> int:
        """Return about how many multiplications one element of the batch takes."""

    @abstractmethod
    def reject_reason(self, operands: Operands, result: Tensor, expected: Tensor) -> str | None:
        """Say why a result is not as accurate as the reference's, ``expected``, must be; None when it is."""

    def core_dims(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return how many trailing dims of each operand belong to one element of the batch: 2 for matrices.

        This must not change with dims that are put in front, as vmap does. So an operation that takes vectors too
        makes them matrices before it calls the engine.
        """
        return (2,) * len(shapes)

    def batch_shape(self, shapes: Sequence[Sequence[int]]) -> Shape:
        """Return the common batch: the leading dims of all operands, broadcast."""
        cores = self.core_dims(shapes)
        return broadcast([shape[: len(shape) - core] for shape, core in zip(shapes, cores, strict=True)])

    def batch(self, problem: Problem) -> int:
        """Return how many elements the common batch holds."""
        return math.prod(self.batch_shape(problem.shapes))

    def takes(self, *operands: Tensor) -> bool:
        """Whether strategies compute on these: no empty ones, of one dtype and device, of shapes that fit."""
        first = operands[0]
        dtype = first.dtype
        if dtype not in _COMPUTED:
            return False
        for x in operands:
            if (
                x.layout is not torch.strided
                or not (x.is_cpu or x.is_cuda)
                or not x.numel()
                or x.dim() > MOST_DIMS
            ):
                return False
            if x is not first and (x.dtype is not dtype or x.device != first.device):
                return False
        return self.fits(*[x.shape for x in operands])

    def torch_answer(self, *operands: Tensor, out: Tensor | None = None) -> Tensor:
        """Return PyTorch's own answer, contiguous: the reference's where one supports the problem.

        Raises:
            Exception: whatever PyTorch's own call raises.
        """
        is_traced = torch._C._get_tracing_state() is not None  # a trace would record the sizes
        if not is_traced and self.takes(*operands):
            problem = Problem.of(self.name, *operands)
            return self.reference(problem).bind(problem)(*operands, out=out)
        if out is not None:
            return self.torch_call(*operands, out=out)
        result = as_contiguous(self.torch_call(*operands))
        if is_traced or result.layout is not torch.strided or result.numel():
            return result
        # `contiguous` leaves the column-major strides of an empty result as they are.
        return result.clone(memory_format=torch.contiguous_format)

    def strategy(self, name: str) -> Strategy | None:
        """Return the strategy of this name, or None."""
        return next((s for s in self.table if s.name == name), None)

    def reference(self, problem: Problem) -> Strategy:
        """Return PyTorch's own way to answer this problem."""
        named = [s for s in self.table if s.name in self.references]
        return next((s for s in named if s.supports(problem)), named[0])

    def default(self, problem: Problem) -> Strategy:
        """Return what answers this problem while nothing was timed for it: the best guess, not the slowest."""
        named = (s for s in self.table if s.name in self.defaults)
        return next((s for s in named if s.supports(problem)), None) or self.reference(problem)

    def names(self) -> list[str]:
        """Return every strategy's name, in order of preference."""
        return [s.name for s in self.table]


def as_contiguous(result: Tensor) -> Tensor:
    """Return a result of PyTorch's own as every strategy returns it; a sparse one, say, is left as it is."""
    return result.contiguous() if result.layout is torch.strided else result
