"""Asking what would run, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from autoinv import native
from autoinv.decisions import Decision
from autoinv.ops.table import dispatcher
from autoinv.problem import Problem

if TYPE_CHECKING:
    from autoinv.report import Explanation


def explain(*operands: torch.Tensor, op: str = "inv") -> Explanation:
    """Say what would run for these operands, why, and how fast each candidate was; times nothing.

    Raises:
        ValueError: when there is no operation ``op``.

    Example:
        >>> import torch, autoinv
        >>> autoinv.explain(torch.eye(3)).source
        'reference'
    """
    from autoinv.report import Explanation

    chooser = dispatcher(op)
    if not chooser.takes(operands[0]):
        name = chooser.operation.references[0]
        return Explanation(None, name, "reference", "PyTorch's own call answers this kind of input", name)
    return explain_problem(Problem.of(op, *operands))


def explain_problem(problem: Problem) -> Explanation:
    """Say what would run for a problem; times nothing."""
    from autoinv.report import Explanation

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
