"""Which of the timed candidates is chosen: three rules, and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence, Set

from autoinv.tuning.timing import QUIET_SHARE, thirds

MARGIN = 1.05
"""The reference keeps its place unless another is this many times as fast in every third of the rounds."""
MOST_ROUNDS_WON = 0.6
"""... and in more than this share of the single rounds: with both, of two equals that vary by 30 % one beats the
other in 1 of 700 tunings, and one that is a fifth faster in all (simulated)."""
CALM_WITHIN = 1.5
"""A strategy that opens no thread team is preferred within this many times of the best time."""

LEAST_SHARE = 0.05
"""What a share is taken for at least: below it the clocks say little."""

Rounds = Mapping[str, Sequence[float]]


def choose(
    rounds: Rounds, reference: str, calm: Set[str], share: float = 1.0
) -> tuple[str, dict[str, float]]:
    """Return the chosen name and every candidate's seconds per call, as a hot loop would pay them.

    ``share`` is the part of the processor that the thread got. On a quiet machine the median counts. On a
    contended one a strategy that opens a thread team is slow by its stalls, so its mean counts; a calm one is
    slow only by the share, so its median over the share counts: a few ms of rounds see one descheduling or
    none, and a mean over them would choose by that accident.
    """
    contended = share < QUIET_SHARE
    seconds = {
        name: statistics.fmean(times)
        if contended and name not in calm
        else statistics.median(times) / (max(share, LEAST_SHARE) if contended else 1.0)
        for name, times in rounds.items()
        if times
    }
    best = min(seconds, key=seconds.__getitem__)
    peaceful = {name: s for name, s in seconds.items() if name in calm and s <= CALM_WITHIN * seconds[best]}
    if best not in calm and peaceful:
        best = min(peaceful, key=peaceful.__getitem__)
    may_stay = reference in seconds and (reference in calm or best not in calm)
    by_mean = contended and reference not in calm
    if may_stay and best != reference and not clearly_faster(rounds[best], rounds[reference], by_mean):
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
