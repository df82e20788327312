"""The doctor's report."""

from __future__ import annotations

import pytest
import torch
from file_makers import decision
from terminal import run, store

import autoinv
from autoinv import environment, errors, native


def report(capsys) -> dict[str, dict[str, str]]:
    """The report by section and name."""
    result = run(capsys, "doctor")
    assert (result.code, result.err) == (0, "")
    sections: dict[str, dict[str, str]] = {}
    for line in result.out.splitlines():
        if not line.startswith(" "):
            section = sections.setdefault(line.rstrip(":"), {})
        else:
            section[line[2:18].strip()] = line[19:]
    return sections


def test_the_report_names_versions_processor_and_kernels(capsys):
    found = report(capsys)
    assert (torch.__version__, autoinv.__version__) == (
        found["versions"]["torch"],
        found["versions"]["autoinv"],
    )
    assert environment.of("cpu").cpu_model in found["processor"]["model"]
    assert str(torch.get_num_threads()) == found["processor"]["torch threads"]
    extension = native.load()
    if extension is None:
        assert {"missing": native.why_missing()} == found["native kernels"]
    else:
        assert ", ".join(extension.isas()) == found["native kernels"]["can run here"]
        assert extension.isa() == found["native kernels"]["chosen"]


def test_a_missing_extension_is_explained(capsys, monkeypatch):
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(native, "why_missing", lambda: "no compiler")
    assert report(capsys)["native kernels"] == {"missing": "no compiler"}


def test_each_setting_is_shown_with_its_origin(capsys, monkeypatch, private_cache_dir):
    monkeypatch.setenv("AUTOINV_BUDGET", "0.25")
    with autoinv.using(mode="cached"):
        found = report(capsys)["settings"]
    expected = {
        "mode": "cached (configure)",
        "strategy": "- (default)",
        "budget": "0.25 (AUTOINV_BUDGET)",
        "cache_dir": f"{private_cache_dir} (AUTOINV_CACHE_DIR)",
        "log": "warning (default)",
        "isa": "best (default)",
    }
    assert expected == found


def test_the_folder_is_probed_and_left_as_it_was(capsys, private_cache_dir):
    store(decision(80), decision(81, contended=True))
    before = sorted(private_cache_dir.iterdir())
    found = report(capsys)["files"]
    assert (found["writable"], found["lock"]) == ("yes", "works")
    assert "2 decisions, 1 timed on a busy processor" in found["decisions"]
    assert "MiB free" in found["file system"]
    assert before == sorted(private_cache_dir.iterdir())


def test_a_missing_folder_is_not_created(capsys, tmp_path):
    with autoinv.using(cache_dir=tmp_path / "not" / "there"):
        found = report(capsys)["files"]
    assert "not there yet" in found["folder"]
    assert found["writable"] == "yes, by the folder above"
    assert list(tmp_path.iterdir()) == []


def test_the_report_says_when_there_is_no_folder(capsys, monkeypatch):
    monkeypatch.setattr("autoinv.settings.cache_dir", lambda: None)
    assert report(capsys)["files"] == {"folder": "none: decisions last only as long as a process"}


def test_a_lock_that_does_not_work_is_detected(capsys, private_cache_dir, monkeypatch):
    from contextlib import contextmanager

    from autoinv.store import locking

    @contextmanager
    def always(path, wait_s):
        yield locking.Lock.HELD

    monkeypatch.setattr(locking, "locked", always)
    assert "two holders" in report(capsys)["files"]["lock"]


def test_a_damaged_file_is_named_and_left_where_it_is(capsys, private_cache_dir):
    file = store(decision(80))
    file.path.write_text("{")
    (private_cache_dir / "pins-v1.json").write_text('{"schema": 1, "pins": {"x": 1}}')
    found = report(capsys)["files"]
    assert "1 bad, verify lists them: no JSON" in found["decisions"]
    assert "1 bad, verify lists them: the pin 'x'" in found["pins"]
    assert file.path.read_text() == "{"


def test_a_file_in_place_of_the_folder_is_reported(capsys, tmp_path):
    (tmp_path / "file").touch()
    with autoinv.using(cache_dir=tmp_path / "file"):
        found = report(capsys)["files"]
    assert found["folder"].endswith("(no folder)")
    assert found["writable"] == "no: it is no folder"


def test_a_file_of_another_environment_and_a_damaged_one_are_listed(capsys, private_cache_dir):
    for name in ("decisions-v1-0123456789abcdef.json", "pins-v1.json.corrupt"):
        (private_cache_dir / name).touch()
    others = report(capsys)["files"]["other files"]
    assert others == "decisions-v1-0123456789abcdef.json, pins-v1.json.corrupt"


@pytest.mark.filterwarnings("ignore::autoinv.errors.AutoinvWarning")
def test_the_last_warning_is_repeated(capsys):
    errors.warn_once("kind", "something is wrong", "Correct it.")
    assert report(capsys)["last warning"]["in this process"] == "autoinv: something is wrong. Correct it."
