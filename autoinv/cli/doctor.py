"""``doctor``: one plain-text report to paste where help is asked for."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from autoinv import api, environment, errors, native, settings
from autoinv.cli import _folder
from autoinv.cli._arguments import DONE
from autoinv.cli._command import Command
from autoinv.store import exchange, pins
from autoinv.store.decisions import DecisionsFile
from autoinv.store.pins import PinsFile
from autoinv.version import __version__

Section = Iterator[tuple[str, str]]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "AUTOINV_ISA")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # it takes none


def _run(options: argparse.Namespace) -> int:
    del options
    sections = {
        "versions": _versions,
        "processor": _processor,
        "gpu": _gpus,
        "native kernels": _kernels,
        "settings": _settings,
        "files": _files,
        "last warning": _warning,  # at the end: looking at all of the above may cause one
    }
    for title, section in sections.items():
        print(f"{title}:")
        for name, text in section():
            print(f"  {name:<16} {text}")
    return DONE


def _versions() -> Section:
    yield "autoinv", __version__
    yield "torch", torch.__version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    for name in ("numpy", "filelock", "platformdirs", "rich"):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"
    yield "system", platform.platform()


def _processor() -> Section:
    found = environment.of("cpu")
    yield "model", f"{found.cpu_model} ({platform.machine()})"
    yield "usable cores", f"{found.cores} of {os.cpu_count()}"
    yield "torch threads", str(torch.get_num_threads())
    for name in _THREAD_VARIABLES:
        yield name, os.environ.get(name, "not set")
    yield "torch uses", f"{found.isa}, {found.blas}"


def _gpus() -> Section:
    if not torch.cuda.is_available():
        yield "none", "torch finds no usable GPU"
        return
    for i in range(torch.cuda.device_count()):
        yield f"cuda:{i}", environment.of(f"cuda:{i}").gpu


def _kernels() -> Section:
    extension = native.load()
    if extension is None:
        yield "missing", str(native.why_missing())
        return
    build = extension.build()
    yield "present", str(extension.__file__)
    yield "compiler", str(build.get("compiler", "unknown"))
    yield "compiled for", ", ".join(name for name in build if name != "compiler")
    yield "can run here", ", ".join(extension.isas())
    yield "chosen", extension.isa()


def _settings() -> Section:
    now, origins = settings.resolved()
    for name, origin in origins.items():
        value = getattr(now, name)
        where = settings.variable(name) if origin == "environment" else origin
        yield name, f"{'-' if value is None else value} ({where})"


def _files() -> Section:
    folder = settings.cache_dir()
    if folder is None:
        yield "folder", "none: decisions last only as long as a process"
        return
    yield "folder", _folder.state(folder)
    yield "file system", _folder.file_system(folder)
    yield "writable", _folder.writable(folder)
    yield "lock", _folder.lock_works(folder)
    for file in api.files():
        yield "decisions", _decisions(file)
    yield "pins", _pins(pins.opened_pins(folder))
    others = _folder.others(folder, [file.path for file in api.files()])
    yield "other files", ", ".join(others) or "none"


def _decisions(file: DecisionsFile) -> str:
    if fault := _fault(file.path):
        return f"{file.path} ({fault})"
    found = file.all()
    counts = [f"{len(found)} decisions"]
    for what, some in (
        ("timed on a busy processor", [d for d in found if d.contended]),
        ("incomplete", [d for d in found if not d.complete]),
    ):
        counts += [f"{len(some)} {what}"] if some else []
    state = "" if file.path and file.path.exists() else ", no such file yet"
    return f"{file.path} ({', '.join(counts)}{state})"


def _pins(file: PinsFile) -> str:
    return f"{file.path} ({_fault(file.path) or f'{len(file.all())} pins'})"


def _fault(path: Path | None) -> str | None:
    """Return the first thing that is wrong with a file; opening a damaged one would set it aside."""
    try:
        faults = exchange.verify(path) if path else []
    except FileNotFoundError:
        return None
    return f"{len(faults)} bad, verify lists them: {faults[0]}" if faults else None


def _warning() -> Section:
    yield "in this process", errors.last_warning() or "none"


COMMAND = Command(
    "doctor",
    "print a report on versions, processor, settings and files, to paste where you ask for help",
    _add_arguments,
    _run,
    "It holds paths of yours; look it over before you paste it. Nothing is changed, but for a file made and "
    "removed to see whether the folder can be written and locked.",
)
