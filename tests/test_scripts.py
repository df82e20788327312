"""The scripts use only names that their shared modules define: nothing else in the suite runs them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
FILES = {path.relative_to(SCRIPTS).as_posix(): path for path in sorted(SCRIPTS.rglob("*.py"))}
SHARED = {name.removesuffix(".py").replace("/", ".") for name in FILES if name.startswith("measuring/")}
COMMAND_LINES = [name for name, path in FILES.items() if "parse_args" in path.read_text()]


def names_of(module: str) -> set[str]:
    """What a module of the scripts defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(FILES[f"{module.replace('.', '/')}.py"].read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def used_names(text: str) -> Iterator[tuple[str, str]]:
    """Yield each module of the scripts and the name in it that a script imports or reads from it."""
    tree = ast.parse(text)
    modules: dict[str, str] = {}  # by the name that they have in this script
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "measuring":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in SHARED:
                    modules[alias.asname or alias.name] = inner
                else:
                    yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if f"{alias.name}.py" in FILES:
                    modules[alias.asname or alias.name] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def undefined_names(text: str) -> list[str]:
    """Return what a script uses and no shared module defines."""
    return [
        f"{module}.{name}"
        for module, name in used_names(text)
        if module not in {*SHARED, *(n.removesuffix(".py") for n in FILES)} or name not in names_of(module)
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_script_uses_only_names_that_its_shared_modules_define(name):
    assert undefined_names(FILES[name].read_text()) == []


def test_the_scripts_share_modules():
    assert {module for path in FILES.values() for module, _ in used_names(path.read_text())} == {
        "bench_busy",
        "measuring.audit_budget",
        "measuring.audit_busy",
        "measuring.audit_quiet",
        "measuring.bench",
        "measuring.first_calls",
        "measuring.load",
    }


@pytest.mark.parametrize(
    ("text", "undefined"),
    [
        ("from measuring import bench\nbench.Bars().at_most('x', 1, 2)", []),
        ("from measuring import bench\nbench.no_such_name()", ["measuring.bench.no_such_name"]),
        ("from measuring import load as own\nown.no_such_name", ["measuring.load.no_such_name"]),
        ("from measuring.bench import no_such_name", ["measuring.bench.no_such_name"]),
        ("from measuring import no_such_module", ["measuring.no_such_module"]),
        ("from measuring.no_such_module import name", ["measuring.no_such_module.name"]),
        ("import bench_busy\nbench_busy.no_such_name", ["bench_busy.no_such_name"]),
    ],
)
def test_an_undefined_name_is_noticed(text, undefined):
    assert undefined_names(text) == undefined


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_script_imports_what_it_needs_and_has_a_help_text(name):
    # A script finds its shared modules beside it, which a safe path excludes.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    command = [sys.executable, FILES[name], "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage:")
