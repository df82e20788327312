"""How a decision is shown: the explanation of one problem, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoinv.problem import Problem, format_shape


@dataclass(frozen=True)
class Explanation:
    """What would run for a problem, and why. ``str()`` is for people, the fields are for programs.

    ``source`` is pin, sync, file, neighbour, tuned or reference; ``seconds`` are seconds a call, by strategy;
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

    def __str__(self) -> str:
        """Return one line of answer, then a line a strategy, the fastest first."""
        lines = [f"{self._what()}: {self.strategy} ({self.why})"]
        lines += [self._timed(name) for name in sorted(self.seconds, key=self.seconds.__getitem__)]
        width = self._width()
        lines += [f"  {name:<{width}}  {reason}" for name, reason in sorted(self.rejected.items())]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _what(self) -> str:
        p = self.problem
        if p is None:
            return "this input"
        shapes = ", ".join(map(format_shape, p.shapes))
        threads = f"{p.threads} thread" + ("s" if p.threads > 1 else "")
        return f"{p.op} of {shapes} {p.dtype_name} on {p.device}, {threads}, {p.layout}"

    def _width(self) -> int:
        return max(map(len, [*self.seconds, *self.rejected]), default=0)

    def _timed(self, name: str) -> str:
        seconds = self.seconds[name]
        has_ratio = self.reference in self.seconds and seconds > 0
        marks = [f"{self.seconds[self.reference] / seconds:7.2f}x"] if has_ratio else []
        marks += ["reference"] if name == self.reference else []
        marks += ["<- chosen"] if name == self.strategy else []
        return f"  {name:<{self._width()}}  {format_seconds(seconds):>10}  {'  '.join(marks)}"


def format_seconds(seconds: float) -> str:
    """Write a time with the unit that suits it and three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
