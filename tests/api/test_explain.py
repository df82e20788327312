"""What explain returns, as fields and as text, and that it is what really runs."""

from __future__ import annotations

import warnings

import pytest
import torch

import autoinv
from autoinv import errors
from autoinv.api.explaining import Explanation, format_seconds
from autoinv.errors import AutoinvWarning
from autoinv.ops.inv import CALL
from autoinv.problem import Problem
from autoinv.store.decisions import from_entry


def test_explain_shows_the_chosen_strategy_the_times_and_the_reasons():
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
def test_explain_says_where_pytorch_answers_itself(A):
    assert (autoinv.explain(A).source, autoinv.explain(A).strategy) == ("reference", "batched")
    assert "PyTorch's own call" in str(autoinv.explain(A))


class Tagged(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["subclass", "nested", "jagged", "many dims"])
def test_explain_leaves_to_pytorch_what_inv_leaves_to_it(kind):
    autoinv.pin((2, 3, 3), "loop")
    eyes = [torch.eye(3), torch.eye(3)]
    A = {
        "subclass": lambda: torch.stack(eyes).as_subclass(Tagged),
        "nested": lambda: torch.nested.nested_tensor(eyes),
        "jagged": lambda: torch.nested.nested_tensor(eyes, layout=torch.jagged),
        "many dims": lambda: torch.eye(3).reshape([1] * 63 + [3, 3]),
    }[kind]()
    assert (autoinv.explain(A).source, autoinv.explain(A).strategy) == ("reference", "batched")
    assert "PyTorch's own call" in autoinv.explain(A).why


def test_more_dims_than_pytorch_computes_on_are_left_to_it_without_a_warning():
    A = torch.eye(3).reshape([1] * 63 + [3, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(autoinv.inv(A), torch.linalg.inv(A))
    assert errors.last_warning() is None


def test_explain_treats_a_parameter_as_its_tensor():
    autoinv.pin((2, 3, 3), "loop")
    assert autoinv.explain(torch.nn.Parameter(torch.zeros(2, 3, 3))).strategy == "loop"


@pytest.mark.parametrize("operands", [(), ([[1.0]],), (None,), (torch.eye(2), torch.eye(2))])
def test_explain_takes_the_tensor_that_inv_takes(operands):
    with pytest.raises(TypeError, match="explain takes the one tensor that inv takes"):
        autoinv.explain(*operands)


def raising(A, out=None):
    raise RuntimeError("no such kernel")


def test_explain_says_that_pytorch_answers_a_shape_after_its_strategy_raised(monkeypatch):
    A = torch.eye(3).repeat(5, 1, 1)
    autoinv.pin((5, 3, 3), "loop")
    loop = type(CALL.dispatcher.operation.strategy("loop"))
    monkeypatch.setattr(loop, "bind", lambda self, problem: raising)
    assert autoinv.explain(A).strategy == "loop"
    with pytest.warns(AutoinvWarning, match="loop of inv raised RuntimeError.*no such kernel"):
        autoinv.inv(A)
    explanation = autoinv.explain(A)
    assert (explanation.strategy, explanation.source) == ("batched", "reference")
    assert "a strategy raised" in explanation.why
    autoinv.forget((5, 3, 3))
    assert autoinv.explain(A).strategy == "loop"


def test_explain_of_an_expanded_batch_is_about_the_distinct_matrices():
    A = torch.eye(3).expand(1000, 3, 3)
    autoinv.pin((1, 3, 3), "loop")
    explanation = autoinv.explain(A)
    assert (explanation.problem.shape, explanation.strategy) == ((1, 3, 3), "loop")
    assert any("expanded from 1x3x3" in note for note in explanation.notes)


def test_a_pin_of_the_whole_expanded_shape_holds(monkeypatch):
    seen = []
    loop = type(CALL.dispatcher.operation.strategy("loop"))
    bind = loop.bind
    monkeypatch.setattr(
        loop, "bind", lambda self, problem: (seen.append(problem.shape), bind(self, problem))[1]
    )
    A = torch.eye(3).expand(50, 3, 3)
    autoinv.pin((50, 3, 3), "loop")
    assert torch.equal(autoinv.inv(A), A)
    assert seen == [(50, 3, 3)]
    explanation = autoinv.explain(A)
    assert (explanation.problem.shape, explanation.source) == ((50, 3, 3), "pin")
    autoinv.unpin((50, 3, 3))
    assert autoinv.explain(A).problem.shape == (1, 3, 3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.3e-6, "2.3 us"), (1.5, "1.5 s"), (3.999e-3, "4 ms"), (1.2345e-7, "123 ns"), (0.0, "0 ns")],
)
def test_times_are_written_in_a_fitting_unit(seconds, text):
    assert format_seconds(seconds) == text


