"""The strategies of ``inv``, in order of preference."""

from __future__ import annotations

from autoinv.strategies.base import Strategy
from autoinv.strategies.inv.batched import Batched
from autoinv.strategies.inv.bmm import Bmm
from autoinv.strategies.inv.closed_form import ClosedForm
from autoinv.strategies.inv.einsum import Einsum
from autoinv.strategies.inv.flat import Flat
from autoinv.strategies.inv.loop import Loop
from autoinv.strategies.inv.native import Native
from autoinv.strategies.inv.native_parallel import NativeParallel
from autoinv.strategies.inv.vmap import Vmap

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
