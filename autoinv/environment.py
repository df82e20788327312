"""What a decision depends on besides the problem: processor, cores, torch and BLAS build, GPU, autoinv."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from autoinv import native
from autoinv.version import __version__


@dataclass(frozen=True)
class Environment:
    """One machine with one set of versions; decisions of another environment are not used."""

    cpu_model: str
    isa: str
    cores: int
    torch: str
    blas: str
    gpu: str
    native: str
    autoinv: str

    def as_dict(self) -> dict[str, object]:
        """The environment as it stands in the decisions file."""
        return asdict(self)

    @property
    def fingerprint(self) -> str:
        """A hash of the environment: 16 hexadecimal digits of its SHA-256."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@functools.lru_cache(maxsize=32)
def of(device: str) -> Environment:
    """Return the environment of problems on this device; a CPU problem's knows no GPU."""
    extension = native.load()
    return Environment(
        cpu_model=_cpu_model(),
        isa=torch.backends.cpu.get_cpu_capability(),
        cores=usable_cores(),
        torch=torch.__version__,
        blas=_blas(),
        gpu="none" if device == "cpu" else _gpu(device),
        native=extension.isa() if extension else "missing",
        autoinv=__version__,
    )


def _cpu_model() -> str:
    try:
        found = re.search(
            r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M
        )
    except (OSError, UnicodeDecodeError):  # not Linux
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _blas() -> str:
    text = torch.__config__.show()
    mkl = re.search(r"Math Kernel Library Version ([\d.]+)", text)
    if mkl:
        return f"mkl {mkl.group(1)}"
    info = re.search(r"BLAS_INFO=(\w+)", text)
    return info.group(1) if info else "unknown"


def _gpu(device: str) -> str:
    kind = torch.device(device).type
    if kind != "cuda":
        return kind
    driver = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"{torch.cuda.get_device_name(device)}, {driver}"
