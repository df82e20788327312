"""Ranks that meet at torch's store: each contributes a value, rank 0 reduces them, all get the result."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Reduce = Callable[[list[Any]], object]
"""Takes the ranks' values, in order of rank; returns the result. Both are whatever JSON holds."""

_CHUNK_CHARACTERS = 1 << 20
"""A value in torch's TCP store may hold 8 MiB."""
_FIRST_NAP_S, _LONGEST_NAP_S = 0.005, 0.25
"""Between two looks at the store, doubling: a thousand ranks asking four times a second do not trouble it."""
_GRACE_S = 10.0
"""How much longer than rank 0 the others wait, so that it is rank 0 that says who is missing."""


class LateError(Exception):
    """Some ranks did not come in time."""

    def __init__(self, ranks: Sequence[int]) -> None:
        """Name them."""
        super().__init__(f"late: {ranks}")
        self.ranks = tuple(ranks)


@dataclass(frozen=True)
class Meeting:
    """A place in the store where these ``ranks`` (their global numbers) meet; ``rank`` counts within them."""

    store: Store
    name: str
    ranks: tuple[int, ...]
    rank: int

    def hold(self, value: object, reduce: Reduce, timeout_s: float) -> Any:
        """Contribute a value; return what rank 0 made of all of them, the same on every rank.

        Raises:
            LateError: on every rank that came, when some did not within ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        # Counted in the store, so that a rank that gave up once still meets the others at the same call.
        call = self.store.add(f"{self._place}/calls/{self.rank}", 1)
        here = f"{self._place}/{call}"
        if self.rank != 0:
            self.store.set(f"{here}/rank/{self.rank}", json.dumps(value))
            if not self._arrived([f"{here}/result"], deadline_s + _GRACE_S):
                raise LateError([self.ranks[0]])
            outcome = self._read(here)
        else:
            outcome = self._reduced(here, value, reduce, deadline_s)
            self._publish(here, outcome)
            self._clear(f"{self._place}/{call - 1}")
        if "late" in outcome:
            raise LateError(outcome["late"])
        return outcome["result"]

    @property
    def _place(self) -> str:
        return f"autoinv/{self.name}/{zlib.crc32(repr(self.ranks).encode()):08x}"

    def _reduced(self, here: str, value: object, reduce: Reduce, deadline_s: float) -> dict[str, Any]:
        others = range(1, len(self.ranks))
        late = [r for r in others if not self._arrived([f"{here}/rank/{r}"], deadline_s)]
        if late:
            return {"late": [self.ranks[r] for r in late]}
        return {"result": reduce([value, *(json.loads(self.store.get(f"{here}/rank/{r}")) for r in others)])}

    def _arrived(self, keys: list[str], deadline_s: float) -> bool:
        nap_s = _FIRST_NAP_S
        while not self.store.check(keys):
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        return True

    def _publish(self, here: str, outcome: dict[str, Any]) -> None:
        text = base64.b85encode(zlib.compress(json.dumps(outcome).encode())).decode()
        chunks = [text[i : i + _CHUNK_CHARACTERS] for i in range(0, len(text), _CHUNK_CHARACTERS)]
        for i, chunk in enumerate(chunks):
            self.store.set(f"{here}/result/{i}", chunk)
        self.store.set(f"{here}/result", str(len(chunks)))

    def _read(self, here: str) -> dict[str, Any]:
        count = int(self.store.get(f"{here}/result"))
        text = b"".join(self.store.get(f"{here}/result/{i}") for i in range(count))
        outcome: dict[str, Any] = json.loads(zlib.decompress(base64.b85decode(text)))
        return outcome

    def _clear(self, before: str) -> None:
        """Drop what the call before left in the store; a rank that is still there finds only who was late."""
        with contextlib.suppress(RuntimeError):  # a store that cannot delete only keeps it
            if not self.store.check([f"{before}/result"]) or "late" in self._read(before):
                return
            for i in range(int(self.store.get(f"{before}/result"))):
                self.store.delete_key(f"{before}/result/{i}")
            for key in [f"{before}/result", *(f"{before}/rank/{r}" for r in range(1, len(self.ranks)))]:
                self.store.delete_key(key)
