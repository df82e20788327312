"""Ranks of a distributed program that choose alike: rank 0's decisions, for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from autoinv import environment, settings
from autoinv.api._meeting import LateError, Meeting
from autoinv.errors import logger
from autoinv.ops.table import forget_plans
from autoinv.planning import agreement
from autoinv.store import decisions, pins
from autoinv.store.decisions import Decision, from_entry

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Store


def sync(group: ProcessGroup | None = None, *, timeout_s: float = 60.0) -> int:
    """Make the ranks of ``torch.distributed`` choose alike: rank 0's decisions and pins hold for all of them.

    Every rank of the group must call it: best when the shapes in use were met or warmed, and again after new
    ones. From then on what rank 0 knew beats, in each process, what that process's own files say, and is not
    tuned again; only the ``strategy`` and ``mode`` settings, and a later ``pin``, ``unpin`` or ``forget``,
    count for more. A shape that rank 0 did not know is still decided by each rank for itself.

    The ranks meet at the store that ``init_process_group`` made. So it is no collective, does the same for
    every backend that has a store (gloo, nccl, ucc; not mpi), and touches no GPU.

    Args:
        group: the ranks; the default group when None. A rank that is not in it does nothing.
        timeout_s: how long to wait for the slowest rank.

    Returns:
        How many decisions of rank 0 now hold.

    Raises:
        TimeoutError: on every rank that came, when one did not come in time; it names the missing ones.
        RuntimeError: on every rank, when one runs on another kind of machine, with other versions or another
            thread count, since the decisions are not for it; or when there is no process group, or its store
            is missing or lost.
        ValueError: when ``timeout_s`` is no positive number.

    Example:
        >>> import autoinv
        >>> import torch.distributed as dist
        >>> def main():  # on each rank, started by torchrun
        ...     dist.init_process_group("gloo")
        ...     autoinv.warm("1000x3x3", "64x8x8")
        ...     autoinv.sync()
    """
    import torch.distributed as dist

    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s is a positive number of seconds, not {timeout_s!r}")
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("sync needs a process group; call torch.distributed.init_process_group first")
    rank = dist.get_rank(group)
    if rank < 0:
        return 0
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)  # torch 2.6 takes no None
    meeting = Meeting(_store(), "sync", tuple(ranks), rank)
    try:
        result = meeting.hold(_identity(), _compare, timeout_s)
    except LateError as late:
        raise TimeoutError(_late_text(late.ranks, timeout_s)) from None
    except dist.DistError as error:  # the store's
        raise RuntimeError(
            f"sync lost touch with the process group's store; did rank 0 end? {error}"
        ) from error
    if "unlike" in result:
        raise RuntimeError(result["unlike"])
    return _adopt(result)


def _store() -> Store:
    from torch.distributed import distributed_c10d

    store: Store | None = distributed_c10d._get_default_store()  # torch offers no public way to it
    if store is None:
        raise RuntimeError("sync needs a store, which the mpi backend has none of; use gloo or nccl")
    return store


def _late_text(ranks: tuple[int, ...], timeout_s: float) -> str:
    names = ", ".join(map(str, ranks))
    return (
        f"sync gave up after {timeout_s:g} s: rank {names} had not called it by then. Every rank of the "
        "group must; look whether that rank failed, or is slower than timeout_s allows"
    )


def _identity() -> dict[str, Any]:
    """Return what must be equal on all ranks, for each kind of device that this process computes on."""
    found: dict[str, Any] = {"cpu": {**environment.of("cpu").as_dict(), "threads": torch.get_num_threads()}}
    if _own_gpu():
        found["cuda"] = environment.of(_own_gpu()).as_dict()
    return found


def _own_gpu() -> str:
    """Return this rank's GPU; nothing while it has not begun to use one: asking would make a context."""
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return f"cuda:{torch.cuda.current_device()}" if in_use else ""


def _compare(identities: list[dict[str, Any]]) -> dict[str, Any]:
    first, *others = identities
    for rank, other in enumerate(others, start=1):
        for kind in first.keys() & other.keys():
            unlike = [name for name in first[kind] if other[kind].get(name) != first[kind][name]]
            if unlike:
                return {"unlike": _unlike_text(rank, unlike[0], other[kind], first[kind])}
    return _known()


def _unlike_text(rank: int, name: str, other: Mapping[str, object], first: Mapping[str, object]) -> str:
    return (
        f"sync refused: {name} is {other.get(name)!r} on rank {rank} and {first[name]!r} on rank 0, so rank "
        "0's decisions are not for that rank. Start all ranks with the same versions, kind of machine and "
        "OMP_NUM_THREADS, or set the same AUTOINV_STRATEGY on each"
    )


def _known() -> dict[str, Any]:
    """Return what this rank knows of the devices that it computes on, in the form of the files."""
    entries = {d.problem.key: d.entry() for device in ("cpu", _own_gpu()) if device for d in _decided(device)}
    pinned = pins.opened_pins(settings.cache_dir()).all()
    mine = ("cpu", _own_gpu())
    return {
        "decisions": entries,
        "pins": {key: name for key, name in pinned.items() if key.rpartition("/")[2] in mine},
    }


def _decided(device: str) -> list[Decision]:
    file = decisions.opened(settings.cache_dir(), environment.of(device))
    return [decision for decision in file.all() if decision.problem.device == device]


def _adopt(result: Mapping[str, Any]) -> int:
    agreed = [from_entry(key, entry) for key, entry in result["decisions"].items()]
    agreement.adopt(agreed, result["pins"])
    forget_plans()
    logger.info("%d decisions of rank 0 hold from now on", len(agreed))
    return len(agreed)
