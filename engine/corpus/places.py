"""Where rows stand: those of a collection at which record of which file, and rows of any length in one array.

Of files a step is kept wherever file and record do not simply go on by one.
"""

from array import array
from bisect import bisect_right
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


class Places:
    """The file and the record, counted from 1, of every row that was added in order."""

    def __init__(self) -> None:
        self._rows, self._records = array("q"), array("q")
        self._files: list[str] = []
        self._next: tuple[str, int] = "", 0

    def add(self, row: int, file: str, record: int) -> None:
        """Take in the next row."""
        if self._next != (file, record):
            self._rows.append(row)
            self._records.append(record)
            self._files.append(file)
        self._next = file, record + 1

    def of(self, row: int) -> tuple[str, int]:
        """Return the file and the record of a row."""
        step = bisect_right(self._rows, row) - 1
        return self._files[step], self._records[step] + row - self._rows[step]
