"""What autoinv says: warnings at the program's own line, and a log that is seen without being configured."""

from __future__ import annotations

import subprocess
import sys
import warnings

import torch

import autoinv


def test_a_warning_carries_the_line_of_the_program_that_called(monkeypatch):
    monkeypatch.setenv("AUTOINV_MODE", "turbo")
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        autoinv.inv(torch.eye(3))
    assert {each.filename for each in met} == {__file__}


LOGGED = """
import logging, torch, autoinv
autoinv.inv(torch.eye(3).repeat(5, 1, 1))
autoinv.inv(torch.eye(3))
with autoinv.using(log="warning"):
    autoinv.inv(torch.eye(5))
logging.basicConfig(format="theirs %(message)s")
autoinv.inv(torch.eye(4))
"""


def test_the_log_is_seen_where_logging_is_not_configured_and_once_where_it_is():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; os.environ.update(AUTOINV_LOG='info', AUTOINV_BUDGET='20')" + LOGGED,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    starts = ["autoinv: inv/5x3x3/", "autoinv: inv/3x3/", "theirs inv/4x4/"]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 3
    assert "source tuned" in lines[0] and "times as fast as batched" in lines[0] and lines[0].endswith(" ms")
