"""Imports go down the house's floors, never up, and importing autoinv is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import autoinv

PACKAGE = Path(autoinv.__file__).parent

FLOORS = (
    (1, "native problem environment settings setting_values errors version lazy fork strategy operation"),
    (2, "store"),
    (3, "tuning"),
    (4, "planning"),
    (5, "calls ops"),
    (7, "api tune cli patch"),
)
TOP = 8  # the package itself: the public names


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> int:
    found = [
        (len(name), floor)
        for floor, names in FLOORS
        for name in names.split()
        if module == name or module.startswith(f"{name}.")
    ]
    if not module:
        return TOP
    assert found, f"autoinv.{module} stands on no floor: add it to FLOORS"
    return max(found)[1]


def imports_of(path: Path) -> set[str]:
    """The modules of autoinv that a file imports when it is itself imported (not inside its functions)."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    later = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_types(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in later:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name.removeprefix("autoinv.") for name in found if name.startswith("autoinv.")}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


FILES = sorted(PACKAGE.rglob("*.py"))


def existing(module: str) -> str | None:
    """The module that a dotted name is, or is in; None for what is no module of ours."""
    while module:
        path = PACKAGE.joinpath(*module.split("."))
        if path.with_suffix(".py").exists() or path.is_dir():
            return module
        module = module.rpartition(".")[0]
    return None


@pytest.mark.parametrize("path", FILES, ids=lambda p: module_name(p) or "autoinv")
def test_no_module_imports_one_of_a_higher_floor(path):
    here = floor_of(module_name(path))
    used = {existing(name) for name in imports_of(path)} - {None}
    upwards = sorted(name for name in used if floor_of(name) > here)
    assert upwards == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: module_name(p) or "autoinv")
def test_measuring_knows_no_strategy_and_strategies_no_timing(path):
    used = imports_of(path)
    name = module_name(path)
    if name == "tuning.timing":
        assert not {u for u in used if u.startswith(("ops",))}
    if name.startswith("ops.inv.strategies"):
        assert not {u for u in used if u.startswith(("tuning", "store"))}


@pytest.mark.parametrize("path", FILES, ids=lambda p: module_name(p) or "autoinv")
def test_every_file_has_one_job(path):
    assert len(path.read_text().splitlines()) <= 220


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = """
import sys, torch
before = set(sys.modules)
import autoinv
new = set(sys.modules) - before
heavy = {"filelock", "platformdirs", "rich", "matplotlib", "statistics", "torch._dynamo", "torch._inductor"}
print(sorted(new & (heavy | {"autoinv.native._native", "autoinv.tune", "autoinv.tuning.tuner"})))
"""

TOUCHED = """
import sys, threading, torch
odd = []
ours = (".py", ".pyc", ".so", ".pyi")
def hook(event, args):
    if event in ("os.mkdir", "subprocess.Popen", "_thread.start_new_thread"):
        odd.append(event)
    if event == "open" and not (str(args[0]).endswith(ours) or ".pyc." in str(args[0])):
        odd.append(str(args[0]))
sys.addaudithook(hook)
import autoinv
print(odd, threading.active_count())
"""


def test_importing_autoinv_imports_nothing_heavy():
    assert run_python(HEAVY) == "[]"


def test_importing_autoinv_opens_only_its_own_modules_and_starts_no_thread():
    assert run_python(TOUCHED) == "[] 1"
