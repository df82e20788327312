"""One operation as it is called: what the other files of this folder go by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from autoinv.operation import Operation
from autoinv.planning.dispatch import Dispatcher


class Replaced(NamedTuple):
    """A name of torch's that `patched` puts the public function under, and how torch calls its operands there."""

    owner: Any
    name: str
    operand_names: tuple[str, ...]


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
        self.replaces = replaces
        """The names of torch's that `patched` puts the function under."""
