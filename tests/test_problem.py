"""A problem's key: readable back, and never shared by two problems."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoinv.planning.dispatch import key_of
from autoinv.problem import DTYPES, LAYOUTS, Problem, format_shape, layout_of, parse_shape

shapes = st.lists(st.integers(0, 2**40), min_size=2, max_size=6).map(tuple)
operands = st.lists(st.tuples(shapes, st.sampled_from(LAYOUTS)), min_size=1, max_size=3)
problems = st.builds(
    lambda op, operands, dtype, device, threads: Problem(
        op, tuple(s for s, _ in operands), dtype, device, threads, tuple(layout for _, layout in operands)
    ),
    op=st.sampled_from(["inv", "matmul", "solve"]),
    operands=operands,
    dtype=st.sampled_from(list(DTYPES.values())),
    device=st.sampled_from(["cpu", "cuda:0", "cuda:1"]),
    threads=st.integers(1, 512),
)


@given(problems)
def test_a_key_reads_back_as_its_problem(problem):
    assert Problem.parse(problem.key) == problem


@given(problems, problems)
def test_two_problems_never_share_a_key(one, other):
    assert (one.key == other.key) == (one == other)


@given(st.text(max_size=60))
def test_any_text_is_a_key_or_a_value_error(text):
    try:
        assert Problem.parse(text).key == text
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "inv",
        "inv/3x3/float64/cpu/threads=0/contiguous",
        "inv/3x3/float64/cpu/threads=01/contiguous",
        "inv/3x03/float64/cpu/threads=1/contiguous",
        "inv/3x3/float16/cpu/threads=1/contiguous",
        "inv/3x3/float64/cpu/threads=1/diagonal",
        "inv/3 x3/float64/cpu/threads=1/contiguous",
        "inv/٣x3/float64/cpu/threads=1/contiguous",
        "inv/3x3/float64/../etc/threads=1/contiguous",
        "inv/3x3/float64/cpu/threads=1/contiguous\n",
        "inv/3x3/float64/cpu/threads=1/contiguous,contiguous",
        "matmul/3x3,3x3/float64/cpu/threads=1/contiguous",
    ],
)
def test_a_text_that_is_not_a_key_is_refused(key):
    with pytest.raises(ValueError, match=r"key|shape"):
        Problem.parse(key)


@given(shapes)
def test_a_shape_reads_back(shape):
    assert parse_shape(format_shape(shape)) == shape


def test_a_malformed_shape_is_refused_with_an_example():
    with pytest.raises(ValueError, match="such as 10x8x3x3"):
        parse_shape("10,8,3,3")


A = torch.zeros(4, 5, 3, 3)


@pytest.mark.parametrize(
    ("tensor", "layout"),
    [
        (A, "contiguous"),
        (A[1:], "contiguous"),
        (A[:1, :1], "contiguous"),
        (A.mT, "transposed"),
        (torch.linalg.inv(torch.eye(3).expand(4, 3, 3)), "transposed"),
        (A[:, ::2], "strided"),
        (A.transpose(0, 1), "strided"),
        (torch.zeros(3, 3).expand(4, 3, 3), "expanded"),
        (torch.zeros(5, 3, 3).expand(4, 5, 3, 3), "expanded"),
        (torch.zeros(4, 1, 3, 3).expand(4, 5, 3, 3), "expanded"),
        (torch.zeros(3, 3).mT.expand(4, 3, 3), "strided"),
        (torch.zeros(3, 1).expand(4, 3, 3), "strided"),
        (torch.zeros(6), "contiguous"),
        (torch.zeros(6)[::2], "strided"),
        (torch.zeros(4, 6, 6)[:, :3, :3], "strided"),
        (torch.zeros(7, 1, 1).mT, "contiguous"),
    ],
)
def test_each_tensor_has_its_layout(tensor, layout):
    assert layout_of(tensor.shape, tensor.stride()) == layout


@given(st.data())
def test_inputs_that_could_need_different_decisions_never_share_a_memo_key(data):
    def tensor():
        sizes = data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=2))
        n = data.draw(st.integers(1, 4))
        dtype = data.draw(st.sampled_from(list(DTYPES.values())))
        base = torch.zeros(*sizes, n, n, dtype=dtype)
        view = data.draw(st.sampled_from(["same", "transposed", "sliced", "expanded"]))
        if view == "transposed":
            return base.mT
        if view == "sliced":
            return torch.zeros(*sizes, 2 * n, n, dtype=dtype)[..., ::2, :]
        return torch.zeros(n, n, dtype=dtype).expand(*sizes, n, n) if view == "expanded" else base

    one, other = tensor(), tensor()
    if key_of(one) == key_of(other):
        assert Problem.of("inv", one) == Problem.of("inv", other)


def test_each_operand_has_a_layout_of_its_own_in_the_key():
    A, B = torch.zeros(80, 3, 3), torch.zeros(80, 3, 3)
    keys = [
        Problem.of("matmul", *pair).key
        for pair in ((A, B), (A.mT, B), (A, B.mT), (A, B[:1].expand(80, 3, 3)))
    ]
    layouts = [key.rpartition("/")[2] for key in keys]
    assert layouts == [
        "contiguous,contiguous",
        "transposed,contiguous",
        "contiguous,transposed",
        "contiguous,expanded",
    ]
    assert all(key.startswith("matmul/80x3x3,80x3x3/float32/cpu/threads=") for key in keys)


def test_a_key_of_one_operand_is_what_it_was_in_the_first_version():
    key = "inv/10x8x3x3/float64/cpu/threads=2/contiguous"
    assert Problem("inv", ((10, 8, 3, 3),), torch.float64, "cpu", 2).key == key == Problem.parse(key).key


def test_a_batch_of_several_operands_is_the_common_one():
    problem = Problem("matmul", ((10, 1, 3, 3), (8, 3, 3)), torch.float64, "cpu", 2)
    assert (problem.batch, problem.numel) == (80, 90 + 72)
