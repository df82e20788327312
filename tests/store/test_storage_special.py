"""Files that are not ours to touch: special ones, links, other people's. Ignored, untouched, no hang."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from file_makers import (
    ANOTHER_UID,
    as_ordinary_user,
    batches,
    decision,
    folder_for_all,
    in_child,
    open_file,
    problem,
)

from autoinv.store import disk, jsontext

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such files"),
    pytest.mark.filterwarnings("ignore::autoinv.errors.AutoinvWarning"),
]
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make files of another user"
)


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def folder(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's whole path may have 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "missing")


def huge_sparse_file(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(8 << 30)


SPECIAL = [fifo, folder, unix_socket, link_to_device, huge_sparse_file]


def look_and_save(place: Path) -> None:
    """Ask and save in a child, as a hang must not take the tests along."""

    def work() -> None:
        file = open_file(place)
        assert file.get(problem()) is None
        assert not file.put(decision(), 0.2)
        assert file.get(problem()) == decision()

    in_child(work)


@pytest.mark.parametrize("make", SPECIAL)
def test_a_special_file_in_the_files_place_is_ignored_and_untouched(tmp_path, make):
    path = open_file(tmp_path).path
    assert path is not None
    make(path)
    before = os.lstat(path)
    look_and_save(tmp_path)
    after = os.lstat(path)
    assert (after.st_mode, after.st_ino, after.st_size) == (before.st_mode, before.st_ino, before.st_size)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("make", [*SPECIAL, link_to_nothing])
def test_a_special_file_in_the_locks_place_is_untouched_and_saving_works_without(tmp_path, make):
    if make is huge_sparse_file:
        pytest.skip("a lock is a regular file, of any size")
    path = open_file(tmp_path).path
    assert path is not None
    lock = path.with_name(path.name + ".lock")
    make(lock)
    before = os.lstat(lock)
    in_child(lambda: open_file(tmp_path).put(decision(), 0.2) or pytest.fail("not saved"))
    assert batches(tmp_path) == [80]
    assert os.lstat(lock).st_ino == before.st_ino
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("suffix", ["", ".lock"])
@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_a_link_to_a_precious_file_leaves_it_as_it_is(tmp_path, make, suffix):
    precious = tmp_path / "precious"
    precious.write_text("thesis")
    place = tmp_path / "cache"
    path = open_file(place).path
    assert path is not None
    place.mkdir()
    make(path.with_name(path.name + suffix), precious)
    file = open_file(place)
    file.get(problem())
    file.put(decision(), 0.2)
    assert precious.read_text() == "thesis"
    assert file.get(problem()) == decision()


def linked(tmp_path: Path) -> tuple[Path, Path]:
    """Return the place of a file, a link as a mounted configuration has it, and the good file that it leads to."""
    made = open_file(tmp_path / "..2026")
    made.put(decision(), 1.0)
    assert made.path is not None
    (tmp_path / "..data").symlink_to("..2026")
    path = tmp_path / made.path.name
    path.symlink_to(Path("..data", made.path.name))
    return path, made.path


def test_a_file_is_read_through_a_link_also_when_a_link_on_the_way_changes(tmp_path):
    _, target = linked(tmp_path)
    reader = open_file(tmp_path)
    assert reader.get(problem()) == decision()
    open_file(tmp_path / "..2027").put(decision(81), 1.0)
    (tmp_path / "..data").unlink()
    (tmp_path / "..data").symlink_to("..2027")
    assert [found.problem.batch for found in reader.all()] == [81]
    assert batches(target.parent) == [80]


def test_saving_replaces_the_link_and_leaves_its_target(tmp_path):
    path, target = linked(tmp_path)
    before = target.read_bytes()
    assert open_file(tmp_path).put(decision(81), 1.0)
    assert batches(tmp_path) == [80, 81]
    assert not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert target.read_bytes() == before


def test_quarantine_moves_the_link_and_leaves_its_target(tmp_path):
    path, target = linked(tmp_path)
    target.write_text("{")
    assert open_file(tmp_path).put(decision(81), 1.0)
    assert path.with_name(path.name + ".corrupt").is_symlink() and target.read_text() == "{"
    assert batches(tmp_path) == [81]


def test_a_link_to_nothing_is_no_file_and_is_replaced(tmp_path):
    path = open_file(tmp_path).path
    assert path is not None
    link_to_nothing(path)
    assert open_file(tmp_path).get(problem()) is None
    assert open_file(tmp_path).put(decision(), 1.0)
    assert batches(tmp_path) == [80] and not (tmp_path / "missing").exists()


def test_the_target_of_a_link_is_judged_by_its_mode(tmp_path):
    path, target = linked(tmp_path)
    target.chmod(0o666)
    look_and_save(tmp_path)
    assert path.is_symlink()


def test_a_linked_folder_is_a_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert open_file(tmp_path / "link").put(decision(), 1.0)
    assert batches(tmp_path / "real") == [80]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_ignored_and_untouched(tmp_path, mode):
    file = open_file(tmp_path)
    file.put(decision(), 1.0)
    assert file.path is not None
    file.path.chmod(mode)
    before = file.path.read_bytes()
    look_and_save(tmp_path)
    assert file.path.read_bytes() == before
    assert stat.S_IMODE(file.path.stat().st_mode) == mode


def owned_by(uid: int, user: int, expected: object) -> Callable[[Path], None]:
    """Return a check: does ``user`` use, or leave alone, a file that ``uid`` owns?"""

    def check(place: Path) -> None:
        open_file(place).put(decision(), 1.0)
        path = open_file(place).path
        assert path is not None
        path.chmod(0o644)
        os.chown(path, uid, uid)
        place.chmod(0o755)
        before = path.read_bytes()

        def work() -> None:
            file = open_file(place)
            assert file.get(problem()) == expected
            if expected is None:
                assert not file.put(decision(81), 0.2)

        in_child(work, user)
        assert path.read_bytes() == before

    return check


@needs_root
def test_a_file_of_another_user_is_ignored_and_untouched():
    for owner, user in ((ANOTHER_UID + 1, ANOTHER_UID), (ANOTHER_UID, 0)):
        with folder_for_all() as place:
            owned_by(owner, user, None)(place)


@needs_root
def test_a_file_of_root_or_ones_own_is_used():
    for owner, user in ((0, ANOTHER_UID), (ANOTHER_UID, ANOTHER_UID), (0, 0)):
        with folder_for_all() as place:
            owned_by(owner, user, decision())(place)


def test_a_file_without_read_permission_is_ignored_and_not_overwritten():
    with folder_for_all() as place:

        def work() -> None:
            file = open_file(place)
            assert file.put(decision(), 1.0)
            assert file.path is not None
            file.path.chmod(0)
            again = open_file(place)
            assert again.get(problem()) is None
            assert not again.put(decision(81), 0.2)
            assert again.get(problem(81)) == decision(81)
            file.path.chmod(0o600)
            assert batches(place) == [80]

        as_ordinary_user(work)


def test_a_folder_without_write_permission_is_read_and_saves_nothing():
    with folder_for_all() as place:

        def work() -> None:
            assert open_file(place).put(decision(), 1.0)
            place.chmod(0o500)
            file = open_file(place)
            assert file.get(problem()) == decision()
            assert not file.put(decision(81), 0.2)
            assert file.get(problem(81)) == decision(81)
            place.chmod(0o700)
            assert file.put(decision(82), 1.0)
            assert batches(place) == [80, 81, 82]

        as_ordinary_user(work)


def test_a_folder_that_cannot_be_entered_or_made_costs_only_the_memory_of_it():
    with folder_for_all() as parent:

        def work() -> None:
            parent.chmod(0)
            file = open_file(parent / "cache")
            assert file.get(problem()) is None
            assert not file.put(decision(), 0.2)
            assert file.all() == [decision()]

        as_ordinary_user(work)


def test_a_file_in_the_folders_place_is_left_alone(tmp_path):
    place = tmp_path / "cache"
    place.write_text("not a folder")
    look_and_save(place)
    assert place.read_text() == "not a folder"


def test_a_file_that_grows_while_it_is_read_is_not_taken_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    path.chmod(0o600)
    monkeypatch.setattr(os, "read", lambda _fd, count: b"x" * count)
    with pytest.raises(disk.UnusableError, match="larger than 16 MiB"):
        disk.read(path, jsontext.MAX_BYTES)
