"""Every operation: one line each."""

from __future__ import annotations

from autoinv import settings
from autoinv.calls.call import Call
from autoinv.ops import inv

OPERATIONS: dict[str, Call] = {call.operation.name: call for call in (inv.CALL,)}
DEFAULT = "inv"
"""The operation that is meant where none is named."""


def operation_call(op: str) -> Call:
    """Return an operation, as it is called.

    Raises:
        ValueError: when there is no such operation.
    """
    if op not in OPERATIONS:
        raise ValueError(f"no operation is called {op!r}; the operations are {', '.join(OPERATIONS)}")
    return OPERATIONS[op]


def strategy_names() -> list[str]:
    """Return the names of all strategies of all operations, each once."""
    return list(dict.fromkeys(name for call in OPERATIONS.values() for name in call.operation.names()))


settings.take_strategy_names_from(strategy_names)


def forget_plans() -> None:
    """Empty the memos of all operations, so that every problem is planned again."""
    for call in OPERATIONS.values():
        call.dispatcher.forget()
