"""The commands that change what is stored: pins, forgetting, export and import, verify and prune."""

from __future__ import annotations

import pytest
import torch
from file_makers import decision, problem
from terminal import cpu_file, run, store

import autoinv
from autoinv.problem import DTYPES
from autoinv.store import pins


def test_pin_holds_in_this_process_and_on_disk_until_unpin(capsys, private_cache_dir):
    A = torch.zeros(5, 3, 3)
    result = run(capsys, "pin", "5x3x3", "bmm")
    keys = [f"inv/5x3x3/{dtype}/cpu" for dtype in DTYPES]  # of every dtype, as none is given
    assert (result.code, result.out) == (0, "".join(f"{key} is pinned to bmm\n" for key in keys))
    assert (autoinv.explain(A).source, autoinv.explain(A).strategy) == ("pin", "bmm")
    assert pins.PinsFile(private_cache_dir).all() == dict.fromkeys(sorted(keys), "bmm")
    assert "is no longer pinned" in run(capsys, "unpin", "5x3x3").out
    assert "was not pinned" in run(capsys, "unpin", "5x3x3").out
    assert pins.PinsFile(private_cache_dir).all() == {}


def test_a_strategy_that_one_dtype_does_not_support_is_pinned_for_none(capsys, private_cache_dir):
    result = run(capsys, "pin", "5x3x3", "native", "--dtype", "float32,complex64")
    assert result.code == 2
    assert pins.PinsFile(private_cache_dir).all() == {}


def test_a_pin_that_cannot_be_saved_exits_with_4(capsys, tmp_path):
    (tmp_path / "file").touch()
    with autoinv.using(cache_dir=tmp_path / "file"):
        result = run(capsys, "pin", "5x3x3", "bmm")
        assert result.code == 4
        assert "could not be saved" in result.err
        assert "Traceback" not in result.err


def test_forget_removes_one_shape_and_with_all_the_rest(capsys):
    store(decision(80), decision(81), decision(82))
    assert run(capsys, "forget", "81x3x3").out == "1 decision forgotten\n"
    assert run(capsys, "forget", "80x3x3", "--dtype", "float32").out == "0 decisions forgotten\n"
    assert [d.problem.batch for d in cpu_file().all()] == [80, 82]
    assert run(capsys, "forget", "--all", "--yes").out == "2 decisions forgotten\n"
    assert cpu_file().all() == []


class Terminal:
    """A terminal at which the user answers."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return f"{self._answer}\n"


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("", 2, 1), ("no", 2, 1)])
def test_at_a_terminal_the_user_is_asked(answer, code, left, capsys, monkeypatch):
    store(decision(80))
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    result = run(capsys, "forget", "--all")
    assert code == result.code
    assert "[y/N]" in result.err
    assert left == len(cpu_file().all())


def test_an_export_comes_back_byte_for_byte(capsys, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    store(decision(80), decision(81, contended=True))
    run(capsys, "pin", "80x3x3", "bmm", "--dtype", "float64")
    written = run(capsys, "export", first).out
    assert f"2 decisions and 1 pin written to {first}\n" == written
    run(capsys, "forget", "--all", "--yes")
    run(capsys, "unpin", "80x3x3")
    assert f"2 decisions and 1 pin taken from {first}\n" == run(capsys, "import", first).out
    run(capsys, "export", second)
    assert first.read_bytes() == second.read_bytes()


def test_explain_without_dtype_shows_those_of_which_something_is_known(capsys):
    store(decision(80, problem=problem(threads=torch.get_num_threads())))
    shown = run(capsys, "explain", "80x3x3").out
    assert "80x3x3 float64" in shown and "80x3x3 float32" not in shown
    assert run(capsys, "explain", "70x4x4").out.count("inv of 70x4x4 float32") == 1


def test_an_export_replaces_an_export_and_asks_before_replacing_another_file(capsys, tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("a letter")
    assert run(capsys, "export", precious).code == 2
    assert precious.read_text() == "a letter"
    assert run(capsys, "export", precious, "--yes").code == 0
    assert run(capsys, "export", precious).code == 0


def test_an_import_of_another_environment_needs_its_option(capsys, tmp_path):
    store(decision(80))
    path = tmp_path / "export.json"
    run(capsys, "export", path)
    run(capsys, "forget", "--all", "--yes")
    path.write_text(path.read_text().replace(torch.__version__, "1.0.0"))
    refused = run(capsys, "import", path)
    assert refused.code == 2
    assert "--any-environment" in refused.err
    assert cpu_file().all() == []
    assert run(capsys, "import", path, "--any-environment").code == 0
    assert [d.problem.batch for d in cpu_file().all()] == [80]


def test_one_bad_entry_prevents_the_import_and_verify_exits_with_5(capsys, tmp_path):
    store(decision(80), decision(81))
    path = tmp_path / "export.json"
    run(capsys, "export", path)
    run(capsys, "forget", "--all", "--yes")
    assert run(capsys, "verify", path).code == 0
    path.write_text(path.read_text().replace('"rounds": 24', '"rounds": -1', 1))
    refused = run(capsys, "import", path)
    assert refused.code == 2
    assert problem(80).key in refused.err
    assert cpu_file().all() == []
    verified = run(capsys, "verify", path)
    assert verified.code == 5
    assert problem(80).key in verified.out


def test_verify_checks_all_files_of_the_folder(capsys, private_cache_dir):
    assert "no files yet" in run(capsys, "verify").out
    store(decision(80))
    run(capsys, "pin", "5x3x3", "bmm")
    good = run(capsys, "verify")
    assert (good.code, good.out.count(": good")) == (0, 2)
    (private_cache_dir / "pins-v1.json").write_text("{")
    assert run(capsys, "verify").code == 5


def test_prune_removes_files_of_other_environments_only(capsys, private_cache_dir):
    file = store(decision(80))
    other = private_cache_dir / "decisions-v1-0123456789abcdef.json"
    other.write_text("{}")
    assert f"would remove {other}\n" == run(capsys, "prune", "--dry-run").out
    assert other.exists()
    assert run(capsys, "prune").code == 2
    assert other.exists()
    assert f"removed {other}\n" == run(capsys, "prune", "--yes").out
    assert (other.exists(), file.path.exists()) == (False, True)
    assert run(capsys, "prune", "--yes").out == "nothing to remove\n"
