"""A build without a compiler is a supported install: only the kernels are missing, and this is reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROBE = """
import torch, autoinv
from autoinv import native
A = torch.randn(4, 3, 3, dtype=torch.float64)
assert torch.allclose(autoinv.inv(A), torch.linalg.inv(A))
autoinv.warm(A.shape, dtype=A.dtype, budget=1.0)
e = autoinv.explain(A)
print(autoinv.__file__)
print(native.load(), e.strategy, e.rejected["native"])
print(e.notes[-1])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel built on a machine without a compiler."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "autoinv", source / "autoinv", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("wheel")
    env = {
        **os.environ,
        "CXX": "/nonexistent/compiler",
        "CMAKE_ARGS": "-DCMAKE_CXX_COMPILER=/nonexistent/compiler",
    }
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        target,
        source,
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = Path(target).glob("*.whl")
    return built


def test_the_wheel_is_for_any_machine_and_contains_no_extension(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".so", ".cpp", ".hpp"))] == []
    assert "autoinv/py.typed" in names


def test_the_install_without_kernels_answers_tunes_and_reports_what_is_missing(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "AUTOINV_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    where, answer, note = done.stdout.splitlines()
    assert where == str(tmp_path / "autoinv" / "__init__.py")
    assert answer.startswith("None ")
    assert "native kernels are missing" in note
    assert "no strategy" not in done.stderr
