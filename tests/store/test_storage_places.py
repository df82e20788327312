"""Where the file is to live: full, read-only, missing, nowhere. It works from memory, and leaves no trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_makers import (
    ANOTHER_UID,
    batches,
    decision,
    folder_for_all,
    in_child,
    leftovers,
    open_file,
    problem,
)

from autoinv import settings

pytestmark = pytest.mark.filterwarnings("ignore::autoinv.errors.AutoinvWarning")


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """Mount a small file system of its own there."""
    place.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"this system mounts nothing: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def test_a_read_only_mount_is_read(tmp_path):
    with mounted(tmp_path / "m", "size=1m") as place:
        assert open_file(place).put(decision(1), 1.0)
        remount(place, "ro")
        file = open_file(place)
        assert file.get(problem(1)) == decision(1)
        assert not file.put(decision(2), 0.1)
        assert [file.get(problem(batch)) for batch in (1, 2)] == [decision(1), decision(2)]
        remount(place, "rw")
        assert file.put(decision(3), 1.0)
        assert batches(place) == [1, 2, 3]


def test_a_bad_file_on_a_read_only_mount_is_ignored(tmp_path):
    with mounted(tmp_path / "m", "size=1m") as place:
        path = open_file(place).path
        assert path is not None
        path.write_text("bad")
        remount(place, "ro")
        file = open_file(place)
        assert file.get(problem()) is None
        assert not file.put(decision(), 0.1)
        assert file.get(problem()) == decision()
        assert path.read_text() == "bad"


def test_a_full_file_system_keeps_the_old_entries(tmp_path):
    with mounted(tmp_path / "m", "size=64k") as place:
        file = open_file(place)
        batch = 0
        while file.put(decision(batch := batch + 1), 0.1):
            assert batch < 1000
        assert batches(place) == list(range(1, batch))
        assert leftovers(place) == []
        assert file.get(problem(batch)) == decision(batch)
        remount(place, "size=1m")
        assert file.put(decision(batch + 1), 1.0)
        assert batches(place) == list(range(1, batch + 2))


def test_a_file_system_full_of_other_things_works_from_memory(tmp_path):
    with mounted(tmp_path / "m", "size=16k") as place:
        (place / "filler").write_bytes(b"x" * (16 << 10))
        file = open_file(place / "cache")
        assert not file.put(decision(), 0.1)
        assert file.get(problem()) == decision()


def test_a_file_system_without_inodes_works_from_memory(tmp_path):
    with mounted(tmp_path / "m", "size=1m,nr_inodes=2") as place:
        (place / "last").write_text("")
        for where in (place, place / "cache"):
            file = open_file(where)
            assert not file.put(decision(), 0.1)
            assert file.get(problem()) == decision()


def test_a_folder_removed_while_running_is_made_again_and_memory_lasts(tmp_path):
    place = tmp_path / "cache"
    file = open_file(place)
    file.put(decision(1), 1.0)
    shutil.rmtree(place)
    assert file.get(problem(1)) == decision(1)
    assert file.get(problem(2)) is None
    assert file.get(problem(1)) == decision(1)
    assert file.put(decision(2), 1.0)
    assert batches(place) == [2]


def test_a_folder_removed_between_lock_and_write_costs_nothing_but_the_save(tmp_path, monkeypatch):
    place = tmp_path / "cache"
    file = open_file(place)
    file.put(decision(1), 1.0)
    opens = os.open

    def removes(path: str, *args: object, **options: object) -> int:
        if str(path).endswith(".tmp"):
            shutil.rmtree(place)
        return opens(path, *args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", removes)
        assert not file.put(decision(2), 1.0)
    assert file.put(decision(3), 1.0)
    assert batches(place) == [2, 3]


HOMES = {
    "HOME unset": {},
    "HOME missing": {"HOME": "/nonexistent/home"},
    "HOME blank": {"HOME": ""},
    "HOME relative": {"HOME": "home"},
    "HOME a tilde": {"HOME": "~"},
    "XDG_CACHE_HOME blank": {"HOME": "/nonexistent", "XDG_CACHE_HOME": " "},
    "XDG_CACHE_HOME relative": {"HOME": "/nonexistent", "XDG_CACHE_HOME": "cache"},
    "XDG_CACHE_HOME a tilde": {"HOME": "/nonexistent", "XDG_CACHE_HOME": "~/cache"},
    "AUTOINV_CACHE_DIR blank": {"HOME": "/nonexistent", "AUTOINV_CACHE_DIR": " "},
}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="HOME means nothing on this system")
@pytest.mark.parametrize("variables", HOMES.values(), ids=HOMES)
@pytest.mark.parametrize("known", [True, False], ids=["known user", "unknown uid"])
def test_no_home_no_trace(variables, known):
    if not known and os.geteuid() != 0:
        pytest.skip("only root can become a user that the system does not know")
    with folder_for_all() as here:

        def work() -> None:
            os.chdir(here)
            for name in ("HOME", "XDG_CACHE_HOME", "AUTOINV_CACHE_DIR"):
                os.environ.pop(name, None)
            os.environ.update(variables)
            ask_and_save(may_save="HOME" in variables and os.geteuid() != 0)

        in_child(work, None if known else ANOTHER_UID)
        assert list(here.rglob("*")) == []


def ask_and_save(may_save: bool) -> None:
    folder = settings.cache_dir()
    assert folder is None or (folder.is_absolute() and "~" not in folder.parts)
    file = open_file(folder)
    assert file.get(problem()) is None
    if may_save:  # root would make the missing home, and a known user has one
        assert not file.put(decision(), 0.1)
        assert file.get(problem()) == decision()


WATCHED = """
import atexit, os, sys
sys.dont_write_bytecode = True
import torch
seen = []
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "_thread.start_new_thread"}
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in CHANGES:
        seen.append((event, args))
sys.addaudithook(hook)
import autoinv
assert not seen, seen
names = {"filelock", "platformdirs", "rich", "matplotlib"} & set(sys.modules)
assert not names, names
atexit._run_exitfuncs()
assert not seen, seen
"""


def test_nothing_is_touched_at_import_or_at_exit(tmp_path):
    """Every file opened for writing, made, renamed or removed is seen by an audit hook until the very end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": str(tmp_path)}
    environment.pop("AUTOINV_CACHE_DIR", None)
    subprocess.run([sys.executable, "-c", WATCHED], check=True, env=environment, cwd=tmp_path, timeout=120)
    assert list(tmp_path.iterdir()) == []
