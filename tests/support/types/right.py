"""Every public function as README uses it: type checkers find nothing wrong here."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

import autoinv


def inverses(A: Tensor) -> Tensor:
    X = autoinv.inv(A)
    autoinv.inv(A, out=X)
    inverse, info = autoinv.inv_ex(A, check_errors=True)
    autoinv.inv_ex(A, out=(inverse, info))
    kept: autoinv.SafeInverse = autoinv.safe_inv(A, eps=1e-6, singular="pinv")
    Y, ok = autoinv.safe_inv(A)
    return X + inverse + kept.inverse + Y * ok[..., None, None]


def under_torchs_names(A: Tensor) -> Tensor:
    with autoinv.patched():
        x = A.inverse()
    block = autoinv.patched(ops=("inv",), modules=[logging], all_threads=True)
    with block, autoinv.patched(["inv"]):
        x = torch.inverse(x)
    decorated: Tensor = decorated_inverse(x)
    return decorated


@autoinv.record("problems.json")
@autoinv.patched()
def decorated_inverse(A: Tensor) -> Tensor:
    return torch.inverse(A)


def decisions(A: Tensor, folder: Path) -> dict[str, float]:
    explanation: autoinv.Explanation = autoinv.explain(A)
    print(explanation, explanation.strategy, explanation.source, dict(explanation.rejected))
    tuned: list[autoinv.Decision] = autoinv.warm((10, 8, 3, 3), "80x4x4", dtype=torch.float64, budget=0.2)
    autoinv.pin((80, 3, 3), "native", dtype="float64", device="cpu")
    was_pinned: bool = autoinv.unpin((80, 3, 3))
    count: int = autoinv.forget() + autoinv.forget((80, 3, 3), dtype=torch.float64) + autoinv.sync()
    print(was_pinned, count, [d.strategy for d in tuned])
    autoinv.configure(mode="cached", strategy="native", budget=0.02, cache_dir=folder, log="info")
    autoinv.configure(budget=None, cache_dir=str(folder))
    with autoinv.using(mode="off") as settings:
        print(settings.budget)
    return dict(explanation.seconds)


def notified() -> None:
    def callback(event: autoinv.DecisionEvent) -> None:
        print(event.problem.key, event.strategy, event.spent_s)

    end = autoinv.on_decision(callback)
    end()
    version: str = autoinv.__version__
    kind: type[RuntimeWarning] = autoinv.AutoinvWarning
    print(version, kind)
