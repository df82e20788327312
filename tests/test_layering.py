"""The layers of the package: a folder is one, and every import goes down."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import autoinv

PACKAGE = Path(autoinv.__file__).parent

LAYERS = (
    "__init__",
    "__main__ tune",
    "cli",
    "api patch",
    "ops",
    "calls",
    "planning",
    "tuning",
    "store",
    "environment operation problem settings strategy",
    "native",
    "errors fork lazy version",
)
"""From the top down. What stands in one line may import within it, as long as there is no cycle."""

FOLDERS = {"api", "calls", "cli", "native", "ops", "planning", "store", "tuning"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer_of(module: str) -> int:
    """How far down a module stands."""
    top = module.partition(".")[0]
    return next(depth for depth, names in enumerate(LAYERS) if top in names.split())


def imports_of(path: Path) -> set[str]:
    """The modules of autoinv that a file imports anywhere: at its top, in a function, or for types alone."""
    dotted: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            dotted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:  # a module of the package, or what stands in a module
                inner = f"{node.module}.{alias.name}".removeprefix("autoinv.")
                dotted.add(f"autoinv.{inner}" if inner in FILES else node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy.module":
            dotted |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    ours = {name.removeprefix("autoinv.") for name in dotted if name.startswith("autoinv.")}
    return {found for name in ours if (found := existing(name))}


def existing(name: str) -> str | None:
    """The module that a dotted name is, or is in; None for what is no Python module of ours."""
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name or None


@pytest.mark.parametrize("module", FILES)
def test_every_import_goes_down(module):
    upwards = [name for name in imports_of(FILES[module]) if layer_of(name) < layer_of(module)]
    assert upwards == []


def test_no_imports_form_a_cycle():
    graph = {module: imports_of(path) - {module} for module, path in FILES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


def test_the_folders_and_files_of_the_package_are_those_of_the_layers():
    beside = {path.stem for path in PACKAGE.glob("*.py")}
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == FOLDERS
    assert beside | folders == {name for names in LAYERS for name in names.split()}
    assert len(beside) == 13


def names_in(path: Path) -> set[str]:
    """Every identifier and every text of a file, its docstrings and comments apart."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docs]
    return found | {text for text in texts if isinstance(text, str)}


@pytest.mark.parametrize("module", [m for m in FILES if layer_of(m) > 0 and not m.startswith("ops.inv")])
def test_only_the_table_names_an_operation_outside_its_folder(module):
    named = {name for name in imports_of(FILES[module]) if name.startswith("ops.inv")}
    named |= names_in(FILES[module]) & {"inv", "INV", "inverse", "safe_inv", "inv_ex"}
    assert named == ({"ops.inv", "inv"} if module == "ops.table" else set())


@pytest.mark.parametrize(
    ("folder", "unknown"),
    [
        ("tuning", "ops calls planning"),  # knows no strategy
        ("ops.inv.strategies", "tuning store planning calls"),  # know no timing
    ],
)
def test_a_folder_does_not_import(folder, unknown):
    used = {name for m, path in FILES.items() if m.startswith(folder) for name in imports_of(path)}
    assert {name for name in used if name.partition(".")[0] in unknown.split()} == set()


def test_the_store_uses_no_torch_function():
    for module, path in FILES.items():
        if module.startswith("store"):
            assert "torch" not in names_in(path), module


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
ours = {"autoinv.native._native", "autoinv.tune", "autoinv.tuning.tuner", "autoinv.store.table", "autoinv.api"}
print(sorted(new & (heavy | ours)))
"""

TOUCHED = """
import sys, threading, torch
unexpected = []
ours = (".py", ".pyc", ".so", ".pyi")
def hook(event, args):
    if event in ("os.mkdir", "subprocess.Popen", "_thread.start_new_thread"):
        unexpected.append(event)
    if event == "open" and not (str(args[0]).endswith(ours) or ".pyc." in str(args[0])):
        unexpected.append(str(args[0]))
sys.addaudithook(hook)
import autoinv
print(unexpected, threading.active_count())
"""


def test_importing_autoinv_imports_nothing_heavy():
    assert run_python(HEAVY) == "[]"


def test_importing_autoinv_opens_only_its_own_modules_and_starts_no_thread():
    assert run_python(TOUCHED) == "[] 1"


def test_completion_shows_only_the_public_names():
    assert dir(autoinv) == sorted(autoinv.__all__)
    assert [name for name in autoinv.__all__ if not hasattr(autoinv, name)] == []
