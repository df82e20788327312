"""Bytes on disk: read with suspicion, written whole or not at all. Knows nothing of what they mean.

A symbolic link in a file's place is read through, and its target judged by owner and mode: in a mounted configuration
of Kubernetes every file is one. Saving and quarantine replace or move the link, never its target.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from autoinv.errors import ignoring_os_errors, is_foreign

Identity = tuple[int, int, int]
"""What tells one state of a file from the next: inode, modification time in ns, size in bytes."""

_TEMPORARY_PREFIX = ".autoinv-"
_TEMPORARY_SUFFIX = ".tmp"
_STALE_AGE_S = 3600.0

_NOT_ON_WINDOWS = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC")
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
for _name in _NOT_ON_WINDOWS:
    _READ_FLAGS |= getattr(os, _name, 0)
    _WRITE_FLAGS |= getattr(os, _name, 0)


class UnusableError(Exception):
    """A file that must be left alone: neither used nor overwritten.

    ``transient`` says that another try may succeed although the file did not change.
    """

    def __init__(self, reason: str, *, transient: bool = False) -> None:
        """Say why."""
        super().__init__(reason)
        self.reason = reason
        self.transient = transient


def identity(path: Path) -> Identity | None:
    """Return what changes when the file, or a link on the way to it, is replaced; None when there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - one name for all system calls, so that tests can fail each
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_foreign(error):
            raise
        return (-1, error.errno or 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def read(path: Path, limit: int, *, any_owner: bool = False) -> bytes:
    """Return the whole of a regular file of at most ``limit`` bytes.

    Unless ``any_owner``, it must belong to this user or root, and be writable by its owner only.

    Raises:
        FileNotFoundError: when there is none.
        UnusableError: when it is anything else, or cannot be read.
    """
    try:
        _check(os.stat(path), limit, any_owner)  # noqa: PTH116 - before opening, which acts on a device or a FIFO's writer
        descriptor = os.open(path, _READ_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        if is_foreign(error):
            raise
        raise UnusableError(f"it cannot be opened ({_cause(error)})", transient=True) from error
    try:
        _check(os.fstat(descriptor), limit, any_owner)
        return _read_all(descriptor, limit)
    except OSError as error:
        if is_foreign(error):
            raise
        raise UnusableError(f"it cannot be read ({_cause(error)})", transient=True) from error
    finally:
        with ignoring_os_errors():
            os.close(descriptor)


def _check(status: os.stat_result, limit: int, any_owner: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnusableError("it is not a regular file")
    if status.st_size > limit:
        raise UnusableError(f"it is larger than {limit >> 20} MiB")
    if hasattr(os, "geteuid") and not any_owner:  # Windows keeps no such owner and mode
        if status.st_uid not in (0, os.geteuid()):
            raise UnusableError(f"it belongs to another user (uid {status.st_uid})")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnusableError("other users can write it")


def _read_all(descriptor: int, limit: int) -> bytes:
    chunks: list[bytes] = []
    left = limit + 1
    while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:  # it has grown since its status was read
        raise UnusableError(f"it is larger than {limit >> 20} MiB")
    return b"".join(chunks)


def make_folder(folder: Path) -> None:
    """Make the folder, for its owner only, unless it is there.

    Raises:
        OSError: when that fails.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - Path.mkdir stats again and hides which call failed


def replace(path: Path, data: bytes, *, private: bool = True) -> None:
    """Put ``data`` in the file's place, so that any reader sees the old content or the new one, whole.

    A new file is for its owner only (``private=False``: the umask decides); who could read the old one, can
    read the new one.

    Raises:
        OSError: when any step fails; the old file is untouched then.
    """
    make_folder(path.parent)
    temporary = path.parent / f"{_TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(8).hex()}{_TEMPORARY_SUFFIX}"
    descriptor = os.open(temporary, _WRITE_FLAGS, 0o600 if private else 0o666)
    try:
        try:
            _keep_readers(path, descriptor)
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)  # may fail as a write does (NFS, quota): then nothing is replaced
        os.replace(temporary, path)  # noqa: PTH105 - one name for all system calls, so that tests can fail each
    except BaseException:
        with ignoring_os_errors():
            os.unlink(temporary)  # noqa: PTH108
        raise
    _sync_folder(path.parent)


def _keep_readers(path: Path, descriptor: int) -> None:
    """Let those read the new file who could read the old: an image's file made readable once stays so."""
    with ignoring_os_errors():
        readers = os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH)  # noqa: PTH116
        if readers and hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600 | readers)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view)
        if written <= 0:
            raise OSError("the file system takes no more bytes")
        view = view[written:]


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system can."""
    with ignoring_os_errors():  # the content is in place already; not every file system can do this
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def quarantine(path: Path) -> Path:
    """Rename a bad file, or the link to it, to ``*.corrupt``, for the user to look at; the newest one is kept.

    Raises:
        OSError: when that fails; the file is where it was then.
    """
    quarantined = path.with_name(path.name + ".corrupt")
    os.replace(path, quarantined)  # noqa: PTH105
    return quarantined


def stale_files(folder: Path) -> list[Path]:
    """Return the temporary files older than an hour that killed processes of this user left.

    The one place where the wall clock counts: a clock in the past finds none.
    """
    found: list[Path] = []
    now_s = time.time()
    with ignoring_os_errors(), os.scandir(folder) as items:
        for item in items:
            if not (item.name.startswith(_TEMPORARY_PREFIX) and item.name.endswith(_TEMPORARY_SUFFIX)):
                continue
            with ignoring_os_errors():
                status = item.stat(follow_symlinks=False)
                own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
                if own and stat.S_ISREG(status.st_mode) and now_s - status.st_mtime > _STALE_AGE_S:
                    found.append(Path(item.path))
    return sorted(found)


def sweep(folder: Path) -> list[Path]:
    """Remove the folder's stale temporary files; return those removed."""
    removed: list[Path] = []
    for path in stale_files(folder):
        with ignoring_os_errors():
            os.unlink(path)  # noqa: PTH108
            removed.append(path)
    return removed


def _cause(error: OSError) -> str:
    return error.strerror or type(error).__name__
