"""The first looks at the candidates of a problem: on slices of it that grow, where even a slow one costs little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from autoinv import fork
from autoinv.errors import FROM_TORCH_OR_KERNELS, is_out_of_memory
from autoinv.operation import Operands, Operation
from autoinv.problem import Problem
from autoinv.strategy import Strategy
from autoinv.tuning.operands import dense_strides, random_operands, slices
from autoinv.tuning.timing import TOO_SLOW, Call, CpuShare, Stopwatch

PART_OF_BUDGET = 0.5
"""How much of the budget the screening may take: the rest is for timing what it left."""
EXPENSIVE_PART = 0.05
"""A call on a slice that takes no larger part of what is left of the budget is always made twice."""
FAR_BEHIND = 2.0
"""An expensive candidate this many times slower than the fastest is not timed on the whole."""
CHEAP_S = 3e-4
"""A call that takes no longer is timed however slow: a few rounds cost a millisecond, and users want to see it."""
FILLED_BYTES_A_S = 2e9
"""How fast operands are made, at least."""


class OutOfMemoryError(Exception):
    """Memory ran out in a candidate or for its operands: nothing that was seen counts."""


@dataclass
class Slice:
    """One slice of a problem, operands for it, and each candidate's best seconds per call on it."""

    problem: Problem
    elements: int
    operands: Operands
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Screened:
    """The candidates of one tuning: what was seen of them on each slice, and why the others are out."""

    operation: Operation
    problem: Problem
    stopwatch: Stopwatch
    deadline_s: float
    candidates: list[Strategy] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    seen: list[Slice] = field(default_factory=list)
    """The slices, the smallest first."""

    def __post_init__(self) -> None:
        """Sort the table into candidates and those that do not support the problem, or would hang here."""
        self.elements = self.operation.batch(self.problem)
        self.reference = self.operation.reference(self.problem)
        hangs = fork.is_child and self.problem.on_cpu and self.problem.threads > 1
        for strategy in self.operation.table:
            if not strategy.supports(self.problem):
                self.rejected[strategy.name] = "does not support this problem"
            elif hangs and strategy.is_multithreaded(self.problem):
                self.rejected[strategy.name] = "not tried, as its threads may be missing in a forked process"
            else:
                self.candidates.append(strategy)
        self.is_whole = not hangs
        """Whether every strategy could be tried."""
        self.is_reference_seen = False
        """Whether there was a result of the reference to compare others with."""
        self.single_threaded = frozenset(
            s.name for s in self.candidates if not s.is_multithreaded(self.problem)
        )
        self.share = CpuShare(self.stopwatch, self.single_threaded)

    def can_see_reference_alone(self) -> bool:
        """Whether the reference answers for one element of the batch without waking a team of threads."""
        if len(self.problem.shapes) > 1:
            return False
        (shape,) = self.problem.shapes
        one = replace(
            self.problem, shapes=((1, *shape[len(shape) - self.operation.core_dims([shape])[0] :]),)
        )
        return not self.operation.reference(one).is_multithreaded(one)

    @property
    def left_s(self) -> float:
        """Seconds until the budget is spent."""
        return self.deadline_s - self.stopwatch.wall_s()

    def most_s(self, name: str, elements: int) -> float:
        """About how long a call on so many elements takes at most: grown from the largest slice it was seen on."""
        at, seconds = self._points(name)[-1]
        return seconds * max(1.0, elements / at)

    def least_s(self, name: str, elements: int) -> float:
        """About how long it takes at least: on the straight line through the two largest slices.

        What starting costs, a launch or the waking of a team, is not grown then. Of one slice alone it cannot be told
        from the rest, unless there is some for each element.
        """
        *before, (at, seconds) = self._points(name)
        if before:
            slope = (seconds - before[-1][1]) / (at - before[-1][0])
            return seconds + max(0.0, slope) * (elements - at)
        strategy = next(s for s in self.operation.table if s.name == name)
        return self.most_s(name, elements) if strategy.may_be_slow(self.problem) else seconds

    def _points(self, name: str) -> list[tuple[int, float]]:
        return [(s.elements, s.seconds[name]) for s in self.seen if name in s.seconds]

    def known(self) -> list[str]:
        """Return the names of the candidates that were seen, the most promising first."""
        names = {name for s in self.seen for name in s.seconds}
        here = [s.name for s in self.candidates if s.name in names]
        return sorted(here, key=lambda name: self.most_s(name, self.elements))

    def reject(self, name: str, reason: str) -> None:
        """Take a candidate out, and keep the reason."""
        self.rejected[name] = reason
        self.candidates = [s for s in self.candidates if s.name != name]

    def seen_only(self, name: str) -> str:
        """Say on what part of the problem a candidate was seen at most, and how it did there."""
        where = next(s for s in reversed(self.seen) if name in s.seconds)
        seconds, best_s = where.seconds[name], min(where.seconds.values())
        times = f", {seconds / best_s:.3g} times the fastest there" if seconds > best_s else ""
        return f"only seen on {where.elements} of {self.elements} matrices: {seconds * 1e6:.3g} us{times}"


