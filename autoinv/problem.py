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
LAYOUTS = ("contiguous", "transposed", "expanded", "strided")
"""Transposed: each matrix column-major. Expanded: a batch stride of 0, else contiguous. Strided: all others."""
MOST_DIMS = 64
"""Beyond so many most of PyTorch raises."""

_SHAPE = re.compile(r"\d{1,18}(x\d{1,18})*")
_DEVICE = re.compile(r"[a-z]{1,16}(:\d{1,4})?")


@dataclass(frozen=True)
class Problem:
    """What a decision is about; equal problems get the same strategy.

    ``op`` is an operation's name; ``shapes`` and ``layouts`` hold one of each an operand, a layout being one of
    ``LAYOUTS`` (none given: all contiguous); ``device`` as torch writes it; ``threads`` what
    ``torch.get_num_threads()`` returned.
    """

    op: str
    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    device: str
    threads: int
    layouts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Fill in the layouts where none are given."""
        if not self.layouts:
            object.__setattr__(self, "layouts", ("contiguous",) * len(self.shapes))

    @classmethod
    def of(cls, op: str, *operands: torch.Tensor) -> Problem:
        """Return the problem that these tensors, of one dtype and device, pose in this thread."""
        first = operands[0]
        return cls(
            op,
            tuple(tuple(map(int, x.shape)) for x in operands),
            first.dtype,
            str(first.device),
            torch.get_num_threads(),
            tuple(layout_of(x.shape, x.stride()) for x in operands),
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
        count, layouts = threads.removeprefix("threads="), tuple(layout.split(","))
        known = dtype in DTYPES and set(layouts) <= set(LAYOUTS) and op.isidentifier()
        if not (known and _DEVICE.fullmatch(device) and re.fullmatch(r"[1-9]\d{0,5}", count)):
            raise ValueError(
                f"not a problem's key: {key!r}; its operation, dtype, device, threads or layout is unknown"
            )
        sizes = tuple(map(parse_shape, shapes.split(",")))
        problem = cls(op, sizes, DTYPES[dtype], device, int(count), layouts)
        if problem.key != key or len(layouts) != len(sizes):
            raise ValueError(f"not a problem's key: {key!r} would be written {problem.key!r}")
        return problem

    @property
    def key(self) -> str:
        """The problem as text: operation/shapes/dtype/device/threads/layouts, with commas between operands."""
        shapes = format_shapes(self.shapes)
        return f"{self.op}/{shapes}/{self.dtype_name}/{self.device}/threads={self.threads}/{self.layout}"

    @property
    def layout(self) -> str:
        """The layouts as text, with commas between operands."""
        return ",".join(self.layouts)

    @property
    def shape(self) -> Shape:
        """The first operand's shape."""
        return self.shapes[0]

    @property
    def n(self) -> int:
        """Columns of one matrix of the first operand."""
        return self.shape[-1]

    @property
    def batch(self) -> int:
        """How many matrices the common batch holds, where every operand is a batch ``(*, m, n)`` of matrices."""
        return math.prod(broadcast([shape[:-2] for shape in self.shapes]))

    @property
    def numel(self) -> int:
        """How many numbers the operands hold."""
        return sum(map(math.prod, self.shapes))

    @property
    def dtype_name(self) -> str:
        """The dtype without ``torch.``."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def on_cpu(self) -> bool:
        """Whether the operands live on the CPU."""
        return self.device == "cpu"


def broadcast(shapes: Sequence[Sequence[int]]) -> Shape:
    """Return the common shape of these, as torch broadcasts them.

    Raises:
        RuntimeError: when they have none.
    """
    if len(shapes) == 1:
        return tuple(shapes[0])
    return tuple(torch.broadcast_shapes(*map(tuple, shapes)))  # type: ignore[no-untyped-call]


def layout_of(shape: Sequence[int], stride: Sequence[int]) -> str:
    """Name the layout of a tensor ``(*, m, n)`` with these strides (in elements)."""
    if _is_dense(shape, stride):
        return "contiguous"
    if len(shape) < 2:
        return "strided"
    if _is_dense((*shape[:-2], shape[-1], shape[-2]), (*stride[:-2], stride[-1], stride[-2])):
        return "transposed"
    once = [1 if step == 0 else size for size, step in zip(shape[:-2], stride, strict=False)]
    return "expanded" if _is_dense((*once, *shape[-2:]), stride) else "strided"


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


def format_shapes(shapes: Sequence[Sequence[int]]) -> str:
    """Write one shape an operand, as ``80x3x3,80x3x3``."""
    return ",".join(map(format_shape, shapes))


def parse_shape(text: str) -> Shape:
    """Read a shape written as ``10x8x3x3``.

    Raises:
        ValueError: when it is not written so.
    """
    if not _SHAPE.fullmatch(text):
        raise ValueError(f"{text!r} is not a shape; write the sizes with x between them, such as 10x8x3x3")
    return tuple(map(int, text.split("x")))
