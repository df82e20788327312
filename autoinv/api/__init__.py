"""The public functions about decisions: ask, warm, pin, forget, configure."""

from autoinv.api.configuring import configure, using
from autoinv.api.explaining import explain, explain_problem
from autoinv.api.pinning import pin, unpin
from autoinv.api.problems import files, problem_of
from autoinv.api.warming import forget, warm

__all__ = [
    "configure",
    "explain",
    "explain_problem",
    "files",
    "forget",
    "pin",
    "problem_of",
    "unpin",
    "using",
    "warm",
]