def screen(operation: Operation, problem: Problem, stopwatch: Stopwatch, deadline_s: float) -> Screened:
    """Run the candidates on slices that grow: out goes what raises, is inaccurate, or is far too slow.

    The default and the reference are seen on the first slice in any case; else nothing is begun that does not fit.

    Raises:
        OutOfMemoryError: when memory ran out.
    """
    state = Screened(operation, problem, stopwatch, deadline_s)
    if state.left_s <= 0 or not (state.is_whole or state.can_see_reference_alone()):
        return state
    began_s = stopwatch.wall_s()
    parts = slices(operation, problem)
    for turn, part in enumerate(parts, 1):
        elements = operation.batch(part)
        if elements == state.elements and state.seen:
            break  # the whole is for the race
        # About an equal part of the time for each slice: what is slow to start must not keep the rest from growing.
        part_s = PART_OF_BUDGET * (deadline_s - began_s) / len(parts)
        if state.seen and not _fits(state, part, elements, began_s + turn * part_s):
            break
        _look(state, Slice(part, elements, made(part, dense_strides(part))), part_s)
        _reject_too_slow(state)
    return state


def made(problem: Problem, strides: object) -> Operands:
    """Return random operands.

    Raises:
        OutOfMemoryError: when memory ran out.
    """
    try:
        return random_operands(problem, strides)  # type: ignore[arg-type]
    except FROM_TORCH_OR_KERNELS as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        raise


def filling_s(problem: Problem) -> float:
    """Return about how long it takes to make operands."""
    return problem.numel * problem.dtype.itemsize / FILLED_BYTES_A_S


def _fits(state: Screened, part: Problem, elements: int, until_s: float) -> bool:
    """Whether the two most promising can be looked at on a larger slice in time."""
    promising_s = sum(2 * state.most_s(name, elements) for name in state.known()[:2])
    return state.stopwatch.wall_s() + filling_s(part) + promising_s <= until_s


def _look(state: Screened, part: Slice, part_s: float) -> None:
    """Run each candidate on a slice, once or twice; on the first one check what it returns."""
    is_first = not state.seen
    always = (state.operation.default(state.problem), state.reference) if is_first else ()
    results: dict[str, torch.Tensor] = {}
    until_s = state.stopwatch.wall_s() + part_s
    for strategy in _in_order(state):
        if strategy not in always:
            expected_s = 0.0 if is_first else state.most_s(strategy.name, part.elements)
            if state.stopwatch.wall_s() + expected_s >= until_s:
                continue
        _try(state, strategy, part, results)
        if strategy in always:
            until_s = min(state.deadline_s, state.stopwatch.wall_s() + part_s)
    if is_first and state.reference.name not in part.seconds:
        _see_one_by_one(state, part, results)
    state.seen.append(part)
    if is_first:
        _reject_inaccurate(state, part, results)


def _in_order(state: Screened) -> list[Strategy]:
    """Return the default and the reference, then the rest: on a busy machine waking a team may take all the time.

    Later the most promising first.
    """
    if state.seen:
        order = state.known()
        return sorted((s for s in state.candidates if s.name in order), key=lambda s: order.index(s.name))
    default = state.operation.default(state.problem)
    first = [s for s in dict.fromkeys((default, state.reference)) if s in state.candidates]
    rest = [s for s in state.candidates if s not in first]
    return first + sorted(rest, key=lambda s: s.is_multithreaded(state.problem))


