"""Mistakes that a type checker finds; each is on the line after the one that says so."""

from __future__ import annotations

import torch

import autoinv

# wrong: a misspelt setting
autoinv.configure(buget=1)
# wrong: a misspelt setting in a block
autoinv.using(buget=1)
# wrong: a mode that there is not
autoinv.configure(mode="chached")
# wrong: a misspelt literal
autoinv.safe_inv(torch.eye(3), singular="nna")
# wrong: a misspelt function
autoinv.inverse(torch.eye(3))
# wrong: a text where the number of seconds belongs
autoinv.configure(budget="0.1")
# wrong: not a module
autoinv.patched(modules=["kornia"])
# wrong: out may not stand by position
autoinv.inv(torch.eye(3), torch.eye(3))
# wrong: one tensor for two
autoinv.inv_ex(torch.eye(3), out=3)
