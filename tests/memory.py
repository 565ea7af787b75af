"""A corpus and a file of vectors that are in memory, for those who drive the rounds without a run."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np


class Tokens:
    """Rows of these lengths; `ids` makes those of a row from its number and its length."""

    def __init__(self, lengths: Sequence[int], ids: Callable[[int, int], np.ndarray]) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        self._rows = [ids(row, length) for row, length in enumerate(lengths)]

    def lengths(self, limit: int) -> np.ndarray:
        return np.minimum(self._lengths, limit)

    def truncated(self, limit: int) -> np.ndarray:
        return np.maximum(self._lengths - limit, 0)

    def row(self, text: int, limit: int) -> np.ndarray:
        return self._rows[text][:limit]


class File:
    """Vectors, and how often each row was written."""

    def __init__(self, rows: int, dim: int) -> None:
        self.array = np.full((rows, dim), np.nan, np.float32)
        self.puts: Counter[int] = Counter()

    def put(self, rows: np.ndarray, vectors: np.ndarray) -> int:
        self.array[rows] = vectors
        self.puts.update(rows.tolist())
        return 0

    def sync(self) -> None:
        """There is no disk."""
