"""Which rows go through the model together: a pure function of their token lengths and a token budget.

Rows are sorted by length, longest first, so that neighbours hardly differ and the largest batch comes first. The
same lengths and budget always give the same batches, and `BatchPlan.digest` names them.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from interlock.engine.corpus.spans import Splitting

Rows = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Forward:
    """What goes through a model at once: its rows, the tokens of the longest, and those of all."""

    rows: int
    longest: int
    tokens: int

    @property
    def padding(self) -> int:
        """Tokens added when every row is padded to the longest."""
        return self.longest * self.rows - self.tokens


@dataclass(frozen=True)
class Batch:
    """Rows that are committed together, and their forwards: one, unless texts are split into spans."""

    rows: Rows
    forwards: Sequence[Forward]

    @property
    def longest(self) -> int:
        """The token length that the shorter rows of the first forward are padded to; no other has a longer one."""
        return self.forwards[0].longest

    @property
    def tokens(self) -> int:
        return sum(forward.tokens for forward in self.forwards)

    @property
    def spans(self) -> int:
        """How many rows the forwards have: as many as the batch, and every further span of its texts."""
        return sum(forward.rows for forward in self.forwards)

    @property
    def padding(self) -> int:
        return sum(forward.padding for forward in self.forwards)


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
    forwards = forwards_of(lengths[order], budget)
    ends = np.cumsum([forward.rows for forward in forwards], dtype=np.int64)
    parts = np.split(rows[order], ends[:-1]) if forwards else []
    return BatchPlan([Batch(part, (forward,)) for part, forward in zip(parts, forwards, strict=True)])


def forwards_of(lengths: Lengths, budget: int) -> list[Forward]:
    """Cut rows of these lengths, longest first, into forwards of at most `budget` tokens, padding included."""
    forwards, start = [], 0
    while start < len(lengths):
        longest = int(lengths[start])
        chosen = lengths[start : start + max(1, budget // max(longest, 1))]
        forwards.append(Forward(len(chosen), longest, int(chosen.sum())))
        start += len(chosen)
    return forwards


def in_spans(made: BatchPlan, over: Lengths, splitting: Splitting, budget: int) -> BatchPlan:
    """Add the further spans of texts that are longer than their model's limit by `over` [texts].

    A text that fits stays in the forward that it is in without them, so that its vector does not change by a bit.
    Batches of texts that are all split are made anew: of at most `budget` tokens, or of a single text.
    """
    batches, split = [], []
    for batch in made.batches:
        if over[batch.rows].all():
            split.append(batch.rows)
        else:
            further = forwards_of(splitting.lengths(over[batch.rows]), budget)
            batches.append(replace(batch, forwards=[*batch.forwards, *further]))
    anew = _anew(np.concatenate(split), made.batches[0].longest, over, splitting, budget) if split else []
    return BatchPlan([*anew, *batches])


def _anew(rows: Rows, limit: int, over: Lengths, splitting: Splitting, budget: int) -> Iterator[Batch]:
    """Make batches of texts that are all longer than the limit, by all their spans."""
    ends, start = np.cumsum(1 + splitting.counts(over[rows])), 0
    while start < len(rows):
        most = (int(ends[start - 1]) if start else 0) + budget // limit
        part = rows[start : max(start + 1, int(np.searchsorted(ends, most, side="right")))]
        lengths = np.concatenate([np.full(len(part), limit), splitting.lengths(over[part])])
        yield Batch(part, forwards_of(lengths, budget))
        start += len(part)
