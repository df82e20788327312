"""The environment: what a decision depends on besides the problem, looked at again where it may change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autoinv
from autoinv import environment, native
from autoinv.version import __version__

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two processors and the right to leave one",
)


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A system whose /proc and /sys/fs/cgroup the test writes: a function of path and text."""
    (tmp_path / "proc").mkdir()
    monkeypatch.setattr(environment, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(environment, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    forget()

    def write(path: str, text: str) -> None:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    yield write
    forget()


def forget() -> None:
    environment._least_quota.cache_clear()
    environment._with.cache_clear()


@needs_affinity
def test_decisions_made_after_a_change_of_affinity_go_into_a_file_of_their_own(private_cache_dir):
    autoinv.warm((5, 3, 3), budget=1.0)
    before, allowed = environment.of("cpu"), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert environment.of("cpu").cores == 1
        autoinv.warm((5, 3, 3), budget=1.0)
    finally:
        os.sched_setaffinity(0, allowed)
    assert environment.of("cpu") == before
    assert len(list(private_cache_dir.glob("decisions-*.json"))) == 2


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", "cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/a\n", "cgroup/a/cpu.max": "9900000 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "200000 100000\n"}, 2),  # a container of its own
        (
            {
                "proc/self/cgroup": "9:memory:/m\n4:cpu,cpuacct:/docker/f00\n0::/x\n",
                "cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",  # the path is the host's, and not there
                "cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/a\n",
                "cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
        ({"proc/self/cgroup": "nonsense\n0::/a\n", "cgroup/a/cpu.max": "0 0\n"}, 16),
    ],
)
def test_the_quota_of_a_cgroup_counts_as_whole_processors(system, files, cores):
    for path, text in files.items():
        system(path, text)
    assert environment.usable_cores() == cores


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9R14\n", "AMD EPYC 9R14"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n" * 2, "implementer 0x41 part 0xd0c"),
        (
            "CPU implementer\t: 0x41\nCPU part\t: 0xd05\n\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n",
            "implementer 0x41 part 0xd05 part 0xd0b",
        ),
    ],
)
def test_a_processor_is_known_by_its_name_and_an_arm_by_implementer_and_part(system, text, model):
    system("proc/cpuinfo", text)
    assert environment.of("cpu").cpu_model.endswith(model)


def test_a_deadline_of_the_program_passes_through_the_reading_of_the_systems_files(system, monkeypatch):
    def late(path: Path) -> str:
        raise TimeoutError

    monkeypatch.setattr(Path, "read_text", late)
    with pytest.raises(TimeoutError):
        environment.of("cpu")


@pytest.mark.parametrize("name", environment.VARIABLES)
def test_a_variable_that_changes_torchs_times_makes_another_environment(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    forget()
    without = environment.of("cpu")
    monkeypatch.setenv(name, "1")
    forget()
    assert f"{name}=1" in environment.of("cpu").variables.split()
    assert environment.of("cpu").fingerprint != without.fingerprint
    monkeypatch.undo()
    forget()


def test_the_build_of_autoinv_is_its_version_and_a_hash_of_the_kernels_sources():
    version, _, sources = environment.of("cpu").autoinv.partition("+")
    extension = native.load()
    assert version == __version__
    assert sources == (extension.build()["sources"] if extension else "missing")
    assert extension is None or len(sources) == 12


def test_a_cuda_environment_names_capability_driver_toolkit_and_the_preferred_library(system, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "preferred_linalg_library", lambda: "_LinalgBackend.Magma")
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    system("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    assert environment.of("cuda:0").gpu == "NVIDIA H200, capability 9.0, driver 550.54.15, CUDA 12.4, magma"
    assert environment.of("cpu").gpu == "none"


def test_differences_are_said_field_by_field():
    here = environment.of("cpu")
    assert environment.differences(here.as_dict(), here.as_dict()) == []
    there = {**here.as_dict(), "cores": 64, "colour": "red"}
    del there["variables"]
    assert environment.differences(there, here.as_dict()) == [
        f"cores 64 there, {here.cores} here",
        f"variables unknown there, {here.variables!r} here",
        "colour 'red' there, unknown here",
    ]
    assert environment.differences(None, here.as_dict()) == ["it does not say where it was made"]


def test_autoinv_can_be_imported_again_after_its_modules_were_dropped():
    code = """
import sys, torch, autoinv
for name in [name for name in sys.modules if name.split(".")[0] == "autoinv"]:
    del sys.modules[name]
first, A = autoinv, torch.eye(3).repeat(4, 1, 1) * 2
import autoinv
assert autoinv is not first
X = torch.compile(lambda A: autoinv.inv(A), backend="eager", fullgraph=True)(A)
assert torch.equal(X, A / 4) and torch.equal(first.inv(A), X) and torch.equal(autoinv.inv(A), X)
assert torch.equal(torch.vmap(autoinv.inv)(A), X)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
