"""``run``: a program with torch's own functions patched, and at its end whether that was worth it."""

from __future__ import annotations

import argparse
import atexit
import builtins
import contextlib
import io
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path

from autoinv.api.explaining import format_seconds
from autoinv.api.recording import Recorder, Tally, target_of
from autoinv.cli._command import Command, CommandError
from autoinv.patch import patched
from autoinv.planning.events import DecisionEvent, on_decision
from autoinv.problem import Problem

_MOST_LISTED = 30
_FEW = 10
_LEAST_PART = 0.01
"""Of a program's time; what saves less is not worth it."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help="add the problems that the program meets to this file, for `warm --from FILE`",
    )
    parser.add_argument(
        "-m", dest="is_module", action="store_true", help="PROGRAM is a module's name, as for `python -m`"
    )
    parser.add_argument(
        "program", metavar="PROGRAM ...", nargs=argparse.REMAINDER, help="a script, and its own arguments"
    )


def _run(options: argparse.Namespace) -> Callable[[], int]:
    if not options.program:
        raise CommandError("run needs a program: run SCRIPT ARGUMENTS, or run -m MODULE ARGUMENTS")
    if not options.is_module and not Path(options.program[0]).exists():
        raise CommandError(f"can't open {options.program[0]!r}: there is no such file")
    try:
        target = target_of(options.record) if options.record else None
    except ValueError as error:
        raise CommandError(str(error)) from None
    return partial(_run_program, options.program, options.is_module, target)


def _run_program(program: Sequence[str], is_module: bool, target: Path | None) -> int:
    """Run the program as Python itself would, patched to the end of the process."""
    report = _Report(target)
    atexit.register(
        report.print
    )  # first, so that it comes after the program's own, when its threads have ended
    patched(all_threads=True).__enter__()
    report.start()
    try:
        if is_module:
            _execute_module("-m", program[1:], program[0])
            return 0
        path = str(Path(program[0]).absolute())
        if pkgutil.get_importer(path) is not None:  # a folder or zip file with a __main__
            if getattr(sys.flags, "safe_path", False):
                sys.path.insert(0, path)  # Python adds it all the same
            else:
                _replace_first_path(path)
            _execute_module(program[0], program[1:], None)
        else:
            _replace_first_path(str(Path(path).resolve().parent))
            _execute_file(path, program)
    except BaseException:
        _show_only_the_programs_frames()
        raise
    return 0


def _replace_first_path(entry: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # -P, from Python 3.11 on: then there is none to replace
        sys.path[0] = entry


def _execute_module(argv0: str, arguments: Sequence[str], name: str | None) -> None:
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv[:] = [argv0, *arguments]
    # What Python itself calls for `-m`; unlike `runpy.run_module` it leaves the program's `__main__` in place, which
    # its threads and exit handlers may still need.
    runpy._run_module_as_main(name or "__main__", name is not None)  # type: ignore[attr-defined]


def _execute_file(path: str, argv: Sequence[str]) -> None:
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)  # of a .pyc
    if code is None:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins, __file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path)
    )
    sys.argv[:] = argv
    exec(code, main.__dict__)


def _show_only_the_programs_frames() -> None:
    """Have Python leave our own frames out of the traceback with which it ends."""
    shown = sys.excepthook
    own = {frame.f_code.co_filename for frame in _frames()}

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in own:
            trace = trace.tb_next
        shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _frames() -> Iterator[types.FrameType]:
    """Yield the frames from here outwards, and that of `runpy`."""
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


class _Report:
    """What the program met and what that took, printed on standard error when it has ended."""

    def __init__(self, target: Path | None) -> None:
        self._target = target
        self._process = os.getpid()
        self._recorder = Recorder(sampled=True)
        self._choosing_s = 0.0

    def start(self) -> None:
        """Begin to count."""
        on_decision(self._note)
        self._recorder.start()

    def _note(self, event: DecisionEvent) -> None:
        self._choosing_s += event.spent_s if event.tuned else 0.0

    def print(self) -> None:
        """End it."""
        if os.getpid() != self._process:  # a forked child that ends as a program does
            return
        elapsed_s = self._recorder.elapsed_s()
        self._recorder.stop()
        lines = report_lines(self._recorder.tallies, elapsed_s, self._choosing_s)
        if self._target is not None and self._recorder.save(self._target):
            lines.append(f"autoinv: the problems were added to {self._target}")
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # standard error is closed, or there is none
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()


def report_lines(tallies: dict[Problem, Tally], elapsed_s: float, choosing_s: float) -> list[str]:
    """Return the report: a line for each problem, the most expensive first, and whether it is worth it."""
    met = {problem: tally for problem, tally in tallies.items() if tally.calls}
    if not met:
        return [
            "autoinv: the program met no problem: no call in this process reached torch's functions while patched"
        ]
    ordered = sorted(met.items(), key=lambda item: (-_seconds(item[1])[0], -item[1].calls))
    calls = sum(tally.calls for tally in met.values())
    lines = [f"autoinv: {_many(calls, 'call')} of {_many(len(met), 'problem')} in {_time(elapsed_s)}"]
    lines.append(f"{'calls':>14} {'PyTorch':>10} {'autoinv':>10}  problem")
    for problem, tally in ordered[:_MOST_LISTED]:
        torch_s, own_s = (_time(s) for s in _seconds(tally)) if tally.samples else ("-", "-")
        lines.append(f"{tally.calls:>14,} {torch_s:>10} {own_s:>10}  {problem.key}")
    rest = ordered[_MOST_LISTED:]
    if rest:
        lines.append(
            f"{sum(tally.calls for _, tally in rest):>14,} {'':>21}  {_many(len(rest), 'problem')} more"
        )
    return [*lines, *_verdict(met, elapsed_s, choosing_s)]


def _verdict(met: dict[Problem, Tally], elapsed_s: float, choosing_s: float) -> list[str]:
    timed = [tally for tally in met.values() if tally.samples]
    if not timed:
        return [
            "autoinv: no call could be timed within a hundredth of the run: let it run longer to know more"
        ]
    torch_s, own_s = (sum(column) for column in zip(*map(_seconds, timed), strict=True))
    saved_s = torch_s - own_s
    lines = []
    if len(timed) < len(met):
        lines.append("autoinv: - stands where no call could be timed within a hundredth of the run")
    samples = sum(tally.samples for tally in timed)
    lines.append(
        f"autoinv: PyTorch would have taken {_time(torch_s)} and autoinv took {_time(own_s)}, "
        f"by {_many(samples, 'call')} timed both ways"
    )
    if samples < _FEW:
        lines.append("autoinv: so few calls give a rough figure; in a longer run more are timed")
    if choosing_s:
        lines.append(f"autoinv: choosing strategies took {_time(choosing_s)}, once: they are remembered")
    without_s = elapsed_s + saved_s
    if saved_s < _LEAST_PART * without_s:
        gain = f"it saved {_time(saved_s)}" if saved_s > 0 else "it saved nothing"
        lines.append(f"autoinv: not worth it here: {gain} of {_time(elapsed_s)}")
    else:
        lines.append(
            f"autoinv: it saved {_time(saved_s)}, {100 * saved_s / without_s:.0f} % of the "
            f"{_time(without_s)} that the program would have taken"
        )
    return lines


def _seconds(tally: Tally) -> tuple[float, float]:
    """Return the seconds of all calls by PyTorch and by autoinv, grown from those that were timed."""
    each = tally.calls / tally.samples if tally.samples else 0.0
    return tally.torch_s * each, tally.own_s * each


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 1000 else format_seconds(seconds)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


COMMAND = Command(
    "run",
    "run a program with autoinv in place of torch's functions, and say what that saved",
    _add_arguments,
    _run,
    "The program runs as under `python PROGRAM`, in all its threads with `autoinv.patched()` on; its output, exit "
    "code and errors are its own. At the end standard error says how often each problem was met, how long PyTorch "
    "would have taken and how long autoinv took: some calls are timed both ways, in at most a hundredth of the "
    "time. Processes that the program starts are not counted.\n\n"
    "example: python -m autoinv.tune run --record problems.json train.py --epochs 3",
)
