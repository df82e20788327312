"""Whatever stands in the file: the good entries are used, bad ones dropped, a bad file is quarantined once."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
from file_makers import Machine, batches, decision, open_file, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from autoinv import errors
from autoinv.store import jsontext
from autoinv.store.decisions import from_entry

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*/*"))
KEY, ENTRY = problem().key, decision().entry()


def document(entries: object, **changes: object) -> dict[str, object]:
    return {"schema": 1, "environment": Machine().as_dict(), "decisions": entries, **changes}


def written(folder: Path, content: object) -> Path:
    """Put content in the file's place: bytes as they are, anything else as JSON."""
    path = open_file(folder).path
    assert path is not None
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    path.chmod(0o600)
    return path


def look_then_save(folder: Path) -> list[str]:
    """Ask for a problem, save another, ask again; return the warnings."""
    errors.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        file = open_file(folder)
        file.get(problem())
        file.neighbours(problem())
        file.all()
        file.put(decision(999), 1.0)
        assert file.get(problem(999)) == decision(999)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_corpus(tmp_path, path):
    kind, data = path.parent.name, path.read_bytes()
    place = written(tmp_path, data)
    warned = look_then_save(tmp_path)
    quarantined = place.with_name(place.name + ".corrupt")
    assert quarantined.exists() == (kind == "quarantined")
    if kind == "left-alone":
        assert place.read_bytes() == data
    elif kind == "quarantined":
        assert quarantined.read_bytes() == data
        assert batches(tmp_path) == [999]
    elif kind == "entry-dropped":
        assert batches(tmp_path) == [80, 999]
    else:
        assert (kind, batches(tmp_path)) == ("used", [80, 999])
    assert len(warned) == (0 if kind == "used" else 1)


def test_a_file_cut_at_any_byte_is_quarantined_and_a_new_one_is_started(tmp_path):
    whole = json.dumps(document({KEY: ENTRY})).encode()
    for cut in range(len(whole)):
        folder = tmp_path / str(cut)
        path = written(folder, whole[:cut])
        assert len(look_then_save(folder)) == 1
        assert path.with_name(path.name + ".corrupt").read_bytes() == whole[:cut]
        assert batches(folder) == [999]


def test_a_bad_file_is_reported_once_and_the_warning_says_where_it_went(tmp_path):
    path = written(tmp_path, b"{}")
    assert look_then_save(tmp_path) == [
        f"autoinv: {path} is damaged (no schema number) and was quarantined as {path.name}.corrupt. "
        "A new one is started. Delete the damaged one when you have looked at it."
    ]


def test_the_newest_bad_file_is_the_one_that_is_kept(tmp_path):
    for content in (b"first", b"second"):
        path = written(tmp_path, content)
        look_then_save(tmp_path)
    assert [p.read_bytes() for p in tmp_path.glob("*.corrupt")] == [b"second"]
    assert batches(tmp_path) == [999]
    assert path.with_name(path.name + ".corrupt").exists()


def test_a_bad_file_seen_by_a_reader_is_moved_only_if_it_is_still_bad(tmp_path, monkeypatch):
    path = written(tmp_path, b"bad")
    file = open_file(tmp_path)
    parse = jsontext.parse

    def repairs_it_meanwhile(data, **options):
        monkeypatch.setattr(jsontext, "parse", parse)
        written(tmp_path, document({KEY: ENTRY}))
        return parse(data, **options)

    monkeypatch.setattr(jsontext, "parse", repairs_it_meanwhile)
    assert file.get(problem()) is None
    assert file.get(problem()) == decision()
    assert [p.name for p in tmp_path.iterdir() if "corrupt" in p.name] == []
    assert path.exists()


def test_a_newer_schema_is_neither_read_nor_written(tmp_path):
    path = written(tmp_path, document({KEY: ENTRY}, schema=2))
    before = path.read_bytes()
    assert look_then_save(tmp_path) == [
        f"autoinv: {path} is not used, and left alone: "
        "a newer autoinv wrote it (schema 2, this one knows 1). "
        "Set AUTOINV_CACHE_DIR to another folder, or remove it; decisions last for this process."
    ]
    assert path.read_bytes() == before


def test_a_file_of_64_mb_is_left_alone(tmp_path):
    path = written(tmp_path, b"")
    with path.open("r+b") as stream:
        stream.truncate(64 << 20)
    assert len(look_then_save(tmp_path)) == 1
    assert path.stat().st_size == 64 << 20
    assert list(tmp_path.glob("*.corrupt")) == []


