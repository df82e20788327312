"""Timing calls against each other: interleaved, round by round. Knows no strategy.

Ten samples each, one candidate after the other, name another winner in up to 44 % of repetitions
whether the mean, the median or the minimum is compared; interleaving takes out the slow drift.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch

from autoinv.errors import FROM_TORCH_OR_KERNELS

Call = Callable[[], object]

ROUND_PART_S = 1e-4
"""How long one candidate runs in one round: long enough that the clock's own 50 ns do not count."""
LEAST_S = 1e-9
"""No call takes less: a clock that stood still, or went back, measured nothing."""
UNCONTENDED_CPU_SHARE = 0.9
"""Share of the processor under which a tuning counts as contended: idle 0.96 to 1.00, busy 0.31 to 0.96."""
SPINS = 5_000
"""Steps of a spin: about 0.1 ms."""
QUICK_S = 5e-4
QUICK_REPEATS = 3
"""A call quicker than this is made once untimed and so many times timed in each round."""
CLEAR_LEAD = 2.0
"""A candidate this many times as fast as every other leads clearly ..."""
CLEAR_ROUNDS = 3
"""... and wins after this many uncontended rounds running."""
TOO_SLOW = 4.0
"""A candidate this many times slower than the fastest is timed no further."""


class Stopwatch:
    """The clocks that a measurement reads; tests put their own in its place."""

    def wall_s(self) -> float:
        """Return seconds on a clock that only goes forward."""
        return time.perf_counter()

    def thread_s(self) -> float:
        """Return processor seconds that this thread used."""
        return time.thread_time()

    def cpu_share(self, wall_s: float, thread_s: float) -> float:
        """Return the share of the processor that the thread got, 1.0 where the clock cannot tell."""
        resolution_s = time.get_clock_info("thread_time").resolution
        return 1.0 if wall_s < 20 * resolution_s else thread_s / wall_s

    def seconds(self, call: Call, repeats: int) -> float:
        """Return seconds per call over so many calls in a row."""
        started_s = self.wall_s()
        for _ in range(repeats):
            call()
        return max(LEAST_S, (self.wall_s() - started_s) / repeats)


