"""A folder that holds decisions of other environments only: said once, field by field, and taken in when asked to."""

from __future__ import annotations

import dataclasses
import warnings

import torch

import autoinv
from autoinv import environment, settings
from autoinv.cli.main import main
from autoinv.store import decisions, exchange


def baked(folder):
    """Return the file that a machine with more processors left in the folder."""
    autoinv.warm((10, 3, 3), budget=1.0)
    own = decisions.opened(settings.cache_dir(), environment.of("cpu"))
    other = dataclasses.replace(environment.of("cpu"), cores=64)
    file = decisions.DecisionsFile(folder, other)
    assert file.put_all(own.all(), 5.0)
    own.path.unlink()
    return file


def test_mode_cached_warns_once_of_what_differs_and_import_takes_the_file_in(private_cache_dir, capsys):
    shipped = baked(private_cache_dir)
    exchange._looked.clear()
    with autoinv.using(mode="cached"), warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        for n in (2, 4):
            A = torch.eye(n).repeat(7, 1, 1) * 2
            assert torch.equal(autoinv.inv(A), A / 4)
    (text,) = [str(each.message) for each in met]
    cores = environment.of("cpu").cores
    assert f"{shipped.path.name} (cores 64 there, {cores} here)" in text and "--any-environment" in text
    assert main(["doctor"]) == 0
    assert f"cores 64 there, {cores} here" in capsys.readouterr().out
    assert main(["import", str(shipped.path), "--any-environment"]) == 0
    assert exchange.elsewhere(decisions.opened(settings.cache_dir(), environment.of("cpu"))) is None
    with autoinv.using(mode="cached"):
        assert autoinv.explain(torch.zeros(10, 3, 3)).source in ("file", "tuned")


def test_a_folder_with_nothing_in_it_is_no_cause_for_a_warning(private_cache_dir):
    exchange._looked.clear()
    with autoinv.using(mode="cached"), warnings.catch_warnings():
        warnings.simplefilter("error")
        autoinv.inv(torch.eye(2))


def test_a_file_of_the_first_version_loads_by_import_and_prune_removes_it(private_cache_dir, capsys):
    shipped = baked(private_cache_dir)
    first = {name: value for name, value in shipped.environment.items() if name != "variables"} | {
        "autoinv": "0.1.0"
    }
    path = private_cache_dir / decisions.file_name("0123456789abcdef")
    path.write_text(shipped.path.read_text())
    shipped.path.unlink()
    document = exchange.jsontext.parse(path.read_bytes())
    path.write_bytes(exchange.jsontext.serialised({**document, "environment": first}))
    assert main(["import", str(path)]) == 2
    assert "variables unknown there" in capsys.readouterr().err
    assert main(["import", str(path), "--any-environment"]) == 0
    assert main(["prune", "--yes"]) == 0
    assert not path.exists()
