"""`autoinv.inv` and its file together: whatever the file holds, the answer is right."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import start_afresh
from file_makers import ANOTHER_UID, folder_for_all, in_child
from test_decisions_content import CORPUS

import autoinv
from autoinv import environment, settings
from autoinv.environment import Environment
from autoinv.ops.table import OPERATIONS
from autoinv.problem import DTYPES, Problem
from autoinv.store import decisions, disk, exchange, pins
from autoinv.store.decisions import Decision, DecisionsFile
from autoinv.tuning import timing

NAMES = [strategy.name for strategy in OPERATIONS["inv"].operation.table]
SHAPES = [(3, 3), (80, 1, 1), (80, 2, 2), (10, 8, 3, 3), (7, 4, 4), (9, 5, 5), (6, 16, 16), (3, 65, 65)]
# A forked child uses one thread, as DataLoader's workers do: OpenMP hangs in one that would use more.
CREATED = "2026-11-30T10:00:00Z"


@pytest.fixture(autouse=True)
def new_process(private_cache_dir: Path) -> Iterator[None]:
    """Start and end with no file opened."""
    as_new_process()
    yield
    as_new_process()


def as_new_process() -> None:
    decisions._opened.clear()
    pins._opened.clear()
    start_afresh()


def here() -> DecisionsFile:
    return decisions.opened(settings.cache_dir(), environment.of("cpu"))


def by_hand(problem: Problem, strategy: str, **changes: object) -> Decision:
    parts: dict[str, object] = {"complete": True, "contended": False, "rounds": 24, "tunings": 1}
    parts |= {"problem": problem, "strategy": strategy, "seconds": {strategy: 1e-9}, "rejected": {}}
    return Decision(**{**parts, "created": CREATED, **changes})  # type: ignore[arg-type]


def operand(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float64, layout: str = "contiguous"
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    A = torch.randn(shape, dtype=dtype, generator=generator) + 3 * shape[-1] * torch.eye(shape[-1])
    if layout == "transposed":
        return A.mT.contiguous().mT
    return torch.stack([A, A], -1)[..., 0] if layout == "strided" else A


def is_right(A: torch.Tensor) -> bool:
    X, expected = autoinv.inv(A), torch.linalg.inv(A)
    return X.is_contiguous() and torch.allclose(X, expected, rtol=1e3 * torch.finfo(A.dtype).eps)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", [*NAMES, "from_the_future"])
def test_every_strategy_written_by_hand_under_every_problem_gives_right_answers(name, dtype, layout):
    tensors = [operand(shape, dtype, layout) for shape in SHAPES]
    here().put_all([by_hand(Problem.of("inv", A), name) for A in tensors], 1.0)
    as_new_process()
    with autoinv.using(mode="cached"):
        assert [is_right(A) for A in tensors] == [True] * len(tensors)


def test_a_remembered_strategy_that_supports_the_problem_is_used_and_another_is_not():
    A, large = operand((10, 8, 3, 3)), operand((3, 65, 65))
    here().put_all([by_hand(Problem.of("inv", x), "closed_form") for x in (A, large)], 1.0)
    as_new_process()
    with autoinv.using(mode="cached"):
        assert (autoinv.explain(A).strategy, autoinv.explain(A).source) == ("closed_form", "file")
        assert autoinv.explain(large).source == "default"


def test_a_strategy_that_raises_at_use_gives_way_to_the_reference_once_with_a_warning(monkeypatch):
    strategy = OPERATIONS["inv"].dispatcher.operation.strategy("closed_form")
    assert strategy is not None
    calls = []

    def raises(_problem: Problem) -> object:
        def run(_A: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            calls.append(out)
            raise RuntimeError("of the strategy")

        return run

    monkeypatch.setattr(strategy, "bind", raises, raising=False)
    A = operand((10, 8, 3, 3))
    here().put(by_hand(Problem.of("inv", A), "closed_form"), 1.0)
    as_new_process()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [is_right(A) for _ in range(3)] == [True] * 3
    assert len(calls) == 1
    assert ["RuntimeError" in str(warning.message) for warning in caught] == [True]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_with_any_file_of_the_corpus_the_answer_is_right_and_at_most_one_warning_is_given(path):
    place = here().path
    assert place is not None
    place.write_bytes(path.read_bytes())
    place.chmod(0o600)
    with warnings.catch_warnings(record=True) as caught, autoinv.using(budget=0.002):
        warnings.simplefilter("always")
        assert is_right(operand((80, 3, 3)))
        assert is_right(operand((81, 3, 3)))
    assert len(caught) <= 1


def no_tuning(*_args: object, **_options: object) -> None:
    raise AssertionError("something was timed")


def test_a_shipped_file_in_cached_mode_is_used_and_nothing_is_timed_or_written(monkeypatch):
    A, unseen = operand((10, 8, 3, 3)), operand((5, 5))
    here().put(by_hand(Problem.of("inv", A), "einsum"), 1.0)
    before = here().path.read_bytes()
    as_new_process()
    monkeypatch.setenv("AUTOINV_MODE", "cached")
    monkeypatch.setattr("autoinv.tuning.tuner.tune", no_tuning)
    assert is_right(A)
    assert is_right(unseen)
    assert (autoinv.explain(A).strategy, autoinv.explain(unseen).source) == ("einsum", "default")
    assert here().path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can warm as root")
def test_an_image_warmed_by_root_serves_an_ordinary_user_from_a_read_only_folder(monkeypatch):
    A = operand((10, 8, 3, 3))
    with folder_for_all() as folder:
        os.chown(folder, 0, 0)
        with autoinv.using(cache_dir=str(folder)):
            here().put(by_hand(replace(Problem.of("inv", A), threads=1), "einsum"), 1.0)
            pins.opened_pins(folder).set(Problem.of("inv", operand((4, 3, 3))), "loop", 1.0)
        for path in (folder, *folder.iterdir()):
            path.chmod(path.stat().st_mode | 0o555 if path.is_dir() else 0o444)
        as_new_process()

        def work() -> None:
            torch.set_num_threads(1)
            with (
                autoinv.using(cache_dir=str(folder), budget=1.0),
                warnings.catch_warnings(record=True) as caught,
            ):
                warnings.simplefilter("always")
                assert is_right(A)
                assert (autoinv.explain(A).strategy, autoinv.explain(A).source) == ("einsum", "file")
                assert autoinv.explain(operand((4, 3, 3))).source == "pin"
                assert caught == []
                assert is_right(operand((6, 6)))
                assert autoinv.explain(operand((6, 6))).source == "tuned"
                assert ["could not be saved" in str(warning.message) for warning in caught] == [True]

        in_child(work, ANOTHER_UID)


def test_on_another_processor_decisions_are_not_used_unless_imported_and_pins_hold(monkeypatch, tmp_path):
    A, pinned = operand((10, 8, 3, 3)), operand((4, 3, 3))
    here().put(by_hand(Problem.of("inv", A), "einsum"), 1.0)
    pins.opened_pins(settings.cache_dir()).set(Problem.of("inv", pinned), "loop", 1.0)
    exchange.export_to(tmp_path / "shipped.json", here(), pins.opened_pins(settings.cache_dir()))
    another = Environment(**{**environment.of("cpu").as_dict(), "cpu_model": "another"})  # type: ignore[arg-type]
    monkeypatch.setattr(environment, "of", lambda _device: another)
    as_new_process()
    with autoinv.using(mode="cached"):
        assert autoinv.explain(A).source == "default"
        assert autoinv.explain(pinned).source == "pin"
        with pytest.raises(exchange.ImportRefusedError, match="cpu_model"):
            exchange.import_from(tmp_path / "shipped.json", here(), pins.opened_pins(settings.cache_dir()))
        exchange.import_from(
            tmp_path / "shipped.json", here(), pins.opened_pins(settings.cache_dir()), any_environment=True
        )
        as_new_process()
        assert (autoinv.explain(A).strategy, autoinv.explain(A).source) == ("einsum", "file")


def test_16_threads_on_one_cold_problem_tune_once_and_the_others_are_answered_meanwhile(monkeypatch):
    import autoinv.tuning.tuner

    A = operand((10, 8, 3, 3))
    tune, tunings, answered = autoinv.tuning.tuner.tune, [], threading.Semaphore(0)

    def waits_for_the_others(*args: object, **options: object) -> object:
        tunings.append(threading.get_ident())
        for _ in range(15):
            assert answered.acquire(timeout=60.0), "another thread waited for the tuning"
        return tune(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(autoinv.tuning.tuner, "tune", waits_for_the_others)
    right: list[bool] = []

    def asks() -> None:
        right.append(torch.allclose(autoinv.inv(A), torch.linalg.inv(A)))
        answered.release()

    threads = [threading.Thread(target=asks) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 16
    assert len(tunings) == 1


def test_an_interrupt_in_the_middle_of_tuning_leaves_nothing_broken_and_the_next_call_works(monkeypatch):
    seconds = timing.Stopwatch.seconds
    for most in (0, 1, 5):
        A, calls = operand((10, 8, 3, 3)), iter(range(most))

        def interrupts(*args: object, left: Iterator[int] = calls) -> float:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return seconds(*args)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(timing.Stopwatch, "seconds", interrupts)
            with autoinv.using(budget=10.0), pytest.raises(KeyboardInterrupt):
                autoinv.inv(A)
        assert is_right(A)
        assert autoinv.explain(A).source == "tuned"
        assert here().forget(lambda _: True, 1.0) == 1
        start_afresh()


def test_an_interrupt_in_the_middle_of_saving_leaves_nothing_broken_and_the_next_save_takes_both(monkeypatch):
    def interrupts(*_args: object) -> None:
        raise KeyboardInterrupt

    A, B = operand((10, 8, 3, 3)), operand((3, 3))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "replace", interrupts)
        with pytest.raises(KeyboardInterrupt):
            autoinv.inv(A)
    assert is_right(A)
    assert is_right(B)
    as_new_process()
    assert [autoinv.explain(x).source for x in (A, B)] == ["file", "file"]


def test_a_child_forked_while_another_thread_tunes_tunes_for_itself(monkeypatch):
    import autoinv.tuning.tuner

    A, B = operand((10, 8, 3, 3)), operand((5, 4, 4))
    tune, tuning, forked = autoinv.tuning.tuner.tune, threading.Event(), threading.Event()

    def waits(*args: object, **options: object) -> object:
        tuning.set()
        forked.wait(60.0)
        return tune(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(autoinv.tuning.tuner, "tune", waits)
    thread = threading.Thread(target=lambda: autoinv.inv(A))
    thread.start()
    assert tuning.wait(60.0)
    monkeypatch.setattr(autoinv.tuning.tuner, "tune", tune)

    def work() -> None:
        torch.set_num_threads(1)
        assert is_right(B)
        assert autoinv.explain(B).source == "tuned"

    try:
        in_child(work)
    finally:
        forked.set()
        thread.join()
    as_new_process()
    stored = here().get(replace(Problem.of("inv", B), threads=1))
    assert stored is not None


class Inverses(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Inverts in the worker, and returns whether that was right."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> bool:
        return is_right(operand((4 + index, 3, 3)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_answer_after_their_parent_did(method):
    assert is_right(operand((4, 3, 3)))
    loader = torch.utils.data.DataLoader(
        Inverses(), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=100
    )
    assert [bool(right) for right in loader] == [True] * 6


def test_what_the_user_reads_in_the_file_is_what_runs():
    A = operand((10, 8, 3, 3))
    autoinv.inv(A)
    entry = json.loads(here().path.read_text())["decisions"][Problem.of("inv", A).key]
    assert entry["strategy"] == autoinv.explain(A).strategy
    assert set(entry["seconds"]) | set(entry["rejected"]) == set(NAMES)
