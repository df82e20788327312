"""Which of the timed candidates is chosen: three rules, and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence, Set

from autoinv.tuning.timing import UNCONTENDED_CPU_SHARE, thirds

MARGIN = 1.05
"""The reference keeps its place unless another is this many times as fast in every third of the rounds."""
MOST_ROUNDS_WON = 0.6
"""... and in more than this share of the single rounds: with both, of two equals that vary by 30 % one beats the
other in 1 of 700 tunings, and one that is a fifth faster in all (simulated)."""
SINGLE_THREADED_WITHIN = 1.5
"""A single-threaded strategy is preferred within this many times of the best time."""

LEAST_CPU_SHARE = 0.05
"""The smallest share that is calculated with: below it the clocks are too coarse."""

Rounds = Mapping[str, Sequence[float]]


def choose(
    rounds: Rounds, reference: str, single_threaded: Set[str], cpu_share: float = 1.0
) -> tuple[str, dict[str, float]]:
    """Return the chosen name and every candidate's seconds per call, as a hot loop would pay them.

    ``cpu_share`` is the part of the processor that the thread got. On an uncontended machine the median counts.
    On a contended one a multithreaded strategy is slow by its stalls, so its mean counts; a single-threaded one
    is slow only by the share, so its median over the share counts: a few ms of rounds see one descheduling or
    none, and a mean over them would choose by that accident.
    """
    contended = cpu_share < UNCONTENDED_CPU_SHARE
    seconds = {
        name: statistics.fmean(times)
        if contended and name not in single_threaded
        else statistics.median(times) / (max(cpu_share, LEAST_CPU_SHARE) if contended else 1.0)
        for name, times in rounds.items()
        if times
    }
    best = min(seconds, key=seconds.__getitem__)
    near = {
        name: s
        for name, s in seconds.items()
        if name in single_threaded and s <= SINGLE_THREADED_WITHIN * seconds[best]
    }
    if best not in single_threaded and near:
        best = min(near, key=near.__getitem__)
    may_stay = reference in seconds and (reference in single_threaded or best not in single_threaded)
    by_mean = contended and reference not in single_threaded
    if may_stay and best != reference and not clearly_faster(rounds[best], rounds[reference], by_mean):
        best = reference
    return best, seconds


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
