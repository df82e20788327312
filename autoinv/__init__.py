"""autoinv: torch.linalg.inv for batches of small matrices, by whichever way is fastest on this machine."""

from typing import TYPE_CHECKING

from autoinv import lazy
from autoinv.errors import AutoinvWarning
from autoinv.ops.inv import inv
from autoinv.ops.inv.ex import inv_ex
from autoinv.ops.inv.safe import SafeInverse, safe_inv
from autoinv.patch import patched
from autoinv.version import __version__

if TYPE_CHECKING:
    from autoinv.api import Explanation, configure, explain, forget, pin, record, sync, unpin, using, warm
    from autoinv.planning.events import DecisionEvent, on_decision
    from autoinv.store.decisions import Decision

__all__ = [
    "AutoinvWarning",
    "Decision",
    "DecisionEvent",
    "Explanation",
    "SafeInverse",
    "__version__",
    "configure",
    "explain",
    "forget",
    "inv",
    "inv_ex",
    "on_decision",
    "patched",
    "pin",
    "record",
    "safe_inv",
    "sync",
    "unpin",
    "using",
    "warm",
]

# What only interactive and set-up code calls is imported at first use: 10 of the 15 ms that an import may take.
_LATER = {
    **dict.fromkeys(
        ("Explanation", "configure", "explain", "forget", "pin", "record", "sync", "unpin", "using", "warm"),
        "autoinv.api",
    ),
    **dict.fromkeys(("DecisionEvent", "on_decision"), "autoinv.planning.events"),
    "Decision": "autoinv.store.decisions",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module 'autoinv' has no attribute {name!r}")
        value: object = getattr(lazy.module(_LATER[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
