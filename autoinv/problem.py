"""A problem: one operation on one kind of input. Its text is the key in the decisions file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Shape = tuple[int, ...]

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
}
LAYOUTS = ("contiguous", "transposed", "strided")
MOST_DIMS = 64
"""Beyond so many most of PyTorch raises."""

_SHAPE = re.compile(r"\d{1,18}(x\d{1,18})*")
_DEVICE = re.compile(r"[a-z]{1,16}(:\d{1,4})?")


@dataclass(frozen=True)
class Problem:
    """What a decision is about; equal problems get the same strategy.

    ``op`` is an operation's name; ``shapes`` one shape an operand; ``device`` as torch writes it;
    ``threads`` what ``torch.get_num_threads()`` said; ``layout`` one of ``LAYOUTS``.
    """

    op: str
    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    device: str
    threads: int
    layout: str = "contiguous"

    @classmethod
    def of(cls, op: str, *operands: torch.Tensor) -> Problem:
        """Return the problem that these tensors pose in this thread."""
        first = operands[0]
        return cls(
            op,
            tuple(tuple(map(int, x.shape)) for x in operands),
            first.dtype,
            str(first.device),
            torch.get_num_threads(),
            max((layout_of(x.shape, x.stride()) for x in operands), key=LAYOUTS.index),
        )

    @classmethod
    def parse(cls, key: str) -> Problem:
        """Return the problem whose ``key`` this is.

        Raises:
            ValueError: when the text is no key.
        """
        parts = key.split("/")
        if len(parts) != 6 or not parts[4].startswith("threads="):
            raise ValueError(
                f"not a problem's key: {key!r}; one looks like inv/80x3x3/float64/cpu/threads=2/contiguous"
            )
        op, shapes, dtype, device, threads, layout = parts
        count = threads.removeprefix("threads=")
        known = dtype in DTYPES and layout in LAYOUTS and op.isidentifier() and _DEVICE.fullmatch(device)
        if not known or not re.fullmatch(r"[1-9]\d{0,5}", count):
            raise ValueError(
                f"not a problem's key: {key!r}; its operation, dtype, device, threads or layout is unknown"
            )
        problem = cls(
            op, tuple(map(parse_shape, shapes.split(","))), DTYPES[dtype], device, int(count), layout
        )
        if problem.key != key:
            raise ValueError(f"not a problem's key: {key!r} would be written {problem.key!r}")
        return problem

    @property
    def key(self) -> str:
        """The problem as text: operation/shape/dtype/device/threads/layout."""
        shapes = ",".join(map(format_shape, self.shapes))
        return f"{self.op}/{shapes}/{self.dtype_name}/{self.device}/threads={self.threads}/{self.layout}"

    @property
    def shape(self) -> Shape:
        """The first operand's shape."""
        return self.shapes[0]

    @property
    def n(self) -> int:
        """Rows of one matrix of the first operand."""
        return self.shape[-1]

    @property
    def batch(self) -> int:
        """How many matrices the first operand holds."""
        return math.prod(self.shape[:-2])

    @property
    def numel(self) -> int:
        """How many numbers the first operand holds."""
        return math.prod(self.shape)

    @property
    def dtype_name(self) -> str:
        """The dtype without ``torch.``."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def on_cpu(self) -> bool:
        """Whether the operands live on the CPU."""
        return self.device == "cpu"


def layout_of(shape: Sequence[int], stride: Sequence[int]) -> str:
    """Name the layout of a tensor ``(*, n, n)`` with these strides (in elements)."""
    if _is_dense(shape, stride):
        return "contiguous"
    if len(shape) >= 2 and _is_dense(
        (*shape[:-2], shape[-1], shape[-2]), (*stride[:-2], stride[-1], stride[-2])
    ):
        return "transposed"
    return "strided"


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def format_shape(shape: Sequence[int]) -> str:
    """Write a shape as ``10x8x3x3``."""
    return "x".join(map(str, shape))


def parse_shape(text: str) -> Shape:
    """Read a shape written as ``10x8x3x3``.

    Raises:
        ValueError: when it is not written so.
    """
    if not _SHAPE.fullmatch(text):
        raise ValueError(f"{text!r} is not a shape; write the sizes with x between them, such as 10x8x3x3")
    return tuple(map(int, text.split("x")))