def test_200_000_keys_are_read_and_cut_to_20_000_with_the_next_save(tmp_path):
    small = {**ENTRY, "seconds": {}, "rejected": {}}
    entries = {f"inv/{n}x2x2/float64/cpu/threads=2/contiguous": 0 for n in range(200_000)}
    entries |= {problem(n, 4).key: small for n in range(1, 21_001)}
    path = written(tmp_path, document(entries))
    assert path.stat().st_size < jsontext.MAX_BYTES
    assert len(look_then_save(tmp_path)) == 1
    assert len(json.loads(path.read_bytes())["decisions"]) == 20_000


def test_deep_recursion_in_the_program_does_not_cost_the_file(tmp_path):
    path = written(tmp_path, document({KEY: ENTRY}))
    data = path.read_bytes()

    def at_depth(left: int) -> None:
        if left:
            at_depth(left - 1)
        else:
            jsontext.parse(data)

    outcomes = set()
    for left in range(sys.getrecursionlimit() - 60, sys.getrecursionlimit()):
        try:
            at_depth(left)
        except Exception as error:
            outcomes.add(type(error).__name__)
    assert "CorruptError" not in outcomes


WRONG = [None, True, "x", -1, 1.5, [], {}, "\ud800", "a" * 10_000, float("nan"), float("inf"), 10**30, -0.1]


@pytest.mark.parametrize("field", ENTRY)
def test_an_entry_with_a_field_of_the_wrong_type_is_dropped_and_the_others_are_used(field):
    accepted = []
    for wrong in [*WRONG, ..., {"a b": 1}, {"bmm": "a\nb"}, {"bmm": "\x1b[31m"}, {"bmm": True}, {"bmm": -1}]:
        entry = {name: value for name, value in ENTRY.items() if name != field or wrong is not ...}
        if wrong is not ...:
            entry[field] = wrong
        try:
            from_entry(KEY, json.loads(json.dumps(entry)))
            accepted.append(wrong)
        except ValueError:
            pass
    right = {"strategy": ["x"], "seconds": [{}], "rejected": [{}], "complete": [True], "contended": [True]}
    assert accepted == right.get(field, [])


BAD_KEYS = [
    "", "inv", "inv/80x3x3/float64/cpu/threads=2", "inv/80x3x3/float64/cpu/threads=0/contiguous",
    "inv/80x3x3/float16/cpu/threads=2/contiguous", "inv/080x3x3/float64/cpu/threads=2/contiguous",
    "inv/80x3x3/float64/CPU/threads=2/contiguous", "in v/80x3x3/float64/cpu/threads=2/contiguous",
    "inv/80x3x3/float64/cpu/threads=2/contiguous/", "../80x3x3/float64/cpu/threads=2/contiguous",
    "inv/8\u0660x3x3/float64/cpu/threads=2/contiguous",
    "inv/" + "2x" * 300 + "2/float64/cpu/threads=2/contiguous",
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS)
def test_an_entry_under_a_bad_key_is_dropped(tmp_path, key):
    written(tmp_path, document({KEY: ENTRY, key: ENTRY}))
    assert len(look_then_save(tmp_path)) == 1
    assert batches(tmp_path) == [80, 999]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.dictionaries(st.sampled_from([KEY, problem(81).key, "x"]) | st.text(), JSON, max_size=3)
NEAR = st.fixed_dictionaries({name: st.just(value) | JSON for name, value in ENTRY.items()})
DOCUMENTS = st.fixed_dictionaries(
    {
        "schema": st.just(1) | JSON,
        "environment": st.just(Machine().as_dict()) | JSON,
        "decisions": ENTRIES | st.dictionaries(st.just(KEY), NEAR) | JSON,
    }
)


def _survives(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    written(folder, data)
    assert len(look_then_save(folder)) <= 1
    found = open_file(folder).all()
    assert [from_entry(d.problem.key, json.loads(json.dumps(d.entry()))) for d in found] == found


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS)
def test_no_document_breaks_the_reader_or_the_writer(tmp_path_factory, content):
    _survives(tmp_path_factory, json.dumps(content).encode())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_or_the_writer(tmp_path_factory, data):
    _survives(tmp_path_factory, data)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_damage_to_a_good_file_breaks_the_reader_or_the_writer(tmp_path_factory, data):
    good = bytearray(json.dumps(document({KEY: ENTRY, problem(81).key: decision(81).entry()})).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    _survives(tmp_path_factory, bytes(good))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "12345678901234567890"])
def test_a_number_in_an_unknown_field_that_json_cannot_hold_does_not_stop_a_save(tmp_path, number):
    good, odd = decision(80), decision(81)
    entries = {good.problem.key: good.entry(), odd.problem.key: {**odd.entry(), "extra": "HERE"}}
    path = written(tmp_path, document(entries))
    path.write_text(path.read_text().replace('"HERE"', number))
    assert open_file(tmp_path).put(decision(82), 1.0)
    assert batches(tmp_path) == [80, 82]
