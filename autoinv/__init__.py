"""autoinv: torch.linalg.inv for batches of small matrices, by whichever way is fastest on this machine."""

from autoinv.api import configure, explain, forget, pin, unpin, using, warm
from autoinv.events import on_decision
from autoinv.ops.inv import inv, inv_ex
from autoinv.ops.safe_inv import safe_inv
from autoinv.patch import patched
from autoinv.ranks import sync
from autoinv.version import __version__

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
