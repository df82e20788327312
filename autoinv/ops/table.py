"""Every operation's dispatcher, by name."""

from __future__ import annotations

from autoinv.ops.inv import operation
from autoinv.planning.dispatch import Dispatcher

DISPATCHERS: dict[str, Dispatcher] = {"inv": operation.DISPATCHER}


def dispatcher(op: str) -> Dispatcher:
    """Return the dispatcher of an operation.

    Raises:
        ValueError: when there is no such operation.
    """
    if op not in DISPATCHERS:
        raise ValueError(f"no operation is called {op!r}; the operations are {', '.join(DISPATCHERS)}")
    return DISPATCHERS[op]
