"""Asking what would run, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from autoinv import native, settings
from autoinv.calls.state import is_ordinary_type
from autoinv.operation import Operands
from autoinv.ops.table import DEFAULT, operation_call
from autoinv.planning.dispatch import Dispatcher
from autoinv.problem import Problem, format_shapes
from autoinv.store.decisions import Decision
from autoinv.tuning.choice import rule

_UNSUPPORTED = "does not support this problem"


@dataclass(frozen=True)
class Explanation:
    """What would run for a problem, and why. ``str()`` is for reading, the fields are for programs.

    ``source`` is pin, sync, file, neighbour, tuned, default or reference; ``seconds`` are seconds a call, by strategy;
    ``rejected`` says why the others were not timed or not taken.
    """

    problem: Problem | None
    strategy: str
    source: str
    why: str
    reference: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    timed: Problem | None = None
    """The problem that ``seconds`` were measured on: a neighbour's own, where a neighbour serves."""

    def __str__(self) -> str:
        """Return one line of answer, then a line a strategy, the fastest first."""
        lines = [f"{self._what()}: {self.strategy} ({self.why})"]
        lines += [self._timed(name) for name in sorted(self.seconds, key=self.seconds.__getitem__)]
        width = self._width()
        for name, reason in sorted(self.rejected.items()):
            mark = "" if reason.startswith(_UNSUPPORTED) else self._timed_elsewhere()
            lines.append(f"  {name:<{width}}  {reason}{mark}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _what(self) -> str:
        p = self.problem
        if p is None:
            return "this input"
        shapes = format_shapes(p.shapes).replace(",", ", ")
        threads = f"{p.threads} thread" + ("s" if p.threads > 1 else "")
        return f"{p.op} of {shapes} {p.dtype_name} on {p.device}, {threads}, {p.layout.replace(',', ', ')}"

    def _width(self) -> int:
        return max(map(len, [*self.seconds, *self.rejected]), default=0)

    def _timed(self, name: str) -> str:
        seconds = self.seconds[name]
        has_ratio = self.reference in self.seconds and seconds > 0
        marks = [f"{self.seconds[self.reference] / seconds:7.2f}x"] if has_ratio else []
        marks += ["reference"] if name == self.reference else []
        marks += ["<- chosen"] if name == self.strategy else []
        timed = f"  {name:<{self._width()}}  {format_seconds(seconds):>10}  {'  '.join(marks)}"
        return timed + self._timed_elsewhere()

    def _timed_elsewhere(self) -> str:
        if self.timed is None or self.problem is None or self.timed.shapes == self.problem.shapes:
            return ""
        return f"  (timed on {format_shapes(self.timed.shapes)})"


def explain(*operands: torch.Tensor, op: str = DEFAULT) -> Explanation:
    """Say what would run for these operands, why, and how fast each candidate was; times nothing.

    Of an expanded batch only the different matrices are computed: the explanation is that of those.

    Raises:
        ValueError: when there is no operation ``op``.
        TypeError: when the operands are not the tensors that the operation takes.

    Example:
        >>> import torch, autoinv
        >>> autoinv.explain(torch.eye(3)).source
        'default'
    """
    dispatcher = operation_call(op).dispatcher
    operation = dispatcher.operation
    count = len(operation.operand_names)
    if len(operands) != count or not all(isinstance(x, torch.Tensor) for x in operands):
        given = ", ".join(type(x).__name__ for x in operands) or "nothing"
        wanted = "the one tensor" if count == 1 else f"the {count} tensors"
        raise TypeError(f"explain takes {wanted} that {op} takes, not {given}")
    is_plain = all(is_ordinary_type(x) and not x.is_nested for x in operands)
    if not is_plain or not operation.takes(*operands):
        name = operation.references[0]
        return Explanation(None, name, "reference", "PyTorch's own call answers this kind of input", name)
    return _explain_taken(dispatcher, operands)


def _explain_taken(dispatcher: Dispatcher, operands: Operands) -> Explanation:
    planned = dispatcher.planned_for(operands)
    explanation = explain_problem(Problem.of(dispatcher.operation.name, *planned))
    if planned is not operands:
        whole, once = (format_shapes([x.shape for x in each]) for each in (operands, planned))
        note = f"{whole} is expanded from {once}: each different matrix is computed once, then copied"
        explanation = dataclasses.replace(explanation, notes=(*explanation.notes, note))
    if dispatcher.is_demoted(*operands) or dispatcher.is_demoted(*planned):
        why = "a strategy raised on this shape in this process, so PyTorch's own call answers until it is forgotten"
        return dataclasses.replace(explanation, strategy=explanation.reference, source="reference", why=why)
    return explanation


def explain_problem(problem: Problem) -> Explanation:
    """Say what would run for a problem; times nothing."""
    dispatcher = operation_call(problem.op).dispatcher
    plan = dispatcher.explain(problem)
    decision = plan.decision
    return Explanation(
        problem,
        plan.strategy.name,
        plan.source,
        plan.why,
        dispatcher.operation.reference(problem).name,
        dict(decision.seconds) if decision else {},
        {**(decision.rejected if decision else {}), **_unsupported(dispatcher, problem)},
        tuple(_notes(dispatcher, problem, decision)),
        decision.problem if decision else None,
    )


def _unsupported(dispatcher: Dispatcher, problem: Problem) -> dict[str, str]:
    """Return why strategies do not support the problem."""
    return {
        strategy.name: f"{_UNSUPPORTED}: it takes {strategy.limits}"
        for strategy in dispatcher.operation.table
        if strategy.limits and not strategy.supports(problem)
    }


def _notes(dispatcher: Dispatcher, problem: Problem, decision: Decision | None) -> list[str]:
    notes = [] if decision is None else [_rule(dispatcher, decision)]
    file = dispatcher.planner.file(problem)
    if decision is None:
        notes += _known_otherwise(problem, file.all())
    elif not decision.conclusive and decision.problem == problem:
        what = []
        what += ["it was timed while the processor was busy"] if decision.contended else []
        what += ["the budget ran out before all was timed"] if not decision.complete else []
        if decision.final:
            then = f"after {decision.tunings} tunings it stays"
        elif not file.can_be_saved():
            then = "it stays, as the file cannot be saved"
        elif settings.current().mode != "tune":
            then = f"it stays while the mode is {settings.current().mode}"
        else:
            then = "a later process tunes it again"
        notes.append(f"{' and '.join(what)}; {then}")
    missing = native.why_missing() if problem.on_cpu else None
    if missing:
        notes.append(f"the native kernels are missing: {missing}")
    return notes


def _rule(dispatcher: Dispatcher, decision: Decision) -> str:
    """Say by which rule the strategy was chosen."""
    operation, p = dispatcher.operation, decision.problem
    single_threaded = {s.name for s in operation.table if s.supports(p) and not s.is_multithreaded(p)}
    chosen = rule(decision.strategy, decision.seconds, operation.reference(p).name, single_threaded)
    if chosen is None:
        chosen = "another raised in a call" if not decision.seconds and not decision.rounds else None
    because = f": {chosen}" if chosen else " by what was seen on a part of the batch"
    return f"{decision.strategy} was chosen{because}"


def _known_otherwise(problem: Problem, decisions: Iterable[Decision]) -> list[str]:
    """Say for which dtypes, thread counts and layouts something is known of these shapes, if for any."""
    found: dict[str, None] = {}
    for other in (decision.problem for decision in decisions):
        if (other.op, other.shapes, other.device) == (problem.op, problem.shapes, problem.device):
            threads = f"{other.threads} thread{'s' if other.threads != 1 else ''}"
            found[f"{other.dtype_name} with {threads}, {other.layout}"] = None
    return [f"known for this shape: {'; '.join(found)}"] if found else []


def format_seconds(seconds: float) -> str:
    """Write a time with the unit that suits it and three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
