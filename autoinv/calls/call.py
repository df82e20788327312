"""One operation as it is called: what the other files of this folder go by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from autoinv.calls.torchscript import script_as
from autoinv.operation import Operation
from autoinv.planning.dispatch import Dispatcher


class Replaced:
    """A name of torch's that `patched` puts an operation under.

    Args:
        owner: the module or class that has the name.
        name: the name.
        operand_names: how torch calls the operands there, in order.
        options: the other arguments that ``function`` takes there, all by keyword.
        function: what answers there, in torch's own types and strides; None for the operation's public function.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        operand_names: tuple[str, ...],
        options: tuple[str, ...] = ("out",),
        function: Callable[..., Any] | None = None,
    ) -> None:
        self.owner = owner
        self.name = name
        self.operand_names = operand_names
        self.options = frozenset(options)
        self.function = function
        self.original: Any = getattr(owner, name)
        """What torch itself has there, taken at import."""

    @property
    def path(self) -> str:
        """The name in full: ``torch:Tensor.inverse``, as `pkgutil.resolve_name` finds it."""
        if isinstance(self.owner, type):
            return f"{self.owner.__module__}:{self.owner.__qualname__}.{self.name}"
        return f"{self.owner.__name__}:{self.name}"


class Call:
    """An operation's public function, the dispatcher behind it, and its registered operator.

    A plain class: a dataclass would cost every import 0.3 ms, and the Dynamo of torch 2.6 cannot look into a named
    tuple of ours.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        dispatcher: Dispatcher,
        library_op: Callable[..., Tensor],
        replaces: tuple[Replaced, ...] = (),
    ) -> None:
        self.function = function
        self.dispatcher = dispatcher
        self.operation: Operation = dispatcher.operation
        self.library_op = library_op
        script_as(function, f"autoinv::{self.operation.name}")
        self.replaces = replaces
        """The names of torch's that `patched` puts the function under."""
