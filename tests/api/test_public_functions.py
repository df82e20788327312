"""The public functions about decisions, and the examples in every public docstring."""

from __future__ import annotations

import doctest
import inspect
import json
import math
import threading

import pytest
import torch

import autoinv
from autoinv.api import problem_of
from autoinv.errors import AutoinvWarning
from autoinv.ops.inv import CALL
from autoinv.planning import planner
from autoinv.problem import DTYPES, format_shape

PUBLIC = [name for name in autoinv.__all__ if inspect.isfunction(getattr(autoinv, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_has_an_example_that_runs(name):
    function = getattr(autoinv, name)
    found = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert [test for test in found if test.examples], f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in found:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_documents_what_it_raises(name):
    text = inspect.getdoc(getattr(autoinv, name))
    assert text
    assert "Raises:" in text or name in {"on_decision", "patched"}


def test_warm_tunes_each_shape_and_remembers_it():
    decisions = autoinv.warm((7, 3, 3), "4x5x2x2", dtype="float64", budget=1.0)
    assert [format_shape(d.problem.shape) for d in decisions] == ["7x3x3", "4x5x2x2"]
    for decision in decisions:
        names = set(decision.seconds) | set(decision.rejected)
        assert names == {
            "batched",
            "native",
            "native_parallel",
            "closed_form",
            "einsum",
            "bmm",
            "flat",
            "vmap",
            "loop",
        }
        assert decision.strategy in decision.seconds
    assert autoinv.explain(torch.zeros(7, 3, 3, dtype=torch.float64)).source == "tuned"


@pytest.mark.parametrize(
    ("shape", "options", "text"),
    [
        ((3, 4), {}, "square"),
        ((3,), {}, "square"),
        ("3x", {}, "such as 10x8x3x3"),
        ((0, 3, 3), {}, "square"),
        ((3, 3), {"dtype": torch.float16}, "float16"),
        ((3, 3), {"dtype": "int64"}, "int64"),
        ((3, 3), {"device": "abacus"}, "abacus"),
        ((3, 3), {"device": "meta"}, "not available"),
        ((3, 3), {"op": "divide"}, "divide"),
        ((3, 3), {"device": None}, "None"),
        ((3, 3), {"budget": -1}, "budget"),
        ((3, 3), {"budget": math.nan}, "budget"),
        ((1,) * 63 + (3, 3), {}, "64 dims"),
    ],
)
def test_warm_refuses_an_impossible_problem_in_one_sentence(shape, options, text):
    with pytest.raises(ValueError, match=text):
        autoinv.warm(shape, **options)


@pytest.mark.parametrize("shapes", [(10, 8, 3, 3), ((2.5, 3, 3),), (None,), (torch.eye(3),)])
@pytest.mark.parametrize("function", ["warm", "forget"])
def test_a_shape_is_a_tuple_of_whole_numbers_or_a_text(function, shapes):
    with pytest.raises(TypeError, match=r"a shape is a tuple of whole numbers, \(10, 8, 3, 3\)"):
        if function == "warm":
            autoinv.warm(*shapes)
        else:
            autoinv.forget(shapes[0] if shapes[0] is not None else 3)


def test_warm_warns_which_shapes_it_could_not_tune_and_why():
    held, release = threading.Event(), threading.Event()
    thread = threading.Thread(target=planner._tuning.run, args=(lambda: held.set() or release.wait(10),))
    thread.start()
    held.wait(10)
    try:
        with pytest.warns(AutoinvWarning, match="12x3x3.*13x3x3.*another thread is tuning") as warned:
            assert autoinv.warm((12, 3, 3), (13, 3, 3), budget=0.01) == []
        with pytest.warns(AutoinvWarning, match="14x3x3"):
            assert autoinv.warm((14, 3, 3), budget=0.01) == []
    finally:
        release.set()
        thread.join()
    assert len(warned) == 1
    with pytest.warns(AutoinvWarning, match="15x3x3.*no time of the budget was left"):
        assert autoinv.warm((15, 3, 3), budget=0) == []


def test_the_cpu_may_be_written_with_an_index():
    assert torch.zeros(1, device="cpu:0").device == torch.device("cpu")
    assert problem_of((4, 3, 3), device="cpu:0") == problem_of((4, 3, 3), device=torch.device("cpu"))
    assert [d.problem.device for d in autoinv.warm((4, 3, 3), device="cpu:0", budget=1.0)] == ["cpu"]
    assert autoinv.forget((4, 3, 3), device="cpu:0") == 1
    autoinv.pin((4, 3, 3), "loop", device="cpu:0")
    assert autoinv.explain(torch.zeros(4, 3, 3)).source == "pin"
    assert autoinv.unpin((4, 3, 3), device=torch.device("cpu", 0))


def test_warm_refuses_to_time_where_the_mode_forbids_it():
    with autoinv.using(mode="cached"), pytest.raises(RuntimeError, match="mode='tune'"):
        autoinv.warm((3, 3))


def test_forgetting_one_shape_keeps_the_decisions_of_the_others():
    autoinv.warm((6, 3, 3), (90, 3, 3), budget=1.0)
    autoinv.forget((6, 3, 3))
    assert autoinv.explain(torch.zeros(6, 3, 3)).source == "default"
    assert autoinv.explain(torch.zeros(90, 3, 3)).source == "tuned"
    assert sum(CALL.dispatcher.planner._tunings.values()) == 1


@pytest.mark.parametrize("options", [{"device": "abacus"}, {"dtype": "float99"}, {"dtype": torch.int8}])
def test_forget_refuses_an_unknown_device_or_dtype_in_one_sentence(options):
    (value,) = options.values()
    with pytest.raises(ValueError, match=str(value).removeprefix("torch.")):
        autoinv.forget(**options)


def test_forget_removes_the_named_decisions_alone(private_cache_dir):
    autoinv.warm((6, 3, 3), (9, 3, 3), dtype="float32", budget=1.0)
    autoinv.warm((6, 3, 3), dtype="float64", budget=1.0)
    assert autoinv.forget((6, 3, 3), dtype=torch.float64) == 1
    assert autoinv.forget("6x3x3") == 1
    assert autoinv.forget(op="inv", device="cuda") == 0
    (file,) = private_cache_dir.glob("decisions-v1-*.json")
    assert [key.split("/")[1] for key in json.loads(file.read_text())["decisions"]] == ["9x3x3"]
    assert autoinv.forget() == 1
    assert autoinv.explain(torch.zeros(9, 3, 3)).source == "default"


def test_a_pin_needs_an_existing_strategy_that_supports_the_shape():
    with pytest.raises(ValueError, match="no strategy 'quick'"):
        autoinv.pin((4, 3, 3), "quick")
    with pytest.raises(ValueError, match="closed_form does not support"):
        autoinv.pin((4, 9, 9), "closed_form")


def test_a_pin_holds_in_the_next_process(private_cache_dir):
    autoinv.pin((4, 3, 3), "loop")
    stored = json.loads((private_cache_dir / "pins-v1.json").read_text())
    assert stored["pins"]["inv/4x3x3/float32/cpu"]["strategy"] == "loop"


def test_a_pin_without_dtype_holds_for_every_dtype_that_the_strategy_supports():
    autoinv.pin((80, 3, 3), "native")
    sources = {d: autoinv.explain(torch.zeros(80, 3, 3, dtype=d)).source for d in DTYPES.values()}
    assert [d for d, source in sources.items() if source == "pin"] == [torch.float32, torch.float64]
    assert autoinv.unpin((80, 3, 3), dtype=torch.float64)
    assert autoinv.explain(torch.zeros(80, 3, 3)).source == "pin"
    assert autoinv.unpin((80, 3, 3))
    assert not autoinv.unpin((80, 3, 3))
    assert autoinv.explain(torch.zeros(80, 3, 3)).source != "pin"
