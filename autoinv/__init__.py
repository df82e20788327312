"""autoinv: torch.linalg.inv for batches of small matrices, by whichever way is fastest on this machine."""

from autoinv.api import configure, explain, forget, pin, unpin, using, warm
from autoinv.ops.inv import inv, inv_ex
from autoinv.ops.safe_inv import safe_inv
from autoinv.patch import patched

__all__ = [
    "configure",
    "explain",
    "forget",
    "inv",
    "inv_ex",
    "patched",
    "pin",
    "safe_inv",
    "unpin",
    "using",
    "warm",
]
