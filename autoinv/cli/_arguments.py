"""What most commands ask for: shapes, dtypes, a device, an operation."""

from __future__ import annotations

import argparse
import re

from autoinv import settings
from autoinv.api.problems import problem_of, shapes_of
from autoinv.cli._command import CommandError
from autoinv.ops.table import DEFAULT, OPERATIONS
from autoinv.problem import DTYPES, LAYOUTS, Problem, format_shapes


def shape(text: str) -> str:
    """Return a shape as it is written everywhere, one an operand, for argparse."""
    try:
        return format_shapes(shapes_of(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def layouts(text: str) -> list[str]:
    """Return the layouts in a list such as ``contiguous,transposed``, for argparse."""
    names = text.split(",")
    for name in names:
        if name not in LAYOUTS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(LAYOUTS)}")
    return names


def dtypes(text: str) -> list[str]:
    """Return the dtypes in a list such as ``float32,float64``, for argparse."""
    names = list(dict.fromkeys(name.strip().removeprefix("torch.") for name in text.split(",")))
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(DTYPES)}")
    return names


def counts(text: str) -> list[int]:
    """Return the thread counts in a list such as ``1,2``, for argparse."""
    return list(dict.fromkeys(count(part) for part in text.split(",")))


def count(text: str) -> int:
    """Return a number of threads, for argparse."""
    if not re.fullmatch(r"[0-9]{1,4}", text.strip()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of threads such as 2")
    return int(text)


def budget(text: str) -> float:
    """Return a number of seconds, for argparse."""
    try:
        seconds = settings.check({"budget": text})["budget"]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    assert isinstance(seconds, float)
    return seconds


def seconds(text: str) -> float:
    """Return a length of time such as ``60`` or ``60s``, in seconds, for argparse."""
    return budget(text.strip().removesuffix("s"))


def add_problem(
    parser: argparse.ArgumentParser,
    *,
    several: bool = False,
    dtype: str | None = "float32",
    every_dtype: bool = False,
) -> None:
    """Add SHAPE, --dtype, --device and --op; without a default ``dtype``, none given means every one.

    ``several`` shapes may be none at all. ``every_dtype``: that holds for the dtype alone.
    """
    parser.add_argument(
        "shapes" if several else "shape",
        metavar="SHAPE",
        type=shape,
        nargs="*" if several else None,
        help="sizes with x between them: 10x8x3x3 is a batch of 10 x 8 matrices of 3 x 3",
    )
    add_kind(parser, dtype, every_dtype=every_dtype)


def add_kind(parser: argparse.ArgumentParser, dtype: str | None, *, every_dtype: bool = False) -> None:
    """Add --dtype, --device and --op."""
    parser.add_argument(
        "--dtype",
        type=dtypes,
        default=None if every_dtype or dtype is None else [dtype],
        metavar="D[,D]",
        help=f"one or more of {', '.join(DTYPES)} (default: {'all' if every_dtype else dtype or 'all'})",
    )
    parser.add_argument(
        "--device",
        default=None if dtype is None else "cpu",
        help=f"cpu, cuda or cuda:N (default: {'all' if dtype is None else 'cpu'})",
    )
    parser.add_argument(
        "--op",
        choices=list(OPERATIONS),
        default=None if dtype is None else DEFAULT,
        help=f"the operation (default: {'all' if dtype is None else DEFAULT})",
    )


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Add --layout."""
    parser.add_argument(
        "--layout",
        type=layouts,
        default=["contiguous"],
        metavar="L[,L]",
        help=f"how the matrices of each operand, or of all, lie in memory: {', '.join(LAYOUTS)} (default: contiguous)",
    )


def problems(options: argparse.Namespace) -> list[Problem]:
    """Return the problems that shapes, dtypes and device name, by shape and then dtype.

    Raises:
        CommandError: when there is no such problem.
    """
    shapes = options.shapes if "shapes" in options else [options.shape]
    layout = getattr(options, "layout", ["contiguous"])
    try:
        names = options.dtype or list(DTYPES)
        return [problem_of(s, options.op, d, options.device, layout) for s in shapes for d in names]
    except ValueError as error:
        raise CommandError(str(error)) from None
