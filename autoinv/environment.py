"""What a decision depends on besides the problem: processor, cores, torch and BLAS build, GPU, autoinv."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from autoinv import native
from autoinv.errors import is_foreign
from autoinv.version import __version__

VARIABLES = (
    "OMP_WAIT_POLICY",  # whether torch's threads sleep or spin between calls: the price of waking a team
    "GOMP_SPINCOUNT",  # how long gcc's runtime lets them spin
    "MKL_DYNAMIC",  # whether MKL may take fewer threads than torch asks for
    "MKL_ENABLE_INSTRUCTIONS",  # the instruction set of MKL's own kernels
)
"""Environment variables that torch's runtimes read when they start, and that change its times."""


@dataclass(frozen=True)
class Environment:
    """One machine with one set of versions; decisions of another environment are not used."""

    cpu_model: str
    isa: str
    cores: int
    """Processors that this process may use, its cgroup's quota counted in whole ones."""
    variables: str
    """Those of `VARIABLES` that are set."""
    torch: str
    blas: str
    gpu: str
    native: str
    autoinv: str
    """The version and a hash of the kernels' sources: another build of the same version has other times."""

    def as_dict(self) -> dict[str, object]:
        """The environment as it stands in the decisions file."""
        return asdict(self)

    @property
    def fingerprint(self) -> str:
        """A hash of the environment: 16 hexadecimal digits of its SHA-256."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(there: object, own: Mapping[str, object]) -> list[str]:
    """Say field by field where two environments, as they stand in their files, differ."""
    if not isinstance(there, dict):
        return ["it does not say where it was made"]
    names = [*own, *sorted(set(there) - set(own))]
    return [
        f"{name} {_shown(there, name)} there, {_shown(own, name)} here"
        for name in names
        if there.get(name) != own.get(name)
    ]


def _shown(fields: Mapping[str, object], name: str) -> str:
    return f"{fields[name]!r:.80}" if name in fields else "unknown"


def of(device: str) -> Environment:
    """Return the environment of problems on this device; a CPU problem's knows no GPU.

    The affinity is asked for anew each time, as a program may change it while it runs.
    """
    extension = native.load()
    isa = extension.isa() if extension else "missing"
    linalg = "" if device == "cpu" else _preferred_linalg(device)
    return _with(device, usable_cores(), isa, linalg)


@functools.lru_cache(maxsize=32)
def _with(device: str, cores: int, isa: str, linalg: str) -> Environment:
    return Environment(
        cpu_model=_cpu_model(),
        isa=torch.backends.cpu.get_cpu_capability(),
        cores=cores,
        variables=" ".join(f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)),
        torch=torch.__version__,
        blas=_blas(),
        gpu="none" if device == "cpu" else f"{_gpu(device)}{linalg}",
        native=isa,
        autoinv=f"{__version__}+{_sources()}",
    )


def _sources() -> str:
    """Return the hash of the kernels' sources, which CMake takes when it builds them: on every node the same."""
    extension = native.load()
    return str(extension.build().get("sources", "unknown")) if extension else "missing"


def usable_cores() -> int:
    """Return how many processors this process may use: its affinity, and its cgroup's quota rounded up."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _least_quota()
    return allowed if quota is None else min(allowed, math.ceil(quota))


@functools.lru_cache(maxsize=1)
def _least_quota() -> float | None:
    """Return the processors that this process's cgroup and those above it may use; None without a limit."""
    found = (_quota(folder) for folder in _cgroup_folders())
    return min((quota for quota in found if quota is not None), default=None)


_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def _cgroup_folders() -> Iterator[Path]:
    """Yield the folders of this process's cgroup and of those above it; in a container some are not there."""
    for line in _read(_PROC / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:  # version 2
            root = _CGROUPS
        elif "cpu" in controllers.split(","):  # version 1
            root = next(
                (p for p in (_CGROUPS / controllers, _CGROUPS / "cpu") if p.is_dir()), _CGROUPS / "cpu"
            )
        else:
            continue
        inner = Path(path.lstrip("/"))
        yield from (root / part for part in (inner, *inner.parents))


def _quota(folder: Path) -> float | None:
    """Return the processors that a cgroup may use; None without a limit."""
    texts = _read(folder / "cpu.max").split()
    if not texts:
        texts = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = map(int, texts)
    except ValueError:  # "max", or no such files
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    """Return a file of the system's; nothing where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        if is_foreign(error):
            raise
        return ""


def _cpu_model() -> str:
    text = _read(_PROC / "cpuinfo")  # empty where it is not Linux
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.M)
    if found:
        return found.group(1).strip()
    arm = re.findall(r"^CPU (implementer|part)\s*:\s*(\w+)$", text, re.M)
    if arm:  # a processor with large and small cores has several parts
        return " ".join(dict.fromkeys([platform.machine(), *(f"{name} {code}" for name, code in arm)]))
    return platform.processor() or platform.machine()


def _blas() -> str:
    text = torch.__config__.show()
    mkl = re.search(r"Math Kernel Library Version ([\d.]+)", text)
    if mkl:
        return f"mkl {mkl.group(1)}"
    info = re.search(r"BLAS_INFO=(\w+)", text)
    return info.group(1) if info else "unknown"


def _gpu(device: str) -> str:
    """Return model, capability, driver and toolkit: kernels are chosen by all four."""
    kind = torch.device(device).type
    if kind != "cuda":
        return kind
    toolkit = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    major, minor = torch.cuda.get_device_capability(device)
    parts = (torch.cuda.get_device_name(device), f"capability {major}.{minor}", _driver(), toolkit)
    return ", ".join(part for part in parts if part)


def _driver() -> str:
    found = re.search(r"Kernel Module(?:\s+for \S+)?\s+(\S+)", _read(_PROC / "driver/nvidia/version"))
    return f"driver {found.group(1)}" if found else ""


def _preferred_linalg(device: str) -> str:
    """Return the library that the program chose for linear algebra on CUDA: cuSOLVER and MAGMA differ many times."""
    if torch.device(device).type != "cuda":
        return ""
    name = str(torch.backends.cuda.preferred_linalg_library()).rpartition(".")[2].lower()
    return "" if name == "default" else f", {name}"
