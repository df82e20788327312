"""autoinv: torch.linalg.inv for batches of small matrices, by whichever way is fastest on this machine."""

from typing import TYPE_CHECKING

from autoinv import lazy
from autoinv.ops.inv import inv, inv_ex
from autoinv.ops.inv.safe import safe_inv
from autoinv.patch import patched
from autoinv.version import __version__

if TYPE_CHECKING:
    from autoinv.api import configure, explain, forget, pin, unpin, using, warm
    from autoinv.api.distributed import sync
    from autoinv.planning.events import on_decision

__all__ = [
    "__version__",
    "configure",
    "explain",
    "forget",
    "inv",
    "inv_ex",
    "on_decision",
    "patched",
    "pin",
    "safe_inv",
    "sync",
    "unpin",
    "using",
    "warm",
]

# What only people and set-up code call comes when it is first asked for: 10 of the 15 ms that an import may take.
_LATER = {
    **dict.fromkeys(("configure", "explain", "forget", "pin", "unpin", "using", "warm"), "autoinv.api"),
    "on_decision": "autoinv.planning.events",
    "sync": "autoinv.api.distributed",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'autoinv' has no attribute {name!r}")
    value: object = getattr(lazy.module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
