"""Which entries of a matrix make up its adjugate: index tables for the closed formula."""

from __future__ import annotations

from itertools import combinations

import torch

PAIRS = tuple(combinations(range(4), 2))


def minors_of_3x3(device: str) -> torch.Tensor:
    """Return the flat indices ``(4 * 9,)`` of the factors of ``l * r - s * t``, the adjugate's entries."""
    factors: list[list[int]] = [[], [], [], []]
    for j in range(3):
        for i in range(3):
            down, below = 3 * ((i + 1) % 3), 3 * ((i + 2) % 3)
            right, beyond = (j + 1) % 3, (j + 2) % 3
            _append(factors, down + right, below + beyond, down + beyond, below + right)
    return _table(factors, device)


def minors_of_4x4(device: str) -> torch.Tensor:
    """Return the flat indices ``(4 * 12,)`` of the factors of the minors of rows 0, 1, then of rows 2, 3."""
    factors: list[list[int]] = [[], [], [], []]
    for upper in (0, 8):
        for p, q in PAIRS:
            _append(factors, upper + p, upper + 4 + q, upper + q, upper + 4 + p)
    return _table(factors, device)


def expansions_of_4x4(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what makes up the adjugate of a 4x4: flat indices ``(3 * 16,)`` of entries and of minors.

    Its entry (j, i), the cofactor (i, j), is the sum of three products of an entry of the row beside i with a
    minor of the other two rows (Laplace). The minors are those of ``minors_of_4x4``, then their negatives.
    """
    entries: list[list[int]] = [[], [], []]
    minors: list[list[int]] = [[], [], []]
    for j in range(4):
        for i in range(4):
            for term, k in enumerate(k for k in range(4) if k != j):
                p, q = (c for c in range(4) if c not in (j, k))
                beside = i ^ 1
                columns = (j, k, p, q) if i in (0, 2) else (k, j, p, q)
                odd = sum(x > y for x, y in combinations(columns, 2)) % 2
                entries[term].append(4 * beside + k)
                minors[term].append(PAIRS.index((p, q)) + (6 if i < 2 else 0) + 12 * odd)
    return _table(entries, device), _table(minors, device)


def _append(factors: list[list[int]], *indices: int) -> None:
    for factor, index in zip(factors, indices, strict=True):
        factor.append(index)


def _table(rows: list[list[int]], device: str) -> torch.Tensor:
    return torch.tensor(rows, device=device).flatten()
