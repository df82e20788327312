"""The rules of choice: the best, unless it is multithreaded or hardly better than the reference."""

from __future__ import annotations

import random

from fakes import rounds_of

from autoinv.tuning.choice import choose, clearly_faster, holds, rule

ALL = frozenset({"batched", "native", "flat", "bmm"})


def test_the_fastest_is_chosen_and_every_time_is_kept():
    chosen, seconds = choose(rounds_of({"batched": 9e-6, "native": 1e-6, "bmm": 3e-6}), "batched", ALL)
    assert (chosen, seconds) == ("native", {"batched": 9e-6, "native": 1e-6, "bmm": 3e-6})


def test_the_reference_keeps_its_place_against_one_that_is_less_than_five_percent_faster():
    assert choose(rounds_of({"batched": 1.0, "native": 0.96}), "batched", ALL)[0] == "batched"
    assert choose(rounds_of({"batched": 1.0, "native": 0.94}), "batched", ALL)[0] == "native"


def test_the_reference_keeps_its_place_unless_beaten_in_every_third_of_the_rounds():
    rounds = {"batched": [1.0] * 9, "native": [0.5] * 6 + [1.2] * 3}
    assert choose(rounds, "batched", ALL)[0] == "batched"


def test_of_two_identical_candidates_the_reference_is_chosen_twenty_times_of_twenty():
    noise = random.Random(1)
    for _ in range(20):
        rounds = {name: [1 + 0.2 * noise.random() for _ in range(24)] for name in ("batched", "flat")}
        assert choose(rounds, "batched", ALL)[0] == "batched"


def test_a_single_threaded_strategy_is_preferred_within_one_and_a_half_times_of_the_best():
    rounds = rounds_of({"batched": 1e-3, "native": 1.4e-3, "bmm": 1.45e-3})
    assert choose(rounds, "batched", frozenset({"native", "bmm"}))[0] == "native"


def test_a_single_threaded_strategy_further_behind_is_not_preferred():
    rounds = rounds_of({"batched": 1.0, "native": 1.6})
    assert choose(rounds, "batched", frozenset({"native"}))[0] == "batched"


def test_a_multithreaded_reference_does_not_keep_its_place_against_a_single_threaded_equal():
    rounds = rounds_of({"batched": 1.0, "native": 1.0})
    assert choose(rounds, "batched", frozenset({"native"}))[0] == "native"


def test_the_mean_of_a_multithreaded_strategy_counts_but_for_its_worst_round_in_eight():
    rounds = {"batched": [2.0] * 9, "flat": [1.0, 1.0, 19.0] * 3}
    assert choose(rounds, "batched", frozenset())[0] == "batched"
    rounds = {"batched": [2.0] * 9, "flat": [1.0] * 8 + [19.0]}
    assert choose(rounds, "batched", frozenset())[1]["flat"] == 1.0


def test_one_descheduling_does_not_count_against_a_single_threaded_strategy():
    rounds = {"batched": [13e-6] * 9, "native": [2e-6] * 8 + [8e-3]}
    chosen, seconds = choose(rounds, "batched", ALL)
    assert (chosen, seconds["native"]) == ("native", 2e-6)


def test_a_single_threaded_strategy_is_not_preferred_where_it_loses_more_than_a_schedulers_slice():
    alone = frozenset({"native"})
    near = rounds_of({"batched": 9e-2, "native": 1.1e-3, "native_parallel": 1e-3})
    assert choose(near, "batched", alone)[0] == "native"
    assert choose(near, "batched", alone, growth=30.0)[0] == "native_parallel"


def test_the_rule_that_chose_is_told_by_the_seconds():
    alone = frozenset({"native", "bmm"})
    assert rule("native", {"native": 1.0, "batched": 2.0}, "batched", alone) == "the fastest"
    assert rule("native", {"native": 1.2, "batched": 1.0}, "batched", alone).startswith(
        "within 1.5 times of batched"
    )
    assert rule("batched", {"batched": 1.0, "flat": 0.98}, "batched", alone).startswith(
        "PyTorch's own call stays"
    )
    assert rule("bmm", {"bmm": 1.02, "native": 1.0}, "batched", alone).startswith("an earlier choice")
    assert rule("native", {"native": 1.0, "flat": 0.5}, "native", alone).startswith(
        "PyTorch's own call stays"
    )
    assert rule("native", {}, "batched", alone) is None


def test_a_lead_in_a_single_round_is_decided_by_that_round():
    assert clearly_faster([1.0], [1.06])
    assert not clearly_faster([1.0], [1.04])


def test_an_earlier_choice_stands_unless_clearly_beaten_or_the_challenger_alone_is_single_threaded():
    assert holds("bmm", "native", {"bmm": 1.04, "native": 1.0}, ALL)
    assert not holds("bmm", "native", {"bmm": 1.06, "native": 1.0}, ALL)
    assert not holds("bmm", "native", {"native": 1.0}, ALL)
    assert not holds("batched", "native", {"batched": 1.0, "native": 1.0}, frozenset({"native"}))