def _try(state: Screened, strategy: Strategy, part: Slice, results: dict[str, torch.Tensor]) -> None:
    """Run a candidate on a slice, once or twice, and keep its result."""
    name = strategy.name
    try:
        run = strategy.bind(part.problem)

        def call() -> None:
            results[name] = run(*part.operands)

        first_s = state.share.seconds(name, call, 1)
        best_s = min(part.seconds.values(), default=first_s)
        # Once more, as the first call pays for warming up and may have been interrupted; not where it is expensive.
        cheap_s = EXPENSIVE_PART * state.left_s
        again = first_s < state.left_s and first_s <= (cheap_s if state.seen else max(8 * best_s, cheap_s))
        part.seconds[name] = min(first_s, state.share.seconds(name, call, 1)) if again else first_s
    except FROM_TORCH_OR_KERNELS as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError from error
        state.reject(name, raised(error))


def _see_one_by_one(state: Screened, part: Slice, results: dict[str, torch.Tensor]) -> None:
    """See what the reference returns where it may not be tried as it is: for one element of the batch at a time."""
    if state.is_whole:
        return
    (A,) = part.operands
    flat = A.reshape(-1, *A.shape[A.dim() - state.operation.core_dims([A.shape])[0] :])
    run = state.reference.bind(Problem.of(state.operation.name, flat[:1]))
    X = torch.cat([run(flat[i : i + 1]) for i in range(len(flat))])
    results[state.reference.name] = X.reshape(state.operation.result_shape(A.shape))


def _reject_inaccurate(state: Screened, part: Slice, results: dict[str, torch.Tensor]) -> None:
    """Reject those whose result is worse than the reference's."""
    expected = results.get(state.reference.name)
    if expected is None:
        return
    state.is_reference_seen = True
    for name in list(part.seconds):
        reason = _reject_reason(state, part, results[name], expected)
        if reason and name != state.reference.name:
            part.seconds.pop(name)
            state.reject(name, reason)


def _reject_reason(state: Screened, part: Slice, result: torch.Tensor, expected: torch.Tensor) -> str | None:
    if state.is_whole:
        return state.operation.reject_reason(part.operands, result, expected)
    # In a forked child one element at a time: torch's products of more would wait for a team that is not there.
    (A,) = part.operands
    core = state.operation.core_dims([A.shape])[0]
    batch = A.shape[: A.dim() - core]
    parts = [x.reshape(-1, *x.shape[len(batch) :]) for x in (A, result, expected)]
    reasons = (state.operation.reject_reason((M,), X, E) for M, X, E in zip(*parts, strict=True))
    return next((reason for reason in reasons if reason), None)


def _reject_too_slow(state: Screened) -> None:
    """Reject those whose least possible time on the whole is far above another's most."""
    newest = state.seen[-1]
    if not newest.seconds:
        return
    most_s = min(state.most_s(name, state.elements) for name in newest.seconds)
    for strategy in list(state.candidates):
        name = strategy.name
        if strategy is state.reference or name not in newest.seconds:
            continue
        least_s = state.least_s(name, state.elements)
        if least_s > max(TOO_SLOW * most_s, CHEAP_S) and _is_behind(state, name):
            part = f"{newest.elements} of {state.elements} matrices"
            state.reject(name, f"screened out, {least_s / most_s:.0f} times the fastest on {part}")


def _is_behind(state: Screened, name: str) -> bool:
    """Whether a multithreaded candidate is behind on both of the largest slices: on one a stall may be to blame."""
    if name in state.single_threaded:
        return True
    pairs = [(s.seconds[name], min(s.seconds.values())) for s in state.seen[-2:] if name in s.seconds]
    return all(seconds > TOO_SLOW * best_s for seconds, best_s in pairs)


def reject_expensive(state: Screened) -> None:
    """Leave out what is far behind and would take much of the time that is left."""
    names = state.known()
    for name in names[1:]:
        cost_s, best_s = state.most_s(name, state.elements), state.most_s(names[0], state.elements)
        is_behind = state.least_s(name, state.elements) > FAR_BEHIND * best_s
        if is_behind and cost_s > EXPENSIVE_PART * state.left_s:
            state.reject(name, f"screened out, {state.seen_only(name)}")


def raised(error: Exception) -> str:
    """Return the reason that an exception is."""
    first_line = str(error).partition("\n")[0]
    return f"raised {type(error).__name__}: {first_line}"[:200]


def bound(run: Callable[..., torch.Tensor], operands: Operands) -> Call:
    """Return a call without arguments, as cheap as the number of operands allows."""
    if len(operands) == 1:
        (only,) = operands
        return lambda: run(only)
    return lambda: run(*operands)
