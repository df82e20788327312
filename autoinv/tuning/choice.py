"""Which of the timed candidates is chosen: three rules, and nothing else.

They look at measured seconds alone, and not at how busy the machine was: so they choose the same a little above and a
little below the share of the processor from which a tuning counts as contended.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence, Set

from autoinv.tuning.timing import thirds

MARGIN = 1.05
"""The reference keeps its place unless another is this many times as fast in every third of the rounds."""
MOST_ROUNDS_WON = 0.6
"""... and in more than this share of the single rounds: with both, of two equals that vary by 30 % one beats the
other in 1 of 700 tunings, and one that is a fifth faster in all (simulated)."""
SINGLE_THREADED_WITHIN = 1.5
"""A single-threaded strategy is preferred within this many times of the best time ..."""
SINGLE_THREADED_WITHIN_S = 2e-3
"""... and within so many seconds: a thread that waits for another one's turn loses about a scheduler's slice a call."""
STALLS_LEFT_OUT = 8
"""One round in so many is left out of the mean of a multithreaded strategy: the worst."""

Rounds = Mapping[str, Sequence[float]]


def choose(
    rounds: Rounds, reference: str, single_threaded: Set[str], growth: float = 1.0
) -> tuple[str, dict[str, float]]:
    """Return the chosen name and every candidate's seconds per call, as a hot loop would pay them.

    A multithreaded strategy is slow by its stalls, so their mean counts; a single-threaded one is slow only by the
    part of the processor that it gets, as all are, so its median counts: a few ms of rounds see one descheduling or
    none, and a mean over them would choose by that accident. ``growth`` says how many times as much work a call has
    as what was timed.
    """
    seconds = {name: _typical(name, times, single_threaded) for name, times in rounds.items() if times}
    best = min(seconds, key=seconds.__getitem__)
    near = {
        name: s
        for name, s in seconds.items()
        if name in single_threaded and _is_near(s, seconds[best], growth)
    }
    if best not in single_threaded and near:
        best = min(near, key=near.__getitem__)
    may_stay = reference in seconds and (reference in single_threaded or best not in single_threaded)
    by_mean = reference not in single_threaded
    if may_stay and best != reference and not clearly_faster(rounds[best], rounds[reference], by_mean):
        best = reference
    return best, seconds


def _typical(name: str, times: Sequence[float], single_threaded: Set[str]) -> float:
    if name in single_threaded:
        return statistics.median(times)
    return statistics.fmean(sorted(times)[: len(times) - len(times) // STALLS_LEFT_OUT])


def _is_near(seconds: float, best_s: float, growth: float) -> bool:
    return (
        seconds <= SINGLE_THREADED_WITHIN * best_s and growth * (seconds - best_s) <= SINGLE_THREADED_WITHIN_S
    )


def rule(chosen: str, seconds: Mapping[str, float], reference: str, single_threaded: Set[str]) -> str | None:
    """Say which rule chose, by the seconds of all; None where those of the chosen one are not known."""
    if chosen not in seconds:
        return None
    fastest = min(seconds, key=seconds.__getitem__)
    if chosen == fastest:
        return "the fastest"
    is_near = seconds[chosen] <= SINGLE_THREADED_WITHIN * seconds[fastest]
    if chosen in single_threaded and fastest not in single_threaded and is_near:
        return f"within {SINGLE_THREADED_WITHIN} times of {fastest}, the fastest, and opens no threads"
    if chosen == reference:
        return f"PyTorch's own call stays unless another is {MARGIN - 1:.0%} faster all the time"
    return f"an earlier choice, which stays within {MARGIN - 1:.0%} of the fastest"


def holds(holder: str, challenger: str, seconds: Mapping[str, float], single_threaded: Set[str]) -> bool:
    """Whether an earlier choice stands: within the margin, and not multithreaded where the challenger is not."""
    is_near = holder in seconds and seconds[holder] <= MARGIN * seconds[challenger]
    return is_near and (holder in single_threaded or challenger not in single_threaded)


def clearly_faster(challenger: Sequence[float], holder: Sequence[float], by_mean: bool = False) -> bool:
    """Whether the challenger beats the holder by the margin, in every third of the rounds and in most of them."""
    middle = statistics.fmean if by_mean else statistics.median
    wins = [ours * MARGIN <= theirs for ours, theirs in zip(challenger, holder, strict=False)]
    in_every_third = all(
        middle(ours) * MARGIN <= middle(theirs)
        for ours, theirs in zip(thirds(challenger), thirds(holder), strict=False)
    )
    return in_every_third and sum(wins) > MOST_ROUNDS_WON * len(wins)
