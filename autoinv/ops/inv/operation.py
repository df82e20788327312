"""What the engine must know of the operation `inv`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from autoinv.operation import Operands, Operation
from autoinv.ops.inv import accuracy
from autoinv.ops.inv.rules import InverseRules
from autoinv.ops.inv.strategies import TABLE
from autoinv.ops.inv.strategies._lu import inv as torch_linalg_inv
from autoinv.problem import Shape


class Inverse(Operation):
    """The inverse of each matrix of ``(*, n, n)``."""

    name = "inv"
    operand_names = ("A",)
    works_in_place = True
    takes_what = "batches of square matrices, such as 10x8x3x3"
    table = TABLE
    references = ("batched", "loop")
    defaults = ("native",)
    rules = InverseRules()
    torch_call = staticmethod(torch_linalg_inv)

    def fits(self, *shapes: Sequence[int]) -> bool:
        """Square matrices."""
        (shape,) = shapes
        return len(shape) >= 2 and shape[-1] == shape[-2]

    def result_shape(self, *shapes: Sequence[int]) -> Shape:
        """Return the shape of the inverses, which is that of the matrices."""
        return tuple(shapes[0])

    def work(self, *shapes: Sequence[int]) -> int:
        """Return n^3: an LU factorisation and two substitutions."""
        return int(shapes[0][-1]) ** 3

    def reject_reason(self, operands: Operands, result: Tensor, expected: Tensor) -> str | None:
        """Compare both residuals with the reference's."""
        return accuracy.reject_reason(operands[0], result, expected)


INV = Inverse()
