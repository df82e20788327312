"""Export, import, verify, prune: all or nothing, the bad entry named, nothing removed that lives."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from file_makers import Machine, batches, decision, open_file, problem

from autoinv.store import exchange, locking, table
from autoinv.store.exchange import ImportRefusedError, export_to, import_from, prune, verify
from autoinv.store.pins import PinsFile

ELSEWHERE = Machine("fedcba9876543210", {"cpu_model": "another", "cores": 64})
PIN_KEY = "inv/80x3x3/float64/cpu"


@pytest.fixture
def filled(tmp_path):
    """A folder with three decisions and a pin, and a file to export to."""
    folder = tmp_path / "cache"
    open_file(folder).put_all([decision(batch) for batch in (1, 2, 3)], 1.0)
    PinsFile(folder).set(problem(), "loop", 1.0)
    return folder, tmp_path / "export.json"


def test_export_forget_import_export_gives_the_same_bytes(filled):
    folder, target = filled
    file, pinned = open_file(folder), PinsFile(folder)
    assert export_to(target, file, pinned) == 3
    before = target.read_bytes()
    file.forget(lambda _: True, 1.0)
    pinned.remove(problem(), 1.0)
    assert batches(folder) == []
    assert import_from(target, file, pinned) == exchange.Imported(3, 1, True)
    export_to(target, open_file(folder), PinsFile(folder))
    assert target.read_bytes() == before


def test_import_merges_and_what_is_final_here_stays(filled, tmp_path):
    folder, target = filled
    export_to(target, open_file(folder), PinsFile(folder))
    other = tmp_path / "other"
    open_file(other).put_all([decision(1, strategy="loop"), decision(2, contended=True), decision(9)], 1.0)
    PinsFile(other).set(problem(), "bmm", 1.0)
    import_from(target, open_file(other), PinsFile(other))
    found = {d.problem.batch: d for d in open_file(other).all()}
    assert found == {1: decision(1, strategy="loop"), 2: decision(2), 3: decision(3), 9: decision(9)}
    assert PinsFile(other).all() == {PIN_KEY: "bmm"}


def test_decisions_of_another_environment_are_taken_only_when_asked_to(filled, tmp_path):
    folder, target = filled
    export_to(target, open_file(folder), PinsFile(folder))
    file, pinned = open_file(tmp_path / "b", ELSEWHERE), PinsFile(tmp_path / "b")
    with pytest.raises(
        ImportRefusedError, match=r"cpu_model 'test' there, 'another' here.*--any-environment"
    ):
        import_from(target, file, pinned)
    assert (file.all(), pinned.all()) == ([], {})
    assert import_from(target, file, pinned, any_environment=True).decisions == 3
    assert open_file(tmp_path / "b", ELSEWHERE).get(problem(1)) == decision(1)
    assert pinned.all() == {PIN_KEY: "loop"}


def spoilt(target: Path, section: str, key: str, entry: object) -> None:
    document = json.loads(target.read_text())
    document[section][key] = entry
    target.write_text(json.dumps(document))


BAD_ENTRIES = {
    "a time": (
        "decisions",
        problem(2).key,
        {**decision(2).entry(), "seconds": {"loop": -1}},
        "the time of loop",
    ),
    "a key": ("decisions", "inv/2x3x3", decision(2).entry(), "inv/2x3x3"),
    "null": ("decisions", problem(2).key, None, "it is no object"),
    "a pin": (
        "pins",
        "inv/9x3x3/float64/cpu",
        {"strategy": "../x", "created": "now"},
        "inv/9x3x3/float64/cpu",
    ),
}


@pytest.mark.parametrize(("section", "key", "entry", "named"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_one_bad_entry_and_nothing_is_taken_and_it_is_named(filled, tmp_path, section, key, entry, named):
    folder, target = filled
    export_to(target, open_file(folder), PinsFile(folder))
    spoilt(target, section, key, entry)
    assert len(verify(target)) == 1
    file, pinned = open_file(tmp_path / "b"), PinsFile(tmp_path / "b")
    with pytest.raises(ImportRefusedError) as refused:
        import_from(target, file, pinned)
    assert "nothing of it was taken" in str(refused.value)
    assert key in str(refused.value)
    assert named in str(refused.value)
    assert (file.all(), pinned.all()) == ([], {})
    assert not (tmp_path / "b").exists()


def test_a_name_that_stands_twice_is_refused(filled):
    folder, target = filled
    export_to(target, open_file(folder), PinsFile(folder))
    line = next(line for line in target.read_text().splitlines() if problem(1).key in line)
    target.write_text(target.read_text().replace(line, line + "\n" + line))
    assert verify(target) == [f"{problem(1).key!r} stands twice"]
    with pytest.raises(ImportRefusedError, match="stands twice"):
        import_from(target, open_file(folder), PinsFile(folder))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema": 2}', b'{"schema": 1}', b"\xff", b"[" * 9999]
)
def test_a_file_that_is_no_export_is_refused_with_the_reason(tmp_path, content):
    source = tmp_path / "source"
    source.write_bytes(content)
    with pytest.raises(ImportRefusedError, match=str(source)):
        import_from(source, open_file(tmp_path / "b"), PinsFile(tmp_path / "b"))


def test_importing_a_fifo_or_a_folder_is_refused_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for source in (fifo, tmp_path):
        with pytest.raises(ImportRefusedError, match="not a regular file"):
            import_from(source, open_file(tmp_path / "b"), PinsFile(tmp_path / "b"))


def test_importing_what_is_not_there_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        import_from(tmp_path / "none", open_file(tmp_path / "b"), PinsFile(tmp_path / "b"))


def test_a_decisions_file_can_be_imported_as_it_is(filled, tmp_path):
    folder, _ = filled
    source = open_file(folder).path
    assert import_from(source, open_file(tmp_path / "b"), PinsFile(tmp_path / "b")).decisions == 3


def test_an_import_that_cannot_be_saved_says_so(filled):
    folder, target = filled
    export_to(target, open_file(folder), PinsFile(folder))
    assert import_from(target, open_file(None), PinsFile(None)) == exchange.Imported(3, 1, False)


def test_an_export_is_readable_for_whom_the_umask_says(filled):
    folder, target = filled
    before = os.umask(0o022)
    try:
        export_to(target, open_file(folder), PinsFile(folder))
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o644


def test_verify_finds_nothing_in_what_autoinv_writes(filled):
    folder, target = filled
    export_to(target, open_file(folder), PinsFile(folder))
    assert [verify(path) for path in (open_file(folder).path, PinsFile(folder).path, target)] == [[], [], []]


def test_verify_lists_every_bad_entry(filled):
    folder, _ = filled
    path = open_file(folder).path
    for batch in (1, 3):
        spoilt(path, "decisions", problem(batch).key, {**decision(batch).entry(), "rounds": -1})
    assert verify(path) == [f"the decision {problem(batch).key!r}: rounds is no count" for batch in (1, 3)]


def test_verify_says_why_a_file_is_not_used(filled):
    folder, _ = filled
    path = open_file(folder).path
    path.chmod(0o666)
    assert verify(path) == ["other users can write it"]


def populated(folder: Path) -> dict[str, Path]:
    """Make files of this and of another environment, temporary files, and files that are no business of ours."""
    open_file(folder).put(decision(), 1.0)
    open_file(folder, ELSEWHERE).put(decision(), 1.0)
    PinsFile(folder).set(problem(), "loop", 1.0)
    old, new = folder / ".autoinv-1-0a.tmp", folder / ".autoinv-1-0b.tmp"
    other_file = open_file(folder, ELSEWHERE).path
    others = [
        folder / "thesis.json",
        folder / "decisions-v1-thesis.json",
        folder / "decisions-v2-00000000.json",
    ]
    for path in (old, new, *others, other_file.with_name(other_file.name + ".corrupt")):
        path.write_text("x")
    os.utime(old, (time.time() - 7200,) * 2)
    return {"other": other_file, "old": old}


def test_prune_removes_other_environments_and_stale_temporary_files_and_nothing_else(tmp_path):
    made = populated(tmp_path)
    before = set(tmp_path.iterdir())
    gone = {made["old"], *tmp_path.glob(made["other"].name + "*")}
    assert set(prune(tmp_path, {Machine().fingerprint}, dry_run=True)) == gone
    assert set(tmp_path.iterdir()) == before
    assert set(prune(tmp_path, {Machine().fingerprint})) == gone
    assert set(tmp_path.iterdir()) == before - gone
    assert prune(tmp_path, {Machine().fingerprint}) == []


def test_prune_leaves_an_environment_whose_lock_is_held(tmp_path):
    made = populated(tmp_path)
    with locking.locked(table.lock_path(made["other"]), 0.0):
        assert prune(tmp_path, {Machine().fingerprint}) == [made["old"]]
    assert made["other"].exists()


def test_prune_of_a_missing_folder_removes_nothing(tmp_path):
    assert prune(tmp_path / "none", set()) == []
