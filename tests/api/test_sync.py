"""Ranks that choose the same strategies, by torch's own process groups and stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from file_makers import decision, problem

import autoinv
from autoinv.api import distributed
from autoinv.api._meeting import Meeting
from autoinv.planning import agreement
from autoinv.problem import Problem

dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)


@pytest.fixture(autouse=True)
def _no_agreement():
    yield
    agreement.adopt((), {})


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> list[dict]:
    """What two processes with cache dirs and timers of their own print after all that sync_rank.py does."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("sync_rank.py")
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "AUTOINV_BUDGET": "20"}
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), "2", str(folder / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread, "AUTOINV_CACHE_DIR": str(folder / f"cache{rank}")},
        )
        for rank in range(2)
    ]
    try:
        printed = [rank.communicate(timeout=120) for rank in processes]
    finally:
        for rank in processes:
            rank.kill()
    assert [rank.returncode for rank in processes] == [0, 0], printed
    return [json.loads(out) for out, _ in printed]


def test_two_ranks_with_noisy_timers_choose_the_same_after_sync(two_ranks):
    first, second = (rank["agreed"] for rank in two_ranks)
    assert first["before"] != second["before"], "the timers differ too little to prove anything"
    assert first["after"] == second["after"] == first["before"]
    assert first["again"] == second["again"] == first["before"]
    assert first["count"] == second["count"] == 5  # the sixth is pinned, the seventh is a neighbour
    assert (first["source"], second["source"]) == ("sync", "sync")


def test_rank_0s_pins_hold_on_every_rank_and_a_later_pin_overrides_them(two_ranks):
    first, second = (rank["agreed"] for rank in two_ranks)
    assert (first["after"]["100x4x4"], second["after"]["100x4x4"]) == ("loop", "loop")
    assert (first["pinned"], second["pinned"]) == ("vmap", "vmap")
    assert (first["repinned"], second["repinned"]) == ("vmap", "vmap")


def test_a_missing_rank_is_a_timeout_that_names_it_and_the_next_sync_works(two_ranks):
    first, second = (rank["missed"] for rank in two_ranks)
    assert first["message"].startswith("sync gave up after 0.5 s: rank 1 had not called it by then.")
    assert second["message"] == first["message"]
    assert 0.5 <= first["waited_s"] < 20
    assert (first["then"], second["then"]) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "name", "value"), [("cpu", "threads", 64), ("cpu", "torch", "1.0"), ("cuda", "gpu", "another")]
)
def test_ranks_that_differ_are_refused_with_what_differs(kind, name, value):
    own = {"cpu": {"torch": "2.6", "threads": 2}, "cuda": {"gpu": "one"}}
    other = {**own, kind: {**own[kind], name: value}}
    result = distributed._compare([own, own, other])
    message = f"sync refused: {name} is {value!r} on rank 2 and {own[kind][name]!r} on rank 0,"
    assert result["unlike"].startswith(message)


def test_a_rank_without_a_gpu_agrees_with_one_that_has_a_gpu():
    own = {"cpu": {"torch": "2.6", "threads": 2}}
    assert "unlike" not in distributed._compare([own, {**own, "cuda": {"gpu": "one"}}])


def test_a_refusal_is_raised_and_nothing_is_adopted(alone, monkeypatch):
    monkeypatch.setattr(distributed, "_compare", lambda values: {"unlike": "sync refused: they differ"})
    agreement.adopt([decision(80)], {})
    with pytest.raises(RuntimeError, match="sync refused: they differ"):
        autoinv.sync()
    assert agreement.decision_of(problem(80)) is not None


def test_sync_without_a_process_group_names_the_call_that_is_missing():
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group first"):
        autoinv.sync()


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_an_invalid_timeout_is_refused(timeout_s):
    with pytest.raises(ValueError, match="timeout_s is a positive number of seconds"):
        autoinv.sync(timeout_s=timeout_s)


@pytest.fixture
def alone(tmp_path):
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_rank_alone_agrees_with_itself(alone):
    autoinv.pin((5, 3, 3), "bmm")
    assert autoinv.sync() == 0
    assert autoinv.explain(torch.empty(5, 3, 3)).why == "pinned by rank 0's pins"


def test_a_store_that_is_gone_is_a_clear_error(alone, monkeypatch):
    def gone(*rest: object) -> None:
        raise dist.DistNetworkError("connection reset by peer")

    monkeypatch.setattr(Meeting, "hold", gone)
    with pytest.raises(RuntimeError, match="lost touch with the process group's store; did rank 0 end"):
        autoinv.sync()


def on(device: str, batch: int = 80) -> Problem:
    return replace(problem(batch), device=device)


def test_a_decision_for_rank_0s_gpu_holds_on_every_rank_s_gpu():
    agreement.adopt([replace(decision(), problem=on("cuda:0"))], {"inv/5x3x3/float64/cuda:0": "bmm"})
    assert agreement.decision_of(on("cuda:3")).strategy == "closed_form"
    assert agreement.pin_of(replace(on("cuda:1"), shapes=((5, 3, 3),))) == "bmm"
    assert agreement.decision_of(on("cpu")) is None
    assert [d.problem.device for d in agreement.neighbours_of(on("cuda:1", 81), (2,))] == ["cuda:0"]


def test_a_dropped_agreement_no_longer_holds():
    agreement.adopt([decision(80), decision(81)], {"inv/80x3x3/float64/cpu": "bmm"})
    agreement.drop_like(problem(80, threads=7))
    assert agreement.pin_of(problem(80)) is None
    assert agreement.decision_of(problem(80)) is None
    assert agreement.decision_of(problem(81)) is not None


def test_forget_drops_the_agreement():
    agreement.adopt([decision(80)], {})
    autoinv.forget("80x3x3")
    assert agreement.decision_of(problem(80)) is None


def test_an_agreed_strategy_that_does_not_support_the_problem_is_not_used():
    own = problem(80, n=5, threads=torch.get_num_threads())
    agreement.adopt([decision(problem=own)], {})
    assert autoinv.explain(torch.empty(80, 5, 5, dtype=torch.float64)).source == "default"
