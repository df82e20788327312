"""README agrees with the code: its examples run, and its tables name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import autoinv
from autoinv import settings
from autoinv.cli import COMMANDS
from autoinv.ops.inv.operation import INV

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_of_the_readme_runs(number):
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), {})


def test_every_strategy_is_described():
    assert [name for name in INV.names() if f"`{name}`" not in TEXT] == []


def test_every_setting_is_listed_with_its_variable_and_default():
    for name, default in vars(settings.Settings()).items():
        (row,) = re.findall(rf"^\| `{name}` \| `{settings.variable(name)}` \| ([^|]*) \|", TEXT, re.M)
        shown = {"cache_dir": "the user's cache dir", "strategy": "-"}.get(name, f"`{default}`")
        assert row == shown


def test_every_command_and_every_public_name_is_mentioned():
    assert [c.name for c in COMMANDS if f"{c.name}" not in TEXT] == []
    assert [n for n in autoinv.__all__ if not n.startswith("__") and f"{n}" not in TEXT] == []


def test_no_placeholder_is_left():
    assert re.findall(r"@[A-Z]+@", TEXT) == []
