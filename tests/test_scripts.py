"""The scripts use only what their shared modules hold: nothing else in the suite runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
FILES = sorted(SCRIPTS.glob("*.py"))


def names_of(module: str) -> set[str]:
    """What a shared module defines at its top level."""
    found: set[str] = set()
    for node in ast.parse((SCRIPTS / f"{module}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_a_script_asks_of_a_shared_module_is_there(path):
    shared = {p.stem: names_of(p.stem) for p in FILES if p.stem.startswith("_")}
    asked = [
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in shared
    ]
    assert [(module, name) for module, name in asked if name not in shared[module]] == []
