"""Rows of any length that stand one after the other in one array: where each of them begins, and what is in some."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def starts_of(counts: Ints | Sequence[int]) -> Ints:
    """Return where each row begins, and where the last ends [n + 1], of rows that stand one after the other."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def owners_of(counts: Ints | Sequence[int]) -> Ints:
    """Return the row that each place belongs to, of rows that stand one after the other."""
    return np.repeat(np.arange(len(counts)), np.asarray(counts, np.int64))


def places_of(firsts: Ints, lengths: Ints) -> Ints:
    """Return the places `firsts[i]` to `firsts[i] + lengths[i]`, one row after the other."""
    behind = np.cumsum(lengths) - lengths  # places of the rows before
    return np.repeat(firsts - behind, lengths) + np.arange(lengths.sum())
