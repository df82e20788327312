"""Functions that TorchScript shall compile as operators: it knows those of Python's by their ``id``, from a table."""

from __future__ import annotations

from typing import Any

import torch.jit._builtins as builtins  # private, and what torch.jit itself registers its functions with since 1.0


def script_as(function: Any, operator: str) -> None:
    """Let TorchScript compile a call of ``function`` as one of ``operator``, such as ``"aten::inverse"``.

    For ever: the function must outlive every use, or its ``id`` becomes another object's.
    """
    table = builtins._builtin_table
    if table is not None:
        table[id(function)] = operator
    else:  # made at the first use of TorchScript, from this list
        builtins._builtin_ops.append((function, operator))