def test_an_explanation_without_times_is_one_line():
    assert str(Explanation(None, "batched", "reference", "why", "batched")) == "this input: batched (why)"


def test_a_time_of_zero_is_shown_without_a_ratio_and_not_loaded():
    text = str(Explanation(None, "native", "file", "why", "batched", {"native": 0.0, "batched": 1e-6}))
    assert "native         0 ns  <- chosen" in text
    decision = autoinv.warm((6, 3, 3), budget=1.0)[0]
    entry = {**decision.entry(), "seconds": {"native": 0}}
    with pytest.raises(ValueError, match="the time of native is no number of seconds"):
        from_entry(decision.problem.key, entry)


def test_a_strategy_setting_counts_for_more_than_the_pin_of_an_expanded_batch():
    A = torch.eye(3).expand(5, 3, 3)
    autoinv.pin((5, 3, 3), "loop")
    assert autoinv.explain(A).problem.shape == (5, 3, 3)
    with autoinv.using(strategy="closed_form"):
        explained = autoinv.explain(A)
    assert (explained.strategy, explained.problem.shape) == ("closed_form", (1, 3, 3))


def store_decision(**changes):
    entry = {"strategy": "closed_form", "complete": True, "contended": False, "seconds": {"closed_form": 1e-5},
             "rejected": {}, "rounds": 9, "tunings": 1, "created": "2026-11-30T10:00:00Z"}  # fmt: skip
    key = f"inv/80x3x3/float64/cpu/threads={torch.get_num_threads()}/contiguous"
    CALL.dispatcher.planner.file(Problem.parse(key)).put(from_entry(key, {**entry, **changes}), 5.0)


def test_a_neighbours_times_and_rejections_are_marked_as_its_own():
    store_decision(rejected={"loop": "screened out"})
    explanation = autoinv.explain(torch.zeros(90, 3, 3, dtype=torch.float64))
    assert explanation.source == "neighbour" and explanation.timed.shapes == ((80, 3, 3),)
    lines = {line.split()[0]: line for line in str(explanation).splitlines()}
    assert [name for name, line in lines.items() if "(timed on 80x3x3)" in line] == ["closed_form", "loop"]
    assert "(timed on" not in str(autoinv.explain(torch.zeros(80, 3, 3, dtype=torch.float64)))


def test_where_nothing_is_known_explain_says_for_which_dtypes_and_threads_something_is():
    store_decision()
    assert "known for this shape: float64 with" in str(autoinv.explain(torch.zeros(80, 3, 3)))


def test_why_a_strategy_does_not_support_the_problem_is_said():
    rejected = autoinv.explain(torch.zeros(7, 70, 70)).rejected
    assert "flat" in rejected
    assert [name for name, text in rejected.items() if ": it takes " not in text] == []
    assert rejected["closed_form"] == "does not support this problem: it takes matrices up to 4 x 4"


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"contended": True}, "timed while the processor was busy; a later process tunes it again"),
        ({"complete": False}, "the budget ran out before all was timed; a later process tunes it again"),
        ({"contended": True, "tunings": 3}, "after 3 tunings it stays"),
    ],
)
def test_whether_a_later_process_tunes_it_again_is_said_as_it_is(monkeypatch, changes, note):
    store_decision(**changes)
    A = torch.zeros(80, 3, 3, dtype=torch.float64)
    assert note in str(autoinv.explain(A))
    if "again" in note:
        monkeypatch.setattr("autoinv.store.decisions.DecisionsFile.can_be_saved", lambda _: False)
        assert "it stays, as the file cannot be saved" in str(autoinv.explain(A))
