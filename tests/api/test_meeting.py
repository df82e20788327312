"""Ranks that meet at a store, ranks being threads of this process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from autoinv.api import _meeting
from autoinv.api._meeting import LateError, Meeting

dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


def meet(
    count: int, reduce=sum, *, absent: tuple[int, ...] = (), timeout_s: float = 10.0, store=None
) -> list:
    """What each rank gets, ranks being threads: the result, or the error."""
    store = store or dist.HashStore()

    def one(rank: int):
        try:
            return Meeting(store, "test", tuple(range(10, 10 + count)), rank).hold(rank, reduce, timeout_s)
        except LateError as error:
            return error.ranks

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, [rank for rank in range(count) if rank not in absent]))


def test_all_ranks_get_the_result_that_rank_0_reduced():
    assert meet(5) == [10] * 5


def test_ranks_meet_again_and_the_store_does_not_grow():
    store = dist.HashStore()
    sizes = [store.num_keys() for _ in range(6) if meet(3, store=store)]
    assert len(set(sizes[1:])) == 1


def test_a_result_of_many_chunks_arrives_whole(monkeypatch):
    monkeypatch.setattr(_meeting, "_CHUNK_CHARACTERS", 7)
    result = {"decisions": {str(i): [i, "é"] for i in range(50)}}
    assert meet(3, lambda values: result) == [result] * 3


def test_every_rank_that_came_learns_which_ranks_were_late():
    assert meet(4, absent=(1, 3), timeout_s=0.2) == [(11, 13), (11, 13)]


def test_a_missing_rank_0_is_a_timeout_too(monkeypatch):
    monkeypatch.setattr(_meeting, "_GRACE_S", 0.1)
    assert meet(3, absent=(0,), timeout_s=0.2) == [(10,), (10,)]


def test_groups_do_not_read_each_others_messages():
    store = dist.HashStore()
    results: dict[tuple[int, ...], object] = {}

    def group(members: tuple[int, ...]) -> None:
        for rank in reversed(range(len(members))):
            place = Meeting(store, "test", members, rank)
            if rank:
                threading.Thread(target=place.hold, args=(members[rank], sum, 10.0)).start()
            else:
                results[members] = place.hold(members[0], sum, 10.0)

    for members in ((0, 1), (2, 3)):
        group(members)
    assert results == {(0, 1): 1, (2, 3): 5}
