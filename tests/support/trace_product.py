"""An operation of two operands that is no feature: tr(A B), ``(*, m, k)`` and ``(*, k, m)`` to ``(*)``."""

from types import SimpleNamespace

import torch

from autoinv.calls.call import Call, Replaced
from autoinv.calls.general import general
from autoinv.calls.library_op import register
from autoinv.calls.out import into
from autoinv.operation import Operation, Rules
from autoinv.planning.dispatch import Dispatcher
from autoinv.problem import broadcast
from autoinv.strategy import Strategy


def torch_trace_product(A, B, *, out=None):
    return torch.sum(A * B.mT, (-2, -1), out=out)


def flattened(A, B, *, out=None):
    return torch.sum((A * B.mT).flatten(-2), -1, out=out)


class Way(Strategy):
    def __init__(self, name, run):
        self.name, self.run = name, run

    def supports(self, problem):
        return True

    def bind(self, problem):
        return self.run


class TraceRules(Rules):
    def saved(self, operands, result):
        return operands

    def backward(self, saved, G, wanted):
        G = G[..., None, None]
        return tuple(G * X.mH if asked else None for X, asked in zip(saved[::-1], wanted, strict=True))

    def jvp(self, saved, tangents):
        (A, B), (dA, dB) = saved, tangents
        return sum(torch_trace_product(X, Y) for X, Y in ((dA, B), (A, dB)) if not (X is None or Y is None))


class TraceProduct(Operation):
    name = "trace_product"
    operand_names = ("A", "B")
    takes_what = "batches of matrices of m by k and of k by m"
    table = (Way("batched", torch_trace_product), Way("flat", flattened))
    references = ("batched",)
    rules = TraceRules()
    torch_call = staticmethod(torch_trace_product)

    def fits(self, A, B):
        pairs = zip(reversed(A[:-2]), reversed(B[:-2]), strict=False)
        return (
            min(len(A), len(B)) >= 2 and A[-2:] == B[-2:][::-1] and all(1 in p or p[0] == p[1] for p in pairs)
        )

    def result_shape(self, *shapes):
        return broadcast([shape[:-2] for shape in shapes])

    def work(self, A, B):
        return A[-1] * A[-2]

    def reject_reason(self, operands, result, expected):
        return None if torch.allclose(result, expected, rtol=1e-3, atol=1e-3) else "it is wrong"


def trace_product(A, B, *, out=None):
    return general(CALL, A, B) if out is None else into(CALL, (A, B), out)


OWNER = SimpleNamespace(trace_product=torch_trace_product)
DISPATCHER = Dispatcher(TraceProduct())
CALL = Call(trace_product, DISPATCHER, register(DISPATCHER), (Replaced(OWNER, "trace_product", ("A", "B")),))
