"""`patched`: torch's own names for an operation go through autoinv, for code that one does not own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ContextDecorator
from threading import get_ident
from types import ModuleType, TracebackType
from typing import Any

from autoinv import fork
from autoinv.calls.call import Call
from autoinv.calls.stand_in import Reach, StandIn, stand_in
from autoinv.ops.table import DEFAULT, operation_call


def patched(
    ops: Sequence[str] = (DEFAULT,), modules: Iterable[ModuleType] = (), all_threads: bool = False
) -> Patched:
    """Return a context, or decorator, in which torch's own functions for these operations are autoinv's.

    For ``inv`` these are ``torch.linalg.inv``, ``torch.linalg.inv_ex``, ``torch.inverse`` and ``Tensor.inverse``.
    Results have torch's types, and so have errors. Blocks may nest and overlap, in one thread and in several; an
    exception undoes them, and after the last one torch is as it was before the first.

    A block reaches the thread that entered it, with the coroutines and generators that run there meanwhile. Other
    threads keep PyTorch's own functions, also those started inside, such as a data loader's. Processes started inside
    are not patched, unless by a fork: call ``patched`` in them. Arguments with a ``__torch_function__`` (subclasses,
    lazy operators, function modes) see the original function, as they do without ``patched``.

    Args:
        ops: the operations.
        modules: modules that bound such a function to a name of their own, before, as ``from torch.linalg import
            inv_ex as inverse`` does: the name is ours in the block. Not reached are default arguments, attributes of
            classes and what else holds a function.
        all_threads: reach all threads, not just the one that enters.

    Raises:
        ValueError: when there is no such operation.
        TypeError: when one of the modules is none.

    Example:
        >>> import torch, autoinv
        >>> with autoinv.patched():
        ...     torch.tensor([[4.0, 7.0], [2.0, 6.0]]).inverse()
        tensor([[ 0.6000, -0.7000],
                [-0.2000,  0.4000]])
    """
    calls = [operation_call(op) for op in ((ops,) if isinstance(ops, str) else ops)]
    listed = (modules,) if isinstance(modules, ModuleType) else tuple(modules)
    for module in listed:
        if not isinstance(module, ModuleType):
            raise TypeError(
                f"patched takes modules, such as sys.modules[{module!r}], not {type(module).__name__}"
            )
    return Patched(calls, listed, all_threads)


class Patched(ContextDecorator):
    """What `patched` returns: enter it with ``with``, or decorate a function with it; again and again, if you like."""

    def __init__(self, calls: Sequence[Call], modules: Sequence[ModuleType], all_threads: bool) -> None:
        self._calls = calls
        self._modules = modules
        self._all_threads = all_threads
        self._entered: list[tuple[int, list[_Place]]] = []
        """For each open block the thread that entered it, and what it put where."""

    def __enter__(self) -> None:
        """Put our functions under torch's names, where they are not yet."""
        thread = get_ident()
        with _lock:
            places: list[_Place] = []
            try:
                for call in self._calls:
                    places.extend(_take(call, self._modules))
            except BaseException:
                _give_back(places)
                raise
            for call in self._calls:
                self._open(call, thread, 1)
            self._entered.append((thread, places))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put torch's own functions back, where no other block needs ours."""
        del kind, error, trace
        thread = get_ident()
        with _lock:
            # A generator's block may be left in another thread than it was entered in.
            own = [i for i, (entered_in, _) in enumerate(self._entered) if entered_in == thread]
            thread, places = self._entered.pop(own[-1] if own else -1)
            for call in self._calls:
                self._open(call, thread, -1)
            _give_back(places)

    def _open(self, call: Call, thread: int, count: int) -> None:
        reach = _reaches[call.operation.name]
        if self._all_threads:
            reach.everywhere += count
            return
        blocks = reach.threads.get(thread, 0) + count
        if blocks:
            reach.threads[thread] = blocks
        else:
            del reach.threads[thread]


class _Place:
    """A name, and what stands there while blocks are open that need it."""

    def __init__(self, owner: Any, name: str, ours: StandIn, before: Any) -> None:
        self.owner = owner
        self.name = name
        self.ours = ours
        self.before = before
        self.is_own = name in vars(owner)  # Tensor.inverse is inherited: it is undone by removing ours
        self.blocks = 0


_lock = fork.lock()
_places: dict[tuple[int, str], _Place] = {}
"""By the owner's ``id`` and the name: every place where a function of ours stands."""
_reaches: dict[str, Reach] = {}
"""By the operation's name."""
_stand_ins: dict[tuple[int, str], StandIn] = {}
"""For torch's own functions: made once, so that what compiled or scripted code knows of them holds for ever."""


def _take(call: Call, modules: Iterable[ModuleType]) -> Iterator[_Place]:
    """Put our functions under an operation's names, and yield the places one by one."""
    reach = _reaches.setdefault(call.operation.name, Reach())
    ours: dict[int, StandIn] = {}
    for replaced in call.replaces:
        key = (id(replaced.owner), replaced.name)
        own = _stand_ins.get(key)
        if own is None:
            own = _stand_ins[key] = stand_in(call, replaced, replaced.original, reach)
        ours[id(own)] = ours[id(replaced.original)] = own
        before = getattr(replaced.owner, replaced.name)
        if key not in _places and id(before) not in ours:  # somebody else's patch
            foreign = stand_in(call, replaced, before, reach)
            yield _taken(replaced.owner, replaced.name, foreign)
        else:
            yield _taken(replaced.owner, replaced.name, own)
    for module in modules:
        for name, value in list(vars(module).items()):
            found = ours.get(id(value))
            if found is not None:
                yield _taken(module, name, found)


def _taken(owner: Any, name: str, ours: StandIn) -> _Place:
    key = (id(owner), name)
    place = _places.get(key)
    if place is None:
        place = _Place(owner, name, ours, getattr(owner, name))
        setattr(owner, name, ours)
        _places[key] = place
    place.blocks += 1
    return place


def _give_back(places: Sequence[_Place]) -> None:
    for place in reversed(places):
        place.blocks -= 1
        if place.blocks:
            continue
        del _places[id(place.owner), place.name]
        if vars(place.owner).get(place.name) is not place.ours:
            continue  # another patch stands on ours; without an open block it calls through to torch
        if place.is_own:
            setattr(place.owner, place.name, place.before)
        else:
            delattr(place.owner, place.name)
