"""scripts/setup, run in a copy whose Python only records that it was called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (shutil.which("bash") and shutil.which("sha256sum")), reason="the script is for bash with coreutils"
)


@pytest.fixture
def tree(tmp_path):
    """A source tree as a tarball has it, with the script, and a Python that counts its installations."""
    for name, text in {
        "autoinv/__init__.py": "",
        "autoinv/ops/inv.py": "x = 1\n",
        "autoinv/__pycache__/inv.pyc": "",
        "pyproject.toml": "",
        "scripts/constraints.txt": "",
        ".venv/bin/python": '#!/bin/sh\ncase "$*" in *"pip install"*) echo x >> installed;; esac\n',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts/setup")
    return tmp_path


def installations(tree):
    """Run the script, and return how often it has installed so far."""
    done = subprocess.run(["bash", "scripts/setup"], cwd=tree, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    installed = tree / "installed"
    return len(installed.read_text().split()) if installed.exists() else 0


def test_a_tree_without_git_is_installed_once_and_again_after_a_source_changed(tree):
    assert [installations(tree), installations(tree)] == [1, 1]
    (tree / "autoinv/ops/inv.py").write_text("x = 2\n")
    assert installations(tree) == 2


def test_caches_and_build_products_do_not_count_as_a_change(tree):
    installations(tree)
    (tree / "autoinv/__pycache__/more.pyc").write_text("")
    (tree / "autoinv/_native.abi3.so").write_text("")
    assert installations(tree) == 1


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_a_deleted_tracked_file_does_not_stop_the_setup(tree):
    for arguments in (["init", "-q"], ["add", "autoinv"]):
        subprocess.run(["git", *arguments], cwd=tree, check=True, timeout=60)
    (tree / "autoinv/ops/inv.py").unlink()
    assert installations(tree) == 1
