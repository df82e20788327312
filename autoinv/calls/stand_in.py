"""What stands under a name of torch's inside a block of `patched`: it answers in our way, and is taken for torch's.

Programs look at functions as well as call them. They keep handlers in a dict by function, pickle them, script them and
ask for their names. So a stand-in compares and hashes like the original, which alone overriding arguments get to see.
"""

from __future__ import annotations

import functools
import pkgutil
import types
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

from autoinv.calls.call import Call, Replaced
from autoinv.calls.state import is_ordinary_type, is_overridden, overrides
from autoinv.calls.torchscript import script_as


class Reach:
    """In which threads the blocks of one operation hold. Who changes it holds a lock."""

    def __init__(self) -> None:
        self.threads: dict[int, int] = {}
        """How many blocks are open, by the thread that entered."""
        self.everywhere = 0
        """How many blocks are open that reach all threads."""


class StandIn:
    """What both kinds have in common."""

    __slots__ = ()
    original: Any
    replaced: Replaced

    def __eq__(self, other: object) -> bool:
        """Whether the other is the original or stands in for it too."""
        same: bool = self.original == (other.original if isinstance(other, StandIn) else other)
        return same

    def __hash__(self) -> int:
        """Return the original's."""
        return hash(self.original)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        """Pickle and copy by name, as functions are: what is read back is what stands there then."""
        return pkgutil.resolve_name, (self.replaced.path,)

    def __repr__(self) -> str:
        """Say what it is; the original follows."""
        return f"<autoinv.patched {self.original!r}>"

    @property
    def __wrapped__(self) -> Any:
        """The original, for `inspect`."""
        return self.original

    def __getattr__(self, name: str) -> Any:
        """Return the original's ``__name__``, ``__self__`` and what else it has."""
        return getattr(self.original, name)


class _Function(StandIn):
    """Stands in a module."""

    __slots__ = ("__weakref__", "original", "replaced")


class _Method(StandIn, property):
    """Stands in a class. A property, because no quicker way binds it to a tensor: 95 ns, by ``__get__`` 150."""

    __slots__ = ("__weakref__", "original", "replaced")


def stand_in(call: Call, replaced: Replaced, original: Any, reach: Reach) -> StandIn:
    """Return what to put under a name where ``original`` stands."""
    function = replaced.function or call.function
    threads = reach.threads

    def is_open() -> bool:
        return get_ident() in threads or reach.everywhere > 0

    # Dynamo shall ask, and take the answer for a constant: it cannot look into this.
    is_open._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def answer_any(given: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if is_open():
            matched = _matched(replaced, given, keywords)
            if matched is not None:
                return function(*matched[0], **matched[1])
        return _torchs_own(replaced, original, given, keywords)

    # The tests of the usual call stand in both: a call of ours would cost it 50 ns.
    def called(self: StandIn, A: Any = _NOTHING, /, *others: Any, **keywords: Any) -> Any:
        if (
            is_dynamo_compiling()
            or type(A) is not Tensor
            or others
            or keywords
            or not (get_ident() in threads or reach.everywhere)
            or has_torch_function_unary(A)
        ):
            return answer_any(() if A is _NOTHING else (A, *others), keywords)
        return function(A)

    @functools.wraps(original)
    def method(A: Any = _NOTHING, /, *others: Any, **keywords: Any) -> Any:
        if (
            is_dynamo_compiling()
            or type(A) is not Tensor
            or others
            or keywords
            or not (get_ident() in threads or reach.everywhere)
            or has_torch_function_unary(A)
        ):
            return answer_any(() if A is _NOTHING else (A, *others), keywords)
        return function(A)

    is_method = isinstance(replaced.owner, type)
    # The class of this one alone: a special method and a docstring are looked up in the class.
    names = {
        "__slots__": (),
        "__call__": called,
        "__doc__": original.__doc__,
        "__module__": getattr(original, "__module__", None),
        "__name__": getattr(
            original, "__name__", replaced.name
        ),  # a property has one itself, from Python 3.13 on
    }
    kind: Any = type(StandIn.__name__, (_Method if is_method else _Function,), names)
    bind: Any = method
    made = kind(bind.__get__, doc=original.__doc__ or "") if is_method else kind()
    made.original = original
    made.replaced = replaced
    if original is replaced.original and isinstance(original, types.BuiltinFunctionType):
        # Both: TorchScript's table may be made while the stand-in is what it finds under the name.
        script_as(original, f"aten::{original.__name__}")
        script_as(made, f"aten::{original.__name__}")
    return made


_NOTHING = object()

_Matched = tuple[tuple[Tensor, ...], dict[str, Any]]


def _matched(replaced: Replaced, given: tuple[Any, ...], keywords: Mapping[str, Any]) -> _Matched | None:
    """Return the operands, and the options by name; None for what is torch's: an error, or an override."""
    options = dict(keywords)
    by_name = replaced.operand_names[len(given) :]
    if not all(name in options for name in by_name) or len(given) > len(replaced.operand_names):
        return None
    operands = (*given, *[options.pop(name) for name in by_name])
    if not options.keys() <= replaced.options or not all(isinstance(x, Tensor) for x in operands):
        return None
    return None if _sees_the_original(operands, options.get("out")) else (operands, options)


def _sees_the_original(operands: tuple[Tensor, ...], out: Any) -> bool:
    """Whether an argument or a function mode overrides torch's functions, or ``out`` is none that torch takes."""
    outs = () if out is None else out if isinstance(out, tuple | list) else (out,)
    if not all(isinstance(x, Tensor) for x in outs):
        return True
    tensors = (*operands, *outs)
    if is_dynamo_compiling():
        return not all(map(is_ordinary_type, tensors))
    return has_torch_function(tensors) and (is_overridden() or any(map(overrides, tensors)))


def _torchs_own(
    replaced: Replaced, original: Any, given: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Any:
    is_whole = len(given) == len(replaced.operand_names) and not keywords
    if isinstance(replaced.owner, type) and is_whole and has_torch_function(given):
        # The method itself would look its own name up in the class, and hand over what it finds.
        return handle_torch_function(original, given, *given)
    return original(*given, **keywords)
