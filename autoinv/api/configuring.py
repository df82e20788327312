"""Setting the settings from a program."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from autoinv import settings
from autoinv.settings import Changes, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack


def configure(**changes: Unpack[Changes]) -> None:
    """Set settings for this process: mode, strategy, budget (seconds), cache_dir, log, isa; None unsets one.

    The environment variables are read once, at first use: what a program changes later, it changes here.

    Raises:
        ValueError: for a value that the setting does not take.
        TypeError: for a name that is no setting.

    Example:
        >>> import autoinv
        >>> autoinv.configure(budget=0.05)
        >>> autoinv.configure(budget=None)
    """
    settings.configure(**changes)


def using(**changes: Unpack[Changes]) -> AbstractContextManager[Settings]:
    """Set settings for this process while a block runs, as ``configure`` does; all threads see them.

    Blocks may overlap: each takes away what it set itself. What ``configure`` sets inside a block, of the
    same name, holds once the block has ended.

    Raises:
        ValueError: for a value that the setting does not take.
        TypeError: for a name that is no setting.

    Example:
        >>> import torch, autoinv
        >>> with autoinv.using(mode="off"):
        ...     X = autoinv.inv(torch.eye(2))
    """
    settings.check(changes)  # here rather than where the block begins
    return settings.using(**changes)
