"""``doctor``: one plain-text report to paste where help is asked for."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import torch

from autoinv import api, environment, errors, native, settings
from autoinv.cli._command import DONE, Command
from autoinv.store import disk, exchange, locking, pins
from autoinv.store.decisions import DecisionsFile
from autoinv.store.pins import PinsFile
from autoinv.version import __version__

Section = Iterator[tuple[str, str]]

_WAIT_S = 1.0
"""How long the trial of a lock may take."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


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
    for name in (*_THREAD_VARIABLES, *environment.VARIABLES):
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
    yield "sources", str(build.get("sources", "unknown"))
    yield "compiled for", ", ".join(name for name in build if name not in ("compiler", "sources"))
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
    yield "folder", _folder_state(folder)
    yield "file system", _file_system(folder)
    yield "writable", _writable(folder)
    yield "lock", _lock_works(folder)
    for file in api.files():
        yield "decisions", _decisions(file)
    yield "pins", _pins(pins.opened_pins(folder))
    others = _others(folder, [file.path for file in api.files()])
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
    if found_elsewhere := exchange.elsewhere(file):
        state += f"; {found_elsewhere}"
    return f"{file.path} ({', '.join(counts)}{state})"


def _pins(file: PinsFile) -> str:
    return f"{file.path} ({_fault(file.path) or f'{len(file.all())} pins'})"


def _fault(path: Path | None) -> str | None:
    """Return the first thing that is wrong with a file; opening a damaged one would quarantine it."""
    try:
        faults = exchange.verify(path) if path else []
    except FileNotFoundError:
        return None
    return f"{len(faults)} bad, verify lists them: {faults[0]}" if faults else None


def _warning() -> Section:
    yield "in this process", errors.last_warning() or "none"


def _folder_state(folder: Path) -> str:
    """Return the folder, and whether and whose it is."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return f"{folder} (not there yet; made with the first decision)"
    except OSError as error:
        return f"{folder} (cannot be looked at: {error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} (no folder)"
    own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return f"{folder} (mode {stat.S_IMODE(status.st_mode):04o}{'' if own else f', of user {status.st_uid}'})"


def _file_system(folder: Path) -> str:
    """Return the kind of file system that holds the folder, or will, and the room on it."""
    there = _nearest(folder)
    try:
        room = f"{shutil.disk_usage(there).free / 2**20:.0f} MiB free"
    except OSError as error:
        room = f"room unknown: {error.strerror}"
    return f"{_kind(there)}, {room}"


def _writable(folder: Path) -> str:
    """Return whether a file can be put there, tried."""
    if folder.exists() and not folder.is_dir():
        return "no: it is no folder"
    if not folder.is_dir():
        return f"{'yes' if os.access(_nearest(folder), os.W_OK) else 'no'}, by the folder above"
    with _trial(folder) as path:
        try:
            disk.replace(path, b"")
        except OSError as error:
            return f"no: {error.strerror or error}"
    return "yes"


def _lock_works(folder: Path) -> str:
    """Return whether a lock there keeps a second holder out, tried."""
    if not folder.is_dir():
        return "not tried, the folder is not there"
    second: list[locking.Lock] = []
    with _trial(folder) as path, locking.locked(path, _WAIT_S) as first:
        if first is not locking.Lock.HELD:
            return "does not work here; saves go on without, and are whole all the same"
        thread = threading.Thread(target=lambda: second.append(_tried(path)))
        thread.start()
        thread.join()
    return (
        "works"
        if second == [locking.Lock.BUSY]
        else "is given to two holders at once; saves are whole all the same"
    )


def _others(folder: Path, ours: Sequence[Path | None]) -> list[str]:
    """Return what else lies in the folder: other environments' files, damaged ones, unknown ones."""
    known = {path.name for path in ours if path} | {pins.FILE_NAME}
    known |= {f"{name}.lock" for name in known}
    try:
        return sorted(path.name for path in folder.iterdir() if path.name not in known)
    except OSError:
        return []


def _tried(path: Path) -> locking.Lock:
    with locking.locked(path, 0.0) as lock:
        return lock


@contextlib.contextmanager
def _trial(folder: Path) -> Iterator[Path]:
    """Name a file to try with, as a temporary one is named, so that a leftover is swept as one; remove it."""
    path = folder / f".autoinv-{os.getpid()}-{os.urandom(8).hex()}.tmp"
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _nearest(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), folder)


def _kind(place: Path) -> str:
    """Return the file system's name from Linux's mount table: the last mount of the longest path above."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "kind unknown"
    best, kind = -1, "kind unknown"
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
        if place.resolve().is_relative_to(point) and len(point) >= best:
            best, kind = len(point), f"{right.split()[0]} mounted at {point}"
    return kind


COMMAND = Command(
    "doctor",
    "print a report on versions, processor, settings and files, to paste where you ask for help",
    _add_arguments,
    _run,
    "It holds paths of yours; look it over before you paste it. Nothing is changed, but for a file made and "
    "removed to see whether the folder can be written and locked.",
)
