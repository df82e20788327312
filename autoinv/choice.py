"""Which of the timed candidates is chosen: three rules, and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence, Set

from autoinv.measure import thirds

MARGIN = 1.05
"""The reference keeps its place unless another is this many times as fast in every third of the rounds."""
MOST_ROUNDS_WON = 0.6
"""... and in more than this share of the single rounds: with both, of two equals that vary by 30 % one beats the
other in 1 of 700 tunings, and one that is a fifth faster in all (simulated)."""
CALM_WITHIN = 1.5
"""A strategy that opens no thread team is preferred within this many times of the best time."""

Rounds = Mapping[str, Sequence[float]]


def choose(rounds: Rounds, reference: str, calm: Set[str], contended: bool) -> tuple[str, dict[str, float]]:
    """Return the chosen name and every candidate's seconds per call.

    On a quiet machine the median counts; on a contended one the mean, which is what a hot loop pays.
    """
    middle = statistics.fmean if contended else statistics.median
    seconds = {name: float(middle(times)) for name, times in rounds.items() if times}
    best = min(seconds, key=seconds.__getitem__)
    peaceful = {name: s for name, s in seconds.items() if name in calm and s <= CALM_WITHIN * seconds[best]}
    if best not in calm and peaceful:
        best = min(peaceful, key=peaceful.__getitem__)
    may_stay = reference in seconds and (reference in calm or best not in calm)
    if (
        may_stay
        and best != reference
        and not clearly_faster(rounds[best], rounds[reference], middle is statistics.fmean)
    ):
        best = reference
    return best, seconds


def holds(holder: str, challenger: str, seconds: Mapping[str, float], calm: Set[str]) -> bool:
    """Whether an earlier choice stands: the challenger is within the margin, and not the calmer of the two."""
    is_near = holder in seconds and seconds[holder] <= MARGIN * seconds[challenger]
    return is_near and (holder in calm or challenger not in calm)


def clearly_faster(challenger: Sequence[float], holder: Sequence[float], by_mean: bool = False) -> bool:
    """Whether the challenger beats the holder by the margin, in every third of the rounds and in most of them."""
    middle = statistics.fmean if by_mean else statistics.median
    wins = [ours * MARGIN <= theirs for ours, theirs in zip(challenger, holder, strict=False)]
    in_every_third = all(
        middle(ours) * MARGIN <= middle(theirs)
        for ours, theirs in zip(thirds(challenger), thirds(holder), strict=False)
    )
    return in_every_third and sum(wins) > MOST_ROUNDS_WON * len(wins)
