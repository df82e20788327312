"""Tables of times: the layout, the widths, the numbers."""

from __future__ import annotations

import pytest
import torch.utils.benchmark as benchmark

from autoinv.cli._table import Row, drawn, number

NAMES = ["batched", "native", "native_parallel", "closed_form", "einsum", "bmm", "flat", "vmap", "loop"]
SECONDS = dict(
    zip(NAMES, (2.26e-5, 2.3e-6, 4.5e-6, 2.4e-5, 8.81e-5, 6.1e-5, 2.3e-5, 3.3e-5, 1.328e-3), strict=True)
)


def text_of(rows: list[Row], columns: list[str], width: int = 120) -> list[str]:
    return [
        "".join(text for text, _ in line) for line in drawn("inv of float64 on cpu", rows, columns, width)
    ]


def test_the_table_looks_like_torchs_own_comparison(capsys):
    times = {"batched": 23.0e-6, "flat": 24.6e-6}
    measured = [
        benchmark.Measurement(
            1,
            [seconds],
            benchmark.TaskSpec(
                "x", "pass", label="inv", sub_label="10x8x3x3", description=name, num_threads=1
            ),
        )
        for name, seconds in times.items()
    ]
    theirs = str(benchmark.Compare(measured)).splitlines()
    title, header, group, row, *_ = text_of([Row("10x8x3x3", "1 thread", times, "batched")], list(times))
    assert (theirs[0].strip("[-] "), title.strip("[-] ")) == ("inv", "inv of float64 on cpu")
    assert theirs[1].split() == header.split()
    assert (group.startswith("1 thread: ---"), theirs[2].startswith("1 threads: ---")) == (True, True)
    assert theirs[3].split() == row.replace("*", "").split()
    assert theirs[3].index("|") == row.index("|")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_screen_and_no_number_is_lost(width):
    rows = [
        Row("10x8x3x3 ~?", "2 threads", SECONDS, "native"),
        Row("100000x3x3", "2 threads", SECONDS, "loop"),
    ]
    lines = text_of(rows, NAMES, width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines)
    for name, seconds in SECONDS.items():
        head, underscore, tail = name.partition("_")
        assert name in shown or (head + underscore in shown and tail in shown)
        assert number(seconds, 1e-6) in shown


def test_columns_that_do_not_fit_are_drawn_below_with_their_labels():
    lines = text_of([Row("10x8x3x3", "2 threads", SECONDS, "native")], NAMES, 60)
    assert sum(line.startswith("[-") for line in lines) == 2
    assert sum("10x8x3x3" in line for line in lines) == 2


def test_rows_are_grouped_by_threads():
    rows = [Row("3x3", "1 thread", SECONDS, "native"), Row("3x3", "2 threads", SECONDS, "native")]
    groups = [line.partition(":")[0] for line in text_of(rows, NAMES) if ": --" in line]
    assert groups == ["1 thread", "2 threads"]


def test_an_untimed_strategy_is_a_dash_even_when_it_is_chosen():
    row = text_of([Row("3x3", "1 thread", {"batched": 1e-5}, "bmm")], ["batched", "bmm", "loop"])[3]
    assert row.replace("|", " ").split() == ["3x3", "10.0", "-*", "-"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (2.3e-6, "2.30"),
        (9.996e-6, "10.0"),
        (1.2345e-5, "12.3"),
        (99.97e-6, "100"),
        (1.1529e-2, "11529"),
        (0.0, "0.000"),
        (9.1e-9, "0.009"),
        (0.9999e-6, "1.00"),
    ],
)
def test_a_number_has_three_digits_or_all_before_the_point(seconds, expected):
    assert expected == number(seconds, 1e-6)


@pytest.mark.parametrize(
    ("least", "unit"),
    [(2.0, "seconds"), (2e-3, "milliseconds"), (2e-6, "microseconds"), (2e-7, "microseconds")],
)
def test_the_unit_is_that_of_the_least_time(least, unit):
    last = text_of([Row("3x3", "1 thread", {"batched": least, "loop": 5.0}, "batched")], ["batched", "loop"])[
        -1
    ]
    assert last.startswith(f"Times are in {unit} (")
