"""The public functions about decisions, and the examples in every public docstring."""

from __future__ import annotations

import doctest
import inspect
import json

import pytest
import torch

import autoinv
from autoinv.problem import format_shape
from autoinv.report import Explanation, format_seconds

PUBLIC = [name for name in autoinv.__all__ if not name.startswith("__")]


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
def test_every_public_function_says_what_it_raises_or_is_a_plain_switch(name):
    text = inspect.getdoc(getattr(autoinv, name))
    assert text
    assert "Raises:" in text or name in {"on_decision", "patched"}


def test_warm_tunes_each_shape_and_knows_it_afterwards():
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
    ],
)
def test_warm_refuses_what_cannot_be_in_one_sentence(shape, options, text):
    with pytest.raises(ValueError, match=text):
        autoinv.warm(shape, **options)


def test_warm_refuses_to_time_where_the_mode_forbids_it():
    with autoinv.using(mode="cached"), pytest.raises(RuntimeError, match="mode='tune'"):
        autoinv.warm((3, 3))


def test_explain_says_the_chosen_one_the_times_and_the_reasons():
    autoinv.warm((6, 3, 3), budget=1.0)
    explanation = autoinv.explain(torch.zeros(6, 3, 3))
    text = str(explanation)
    assert text.splitlines()[0].startswith("inv of 6x3x3 float32 on cpu")
    assert f"{explanation.strategy} (tuned in this process)" in text.splitlines()[0]
    assert set(explanation.seconds) | set(explanation.rejected) >= {"batched", "native", "loop"}
    for name in (*explanation.seconds, *explanation.rejected):
        assert name in text
    chosen = next(line for line in text.splitlines() if "<- chosen" in line)
    assert chosen.split()[0] == explanation.strategy


@pytest.mark.parametrize(
    "A", [torch.zeros(2, 3, 3, dtype=torch.int64), torch.zeros(3, 4), torch.zeros(0, 3, 3)]
)
def test_explain_of_what_pytorch_answers_itself_says_so(A):
    assert (autoinv.explain(A).source, autoinv.explain(A).strategy) == ("reference", "batched")
    assert "PyTorch's own call" in str(autoinv.explain(A))


def test_forget_forgets_what_it_is_told_to_and_nothing_else(private_cache_dir):
    autoinv.warm((6, 3, 3), (9, 3, 3), dtype="float32", budget=1.0)
    autoinv.warm((6, 3, 3), dtype="float64", budget=1.0)
    assert autoinv.forget((6, 3, 3), dtype=torch.float64) == 1
    assert autoinv.forget("6x3x3") == 1
    assert autoinv.forget(op="inv", device="cuda") == 0
    (file,) = private_cache_dir.glob("decisions-v1-*.json")
    assert [key.split("/")[1] for key in json.loads(file.read_text())["decisions"]] == ["9x3x3"]
    assert autoinv.forget() == 1
    assert autoinv.explain(torch.zeros(9, 3, 3)).source == "reference"


def test_a_pin_names_a_strategy_that_there_is_and_that_supports_the_shape():
    with pytest.raises(ValueError, match="no strategy 'quick'"):
        autoinv.pin((4, 3, 3), "quick")
    with pytest.raises(ValueError, match="closed_form does not support"):
        autoinv.pin((4, 9, 9), "closed_form")


def test_a_pin_holds_in_the_next_process(private_cache_dir):
    autoinv.pin((4, 3, 3), "loop")
    stored = json.loads((private_cache_dir / "pins-v1.json").read_text())
    assert stored["pins"]["inv/4x3x3/float32/cpu"]["strategy"] == "loop"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.3e-6, "2.3 us"), (1.5, "1.5 s"), (3.999e-3, "4 ms"), (1.2345e-7, "123 ns"), (0.0, "0 ns")],
)
def test_times_are_written_with_the_unit_that_suits_them(seconds, text):
    assert format_seconds(seconds) == text


def test_an_explanation_without_times_is_one_line():
    assert str(Explanation(None, "batched", "reference", "why", "batched")) == "this input: batched (why)"
