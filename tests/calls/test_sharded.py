"""Matrices that are spread over the ranks of a device mesh: a ``DTensor``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch was built without distributed"
)

BEGIN = """
import os, torch, torch.distributed as dist, autoinv
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"],
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
rank = dist.get_rank()

def matrices(*batch):
    return torch.randn(*batch, 3, 3, dtype=torch.float64) + 3 * torch.eye(3, dtype=torch.float64)

def has_torch_a_rule(D):
    try:
        torch.linalg.inv(D)
    except NotImplementedError:  # torch 2.6
        return False
    return True
"""

# Gloo's threads may still hold tensors when Python ends, which then aborts the process now and then
# (https://github.com/pytorch/pytorch/issues/190489), so a rank leaves without Python's own ending.
END = """
dist.destroy_process_group()
import sys
sys.stdout.flush()
os._exit(0)
"""


def run_ranks(code, ranks=2):
    """Run the code in processes of one gloo group; return what each one printed."""
    store = str(Path(os.environ["AUTOINV_CACHE_DIR"], "store"))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + textwrap.dedent(code) + END],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "STORE": store},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    results = [child.communicate(timeout=180) for child in children]
    for child, (_, errors) in zip(children, results, strict=True):
        assert 0 == child.returncode, errors
    return [output for output, _ in results]


def test_each_rank_gives_its_shard_to_the_strategy_and_the_result_is_placed_as_torchs():
    outputs = run_ranks("""
        cases = [
            (matrices(6), [Shard(0)], [Shard(0)]),
            (matrices(5), [Shard(0)], [Shard(0)]),  # one rank has a matrix more
            (matrices(2, 4), [Shard(1)], [Shard(1)]),
            (matrices(6), [Replicate()], [Replicate()]),
            (matrices(6), [Shard(1)], [Replicate()]),  # rows on different ranks: put together first
            (matrices(6), [Shard(2)], [Replicate()]),
            (matrices(1), [Shard(0)], [Replicate()]),  # fewer matrices than ranks
        ]
        spread = [(A, distribute_tensor(A, mesh, given), placed) for A, given, placed in cases]
        parts = matrices(6)
        spread.append((2 * parts, DTensor.from_local(parts, mesh, [Partial()]), [Replicate()]))
        for A, D, placed in spread:
            for _ in range(2):  # the strategy is chosen on the first call, and remembered for the second
                X = autoinv.inv(D)
            assert isinstance(X, DTensor), type(X)
            assert X.placements == tuple(placed), (D.placements, X.placements)
            if has_torch_a_rule(D):
                assert X.placements == torch.linalg.inv(D).placements
            torch.testing.assert_close(X.full_tensor(), torch.linalg.inv(A))
        print(autoinv.explain(spread[0][1].to_local()).source)
    """)
    assert ["tuned\n"] * 2 == outputs


def test_gradients_of_shards_are_placed_as_the_shards_and_can_be_differentiated_again():
    outputs = run_ranks("""
        A = matrices(6).requires_grad_()
        W = torch.randn(6, 3, 3, dtype=torch.float64)
        once, = torch.autograd.grad((torch.linalg.inv(A) * W).sum(), A, create_graph=True)
        twice, = torch.autograd.grad((once * W).sum(), A)
        for given in (Shard(0), Replicate()):
            D = distribute_tensor(A.detach(), mesh, [given]).requires_grad_()
            V = distribute_tensor(W, mesh, [given])
            X = autoinv.inv(D)
            first, = torch.autograd.grad(X, D, V, create_graph=True)
            second, = torch.autograd.grad(first, D, V)
            assert first.placements == second.placements == (given,)
            torch.testing.assert_close(first.full_tensor(), once)
            torch.testing.assert_close(second.full_tensor(), twice)
        print("as torch")
    """)
    assert ["as torch\n"] * 2 == outputs


def test_a_singular_matrix_raises_on_the_rank_that_holds_it_and_a_refused_dtype_as_torch_does():
    outputs = run_ranks("""
        A = matrices(6)
        A[4] = 0
        try:
            print(autoinv.inv(distribute_tensor(A, mesh, [Shard(0)])).to_local().shape[0])
        except torch.linalg.LinAlgError as error:
            print("Batch element 1" in str(error))
        try:
            autoinv.inv(distribute_tensor(torch.ones(4, 3, 3, dtype=torch.int64), mesh, [Shard(0)]))
        except (RuntimeError, NotImplementedError) as error:
            print(type(error).__name__)
    """)
    assert ["3", "True"] == [output.split()[0] for output in outputs]
    assert outputs[0].split()[1] in ("RuntimeError", "NotImplementedError")
