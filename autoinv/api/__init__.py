"""The public functions about decisions: ask, warm, pin, forget, configure, agree between ranks."""

from autoinv.api.configuring import configure, using
from autoinv.api.distributed import sync
from autoinv.api.explaining import Explanation, explain, explain_problem
from autoinv.api.pinning import pin, unpin
from autoinv.api.problems import files, problem_of
from autoinv.api.recording import record
from autoinv.api.warming import forget, warm, warm_problems

__all__ = [
    "Explanation",
    "configure",
    "explain",
    "explain_problem",
    "files",
    "forget",
    "pin",
    "problem_of",
    "record",
    "sync",
    "unpin",
    "using",
    "warm",
    "warm_problems",
]
