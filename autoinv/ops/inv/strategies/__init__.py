"""The strategies of ``inv``, in order of preference."""

from __future__ import annotations

from autoinv.ops.inv.strategies.batched import Batched
from autoinv.ops.inv.strategies.bmm import Bmm
from autoinv.ops.inv.strategies.closed_form import ClosedForm
from autoinv.ops.inv.strategies.einsum import Einsum
from autoinv.ops.inv.strategies.flat import Flat
from autoinv.ops.inv.strategies.loop import Loop
from autoinv.ops.inv.strategies.native import Native
from autoinv.ops.inv.strategies.native_parallel import NativeParallel
from autoinv.ops.inv.strategies.vmap import Vmap
from autoinv.strategy import Strategy

TABLE: tuple[Strategy, ...] = (
    Batched(),
    Native(),
    NativeParallel(),
    ClosedForm(),
    Einsum(),
    Bmm(),
    Flat(),
    Vmap(),
    Loop(),
)
