"""An operation whose strategies take the time that a test sets, on a clock that only they advance."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping

import torch

from autoinv.operation import Operation
from autoinv.problem import Problem
from autoinv.strategy import Strategy
from autoinv.tuning.timing import Stopwatch


class FakeStopwatch(Stopwatch):
    """Time passes only when a fake strategy runs; ``cpu_share`` is the part of it that this thread got."""

    def __init__(self, cpu_share: float = 1.0) -> None:
        self.now_s = 100.0
        self.used_s = 0.0
        self.given_cpu_share = cpu_share

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.used_s += seconds * self.given_cpu_share

    def wall_s(self) -> float:
        return self.now_s

    def thread_s(self) -> float:
        return self.used_s

    def cpu_share(self, wall_s: float, thread_s: float) -> float:
        return thread_s / wall_s if wall_s else 1.0


class FakeStrategy(Strategy):
    """Answers by torch.linalg.inv, and takes ``seconds`` for each matrix plus noise, on the fake clock."""

    def __init__(
        self,
        name: str,
        stopwatch: FakeStopwatch,
        seconds: float,
        *,
        noise: float = 0.0,
        multithreaded: bool = False,
        raises: Exception | None = None,
        wrong: bool = False,
        each_matrix: bool = False,
        supported: bool = True,
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.calls: list[tuple[int, ...]] = []
        self._stopwatch, self._seconds, self._noise = stopwatch, seconds, noise
        self._multithreaded, self._raises, self._wrong = multithreaded, raises, wrong
        self._each, self._supported = each_matrix, supported
        self._random = random.Random(name)

    def supports(self, problem: Problem) -> bool:
        return self._supported

    def is_multithreaded(self, problem: Problem) -> bool:
        return self._multithreaded

    def may_be_slow(self, problem: Problem) -> bool:
        return self._each

    def bind(self, problem: Problem):
        seconds = self._seconds * (problem.batch if self._each else 1)

        def run(A, out=None):
            self.calls.append(tuple(A.shape))
            self._stopwatch.advance(seconds * (1 + self._noise * self._random.random()))
            if self._raises is not None:
                raise self._raises
            X = torch.linalg.inv(A).contiguous()
            return X + 1 if self._wrong else X

        return run


def fake_operation(
    strategies: list[Strategy], template: Operation, defaults: tuple[str, ...] = ()
) -> Operation:
    """The operation ``template`` with these strategies, the first being the reference."""
    operation = copy.copy(template)
    operation.defaults = defaults
    operation.table = tuple(strategies)
    operation.references = (strategies[0].name,)
    return operation


def rounds_of(costs: Mapping[str, float], count: int = 12) -> dict[str, list[float]]:
    return {name: [cost] * count for name, cost in costs.items()}