class CudaStopwatch(Stopwatch):
    """Times by events on the current stream; a kernel that still runs is waited for."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def cpu_share(self, wall_s: float, thread_s: float) -> float:
        """Return 1.0: while the thread waits for the GPU, its processor time says nothing."""
        del wall_s, thread_s
        return 1.0

    def seconds(self, call: Call, repeats: int) -> float:
        """Return seconds per call on the GPU's own clock."""
        with torch.cuda.device(self._device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            begin.record()
            for _ in range(repeats):
                call()
            end.record()
            end.synchronize()
            return max(LEAST_S, float(begin.elapsed_time(end)) * 1e-3 / repeats)


class CpuShare:
    """What part of the processor this thread got while it computed alone.

    A call that opens a team of threads, or waits in a pool, sleeps for part of its time, which says nothing of how busy
    the machine is; so only the calls of single-threaded strategies count, and where there are none a short spin.
    """

    def __init__(self, stopwatch: Stopwatch, single_threaded: Set[str]) -> None:
        self.stopwatch = stopwatch
        self._single_threaded = single_threaded
        self._spent_s = [0.0, 0.0]
        self._since_s = [0.0, 0.0]

    def seconds(self, name: str, call: Call, repeats: int) -> float:
        """Return seconds per call of a strategy, and count its share."""
        if name not in self._single_threaded:
            return self.stopwatch.seconds(call, repeats)
        wall_s, thread_s = self.stopwatch.wall_s(), self.stopwatch.thread_s()
        seconds = self.stopwatch.seconds(call, repeats)
        self._add(self.stopwatch.wall_s() - wall_s, self.stopwatch.thread_s() - thread_s)
        return seconds

    def _add(self, wall_s: float, thread_s: float) -> None:
        for spent in (self._spent_s, self._since_s):
            spent[0] += wall_s
            spent[1] += thread_s

    def spin(self) -> None:
        """Compute for a moment, where no strategy is single-threaded."""
        if self._single_threaded:
            return
        wall_s, thread_s = self.stopwatch.wall_s(), self.stopwatch.thread_s()
        for _ in range(SPINS):
            pass
        self._add(self.stopwatch.wall_s() - wall_s, self.stopwatch.thread_s() - thread_s)

    def since(self) -> float:
        """Return the share since this was last asked."""
        wall_s, thread_s = self._since_s
        self._since_s = [0.0, 0.0]
        return self._share(wall_s, thread_s)

    def overall(self) -> float:
        """Return the share of the whole tuning."""
        return self._share(*self._spent_s)

    def _share(self, wall_s: float, thread_s: float) -> float:
        return self.stopwatch.cpu_share(wall_s, thread_s) if wall_s > 0 else 1.0


class CandidateError(Exception):
    """A candidate raised in a race: its name, and what it raised."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


@dataclass
class Race:
    """What a race measured: seconds per call, one number a round, for each candidate; and each round's share."""

    rounds: dict[str, list[float]]
    complete: bool = False
    cpu_shares: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many rounds the fastest candidate ran."""
        return max(map(len, self.rounds.values()), default=0)


def thirds(times: Sequence[float]) -> list[Sequence[float]]:
    """Split the rounds into three runs of about equal length, in order; empty ones are left out."""
    size = len(times)
    cuts = (0, size // 3, size - size // 3, size) if size >= 3 else (0, size)
    return [times[a:b] for a, b in itertools.pairwise(cuts) if b > a]


def race(
    calls: Mapping[str, Call],
    estimates_s: Mapping[str, float],
    share: CpuShare,
    *,
    deadline_s: float,
    most_rounds: int,
) -> Race:
    """Time the calls against each other until one leads clearly, the rounds are done or time is up.

    ``estimates_s`` is about how long each call takes, so that none is begun that would not end in time.

    Raises:
        CandidateError: when a call raises.
    """
    stopwatch = share.stopwatch
    result = Race({name: [] for name in calls})
    running = list(calls)
    repeats = {name: max(1, round(ROUND_PART_S / max(estimates_s[name], 1e-7))) for name in calls}
    quick = {name for name in calls if estimates_s[name] < QUICK_S}
    repeats |= {name: max(QUICK_REPEATS, repeats[name]) for name in quick}
    leads, leader = 0, ""
    while result.count < most_rounds:
        share.since()
        share.spin()
        turn = result.count % len(running)
        for name in running[turn:] + running[:turn]:
            if stopwatch.wall_s() + (repeats[name] + (name in quick)) * estimates_s[name] > deadline_s:
                return result
            try:
                if name in quick:
                    calls[name]()  # a hot loop finds its data in the cache, and its helpers awake
                result.rounds[name].append(share.seconds(name, calls[name], repeats[name]))
            except FROM_TORCH_OR_KERNELS as error:
                raise CandidateError(name, error) from error
        result.cpu_shares.append(share.since())
        before, leader = leader, _clear_leader(result, running)
        leads = leads + 1 if leader and leader == before else int(bool(leader))
        if leads >= CLEAR_ROUNDS or len(running) == 1:
            break
        if result.count >= CLEAR_ROUNDS:
            running = _still_in(result, running)
    result.complete = True
    return result


def _clear_leader(result: Race, running: Sequence[str]) -> str:
    """Return who led clearly in the newest round, or nothing when none did or the round was contended."""
    first, *others = sorted(running, key=lambda name: result.rounds[name][-1])
    clear = all(result.rounds[name][-1] >= CLEAR_LEAD * result.rounds[first][-1] for name in others[:1])
    return first if clear and result.cpu_shares[-1] >= UNCONTENDED_CPU_SHARE else ""


def _still_in(result: Race, running: Sequence[str]) -> list[str]:
    """Drop what is too slow: a candidate whose best round is many times the leader's median."""
    leader_s = min(statistics.median(result.rounds[name]) for name in running)
    return [name for name in running if min(result.rounds[name]) <= TOO_SLOW * leader_s]
