"""Asking what would run, and why."""

from __future__ import annotations

import dataclasses

import torch

from autoinv import native
from autoinv.api.report import Explanation
from autoinv.calls.state import is_ordinary_type
from autoinv.ops.table import dispatcher
from autoinv.planning.dispatch import Dispatcher
from autoinv.problem import Problem, format_shape
from autoinv.store.decisions import Decision


def explain(*operands: torch.Tensor, op: str = "inv") -> Explanation:
    """Say what would run for these operands, why, and how fast each candidate was; times nothing.

    Of an expanded batch only the different matrices are computed: the explanation is that of those.

    Raises:
        ValueError: when there is no operation ``op``.
        TypeError: when the operands are not the tensor that the operation takes.

    Example:
        >>> import torch, autoinv
        >>> autoinv.explain(torch.eye(3)).source
        'reference'
    """
    chooser = dispatcher(op)
    if len(operands) != 1 or not isinstance(operands[0], torch.Tensor):
        given = ", ".join(type(x).__name__ for x in operands) or "nothing"
        raise TypeError(f"explain takes the one tensor that {op} takes, not {given}")
    A = operands[0]
    if not is_ordinary_type(A) or A.is_nested or not chooser.takes(A):
        name = chooser.operation.references[0]
        return Explanation(None, name, "reference", "PyTorch's own call answers this kind of input", name)
    return _explain_taken(chooser, A)


def _explain_taken(chooser: Dispatcher, A: torch.Tensor) -> Explanation:
    planned = chooser.planned_for(A)
    explanation = explain_problem(Problem.of(chooser.operation.name, planned))
    if planned is not A:
        whole, once = format_shape(A.shape), format_shape(planned.shape)
        note = f"{whole} is expanded from {once}: each different matrix is computed once, then copied"
        explanation = dataclasses.replace(explanation, notes=(*explanation.notes, note))
    if chooser.is_demoted(A) or chooser.is_demoted(planned):
        why = "a strategy raised on this shape in this process, so PyTorch's own call answers until it is forgotten"
        return dataclasses.replace(explanation, strategy=explanation.reference, source="reference", why=why)
    return explanation


def explain_problem(problem: Problem) -> Explanation:
    """Say what would run for a problem; times nothing."""
    chooser = dispatcher(problem.op)
    plan = chooser.explain(problem)
    decision = plan.decision
    return Explanation(
        problem,
        plan.strategy.name,
        plan.source,
        plan.why,
        chooser.operation.reference(problem).name,
        dict(decision.seconds) if decision else {},
        dict(decision.rejected) if decision else {},
        tuple(_notes(problem, decision)),
    )


def _notes(problem: Problem, decision: Decision | None) -> list[str]:
    notes = []
    if decision and decision.contended:
        notes.append("timed while the processor was busy; a later process tunes it again")
    if decision and not decision.complete:
        notes.append("the budget ran out before all was timed; a later process tunes it again")
    missing = native.why_missing() if problem.on_cpu else None
    if missing:
        notes.append(f"the native kernels are missing: {missing}")
    return notes
