"""autoinv: torch.linalg.inv for batches of small matrices, by whichever way is fastest on this machine."""

from autoinv.api import configure, explain, forget, pin, unpin, using, warm
from autoinv.ops.inv import inv, inv_ex

__all__ = [
    "configure",
    "explain",
    "forget",
    "inv",
    "inv_ex",
    "pin",
    "unpin",
    "using",
    "warm",
]
