"""Which rows go through the model together: a pure function of their token lengths and a token budget.

Rows are sorted by length, longest first, so that neighbours hardly differ and the largest batch comes first. The
same lengths and budget always give the same batches, and `BatchPlan.digest` names them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Rows that go through a model together and are committed together, longest first: their tokens, and those of the
    longest."""

    rows: Rows
    longest: int
    tokens: int

    @property
    def padding(self) -> int:
        """Tokens added when every row is padded to the longest."""
        return self.longest * len(self.rows) - self.tokens


@dataclass(frozen=True)
class BatchPlan:
    """The ordered batches of one model over one collection."""

    batches: Sequence[Batch]

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.batches)

    @property
    def padding(self) -> int:
        return sum(batch.padding for batch in self.batches)

    def digest(self) -> str:
        """Return the SHA-256 of every row in its batch."""
        return digest_of(batch.rows for batch in self.batches)


def digest_of(batches: Iterable[Rows]) -> str:
    """Return the SHA-256 of every row in its batch."""
    digest = hashlib.sha256()
    for rows in batches:
        digest.update(len(rows).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(rows, np.int64).tobytes())
    return digest.hexdigest()


def plan(rows: Rows, lengths: Lengths, budget: int) -> BatchPlan:
    """Make batches of `rows` (each of `lengths[i]` tokens) of at most `budget` tokens, padding included.

    A row longer than the budget is a batch of its own. Every row is in exactly one batch.
    """
    order = np.lexsort((rows, -lengths))
    rows, lengths, batches, start = rows[order], lengths[order], [], 0
    while start < len(rows):
        longest = int(lengths[start])
        stop = start + max(1, budget // max(longest, 1))
        chosen = lengths[start:stop]
        batches.append(Batch(rows[start:stop], longest, int(chosen.sum())))
        start = stop
    return BatchPlan(batches)
