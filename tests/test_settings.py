"""The six settings, from each of their sources."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import autoinv
from autoinv import environment, native, settings
from autoinv.errors import AutoinvWarning

needs_kernels = pytest.mark.skipif(native.load() is None, reason="this install has no kernels")


def test_defaults_are_the_documented_ones(monkeypatch):
    monkeypatch.delenv("AUTOINV_CACHE_DIR")
    assert settings.current() == settings.Settings("tune", None, 0.1, None, "warning", "best")


def test_an_environment_variable_beats_the_default_and_configure_beats_both(monkeypatch):
    monkeypatch.setenv("AUTOINV_BUDGET", "0.5")
    assert settings.current().budget == 0.5
    autoinv.configure(budget=2)
    assert settings.current().budget == 2.0
    autoinv.configure(budget=None)
    assert settings.current().budget == 0.5


def test_using_restores_the_settings_even_after_an_exception():
    autoinv.configure(mode="cached")
    with pytest.raises(KeyError), autoinv.using(mode="off", budget=3):
        assert settings.current().mode == "off"
        raise KeyError
    assert (settings.current().mode, settings.current().budget) == ("cached", 0.1)


def test_overlapping_blocks_each_undo_only_their_own_settings():
    autoinv.configure(budget=3)
    first, second = autoinv.using(mode="off", budget=1), autoinv.using(mode="cached")
    first.__enter__()
    second.__enter__()
    assert (settings.current().mode, settings.current().budget) == ("cached", 1.0)
    first.__exit__(None, None, None)
    assert (settings.current().mode, settings.current().budget) == ("cached", 3.0)
    second.__exit__(None, None, None)
    assert (settings.current().mode, settings.current().budget) == ("tune", 3.0)


def test_a_setting_configured_inside_a_block_holds_after_the_block():
    with autoinv.using(budget=1):
        autoinv.configure(budget=2, mode="cached")
        assert (settings.current().mode, settings.current().budget) == ("cached", 1.0)
    assert (settings.current().mode, settings.current().budget) == ("cached", 2.0)


def test_none_in_a_block_returns_a_setting_to_its_environment_variable(monkeypatch):
    monkeypatch.setenv("AUTOINV_BUDGET", "0.5")
    autoinv.configure(budget=2)
    with autoinv.using(budget=None):
        assert settings.current().budget == 0.5
    assert settings.current().budget == 2.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "fast"),
        ("mode", 1),
        ("strategy", "quickest"),
        ("strategy", 3),
        ("budget", -1),
        ("budget", "nan"),
        ("budget", float("inf")),
        ("budget", object()),
        ("cache_dir", ""),
        ("cache_dir", 7),
        ("log", "loud"),
        ("isa", "abacus"),
    ],
)
def test_an_unknown_value_is_a_value_error_that_names_setting_and_value(name, value):
    with pytest.raises(ValueError, match=name):
        autoinv.configure(**{name: value})
    with pytest.raises(ValueError, match=name):
        autoinv.using(**{name: value})


def test_an_unknown_setting_is_a_type_error_that_lists_the_settings():
    with pytest.raises(TypeError, match="mode, strategy, budget, cache_dir, log, isa"):
        autoinv.configure(colour="red")
    with pytest.raises(TypeError, match="'buget'; did you mean 'budget'"):
        autoinv.configure(buget=1)


def test_a_bad_environment_variable_gives_one_warning_and_the_default(monkeypatch):
    monkeypatch.setenv("AUTOINV_BUDGET", "soon")
    with pytest.warns(AutoinvWarning, match="AUTOINV_BUDGET.*'soon'"):
        assert settings.current().budget == 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings.current().budget == 0.1


def test_a_strategy_unknown_to_the_environment_variable_still_answers(monkeypatch):
    monkeypatch.setenv("AUTOINV_STRATEGY", "quickest")
    A = torch.eye(3) * 2
    with pytest.warns(AutoinvWarning, match="AUTOINV_STRATEGY.*quickest"):
        assert torch.equal(autoinv.inv(A), torch.eye(3) / 2)


def test_warnings_as_errors_do_not_end_a_call(monkeypatch, caplog):
    monkeypatch.setenv("AUTOINV_MODE", "turbo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(autoinv.inv(torch.eye(3)), torch.eye(3))
    assert "AUTOINV_MODE" in caplog.text


def test_the_log_setting_sets_the_level_of_the_logger_and_restores_it():
    logger = logging.getLogger("autoinv")
    before = logger.level
    with autoinv.using(log="error"):
        assert logger.level == logging.ERROR
    assert logger.level == before


def test_a_relative_cache_dir_is_made_absolute_when_it_is_set(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    autoinv.configure(cache_dir="decisions")
    assert settings.cache_dir() == Path(tmp_path, "decisions")


def test_without_a_home_folder_decisions_last_as_long_as_the_process(monkeypatch, tmp_path):
    monkeypatch.delenv("AUTOINV_CACHE_DIR")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *a, **k: "~/.cache/autoinv")
    with pytest.warns(AutoinvWarning, match="AUTOINV_CACHE_DIR"):
        assert settings.cache_dir() is None
    assert torch.equal(autoinv.inv(torch.eye(2)), torch.eye(2))
    assert list(tmp_path.iterdir()) == []


def test_a_changed_setting_applies_to_shapes_that_ran_before():
    A = torch.randn(6, 3, 3, generator=torch.Generator().manual_seed(0))
    autoinv.inv(A)
    with autoinv.using(strategy="loop"):
        autoinv.inv(A)
        assert autoinv.explain(A).strategy == "loop"
    with autoinv.using(mode="off"):
        assert autoinv.explain(A).source == "reference"


def test_variables_are_read_once_at_first_use_and_later_changes_are_configures(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOINV_BUDGET", "0.5")
    monkeypatch.setenv("AUTOINV_CACHE_DIR", "here")
    monkeypatch.chdir(tmp_path)
    assert settings.current().budget == 0.5
    monkeypatch.setenv("AUTOINV_BUDGET", "0.7")
    monkeypatch.chdir("/")
    A = torch.eye(3) * 2
    monkeypatch.setenv("AUTOINV_STRATEGY", "loop")
    for shape in ((3, 3), (1, 3, 3)):
        autoinv.inv(A.view(shape))
        assert autoinv.explain(A.view(shape)).source != "pin"
    with autoinv.using(mode="off"):
        assert (settings.current().mode, settings.current().budget) == ("off", 0.5)
    assert settings.cache_dir() == tmp_path / "here"
    autoinv.configure(budget=0.7)
    assert settings.current().budget == 0.7


def test_a_mistyped_variable_is_reported_with_the_nearest_and_others_are_not(monkeypatch):
    monkeypatch.setenv("AUTOINV_BUGET", "0.5")
    monkeypatch.setenv("AUTOINV_OF_MY_OWN", "1")
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        assert settings.current().budget == 0.1
        settings.current()
    (text,) = [str(each.message) for each in met]
    assert "AUTOINV_BUGET is ignored" in text and "Did you mean AUTOINV_BUDGET?" in text


@needs_kernels
def test_the_instruction_set_is_a_setting_and_part_of_the_environment(monkeypatch):
    extension = native.load()
    best = extension.isa()
    A = torch.randn(4, 3, 3, dtype=torch.float64)
    with autoinv.using(isa="baseline"):
        assert (extension.isa(), environment.of("cpu").native) == ("baseline", "baseline")
        assert torch.allclose(autoinv.inv(A), torch.linalg.inv(A))
    assert (extension.isa(), environment.of("cpu").native) == (best, best)
    monkeypatch.setattr(settings.native, "load", lambda: Mock(isas=lambda: ["baseline"]))
    with pytest.raises(ValueError, match="isa is one that this machine runs, baseline, not 'avx512'"):
        autoinv.configure(isa="avx512")
    monkeypatch.setenv("AUTOINV_ISA", "avx2")
    settings.read_variables_again()
    with pytest.warns(AutoinvWarning, match="AUTOINV_ISA is ignored, because isa is one that this machine"):
        assert settings.current().isa == "best"


def test_the_returned_origins_are_a_copy():
    settings.resolved()[1]["mode"] = "changed"
    assert settings.resolved()[1]["mode"] == "default"


def test_a_configured_level_is_restored_after_another_program_changed_it():
    autoinv.configure(log="error")
    logging.getLogger("autoinv").setLevel("DEBUG")
    settings.current()
    assert logging.getLogger("autoinv").level == logging.ERROR
