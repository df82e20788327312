"""What a type checker says about programs that use autoinv."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import autoinv
from autoinv import settings

pytest.importorskip("mypy", reason="mypy is not installed")

PROGRAMS = Path(__file__).parent / "support" / "types"
CACHE = Path(__file__).parent.parent / ".mypy_cache"  # that of scripts/check: torch's own types take 20 s


def mypy(*files: Path) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-version",
        "3.10",
        "--config-file",
        "",
        "--cache-dir",
    ]
    done = subprocess.run(
        [*command, str(CACHE), *map(str, files)], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if ": error:" in line]


@pytest.fixture(scope="module")
def errors():
    return mypy(PROGRAMS / "right.py", PROGRAMS / "wrong.py")


def test_a_program_that_uses_every_public_function_is_clean(errors):
    text = (PROGRAMS / "right.py").read_text()
    assert [name for name in autoinv.__all__ if f"autoinv.{name}" not in text] == []
    assert [line for line in errors if "right.py" in line] == []


def test_each_mistake_is_found_and_nothing_else(errors):
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    mistakes = {number + 1 for number, line in enumerate(lines, 1) if line.startswith("# wrong")}
    found = {int(re.findall(r"wrong\.py:(\d+):", line)[0]) for line in errors if "wrong.py" in line}
    assert mistakes == found


def test_the_typed_settings_are_the_settings():
    assert list(settings.Changes.__annotations__) == list(settings.PARSERS)
