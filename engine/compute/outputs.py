"""What the rows of a batch gave: a dense vector, weights of terms, vectors of tokens, or several of these at once.

A row is parked in all parts or in none, and all parts of a batch are written and committed together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.sparse import SparseRows
from interlock.engine.compute.token_rows import TokenRows, record_of
from interlock.engine.compute.vectors import NOT_FINITE, Vectors, crc_of, crc_together, gate
from interlock.engine.corpus.ragged import starts_of
from interlock.engine.models.card import ModelCard

Part = TypeVar("Part")
NOTHING = np.empty(0, np.int64)
Indices = npt.NDArray[np.int64]
Pieces = Sequence[tuple[Indices, "Outputs"]]


@dataclass(frozen=True)
class Outputs:
    """One row in each part that there is; `dense` float32 [n, dim], NaN where parked."""

    dense: Vectors | None = None
    terms: SparseRows | None = None
    tokens: TokenRows | None = None

    def __len__(self) -> int:
        return next(len(part) for part in (self.dense, self.terms, self.tokens) if part is not None)

    def taken(self, rows: Indices) -> "Outputs":
        """Return some of the rows, in the order in which they are named."""
        return Outputs(
            None if self.dense is None else self.dense[rows],
            None if self.terms is None else self.terms.taken(rows),
            None if self.tokens is None else self.tokens.taken(rows),
        )

    def joined(self, rows: int, pieces: Pieces) -> "Outputs":
        """Make `rows` rows with these parts of `pieces`, each with its places; a row of no piece is parked."""
        if len(pieces) == 1 and np.array_equal(pieces[0][0], np.arange(rows)):
            return pieces[0][1]
        return Outputs(
            None if self.dense is None else _dense(self.dense, rows, pieces),
            None if self.terms is None else SparseRows.joined(rows, _of(pieces, lambda each: each.terms)),
            None if self.tokens is None else TokenRows.joined(rows, _of(pieces, lambda each: each.tokens)),
        )

    def crc(self) -> int:
        """Return the CRC-32 of the rows as their pass writes them, of all parts."""
        dense = [] if self.dense is None else [crc_of(self.dense)]
        return crc_together([*dense, *(part.crc() for part in (self.terms, self.tokens) if part is not None)])

    @property
    def bytes(self) -> int:
        """What the rows take in memory."""
        terms = [] if self.terms is None else [self.terms.indices, self.terms.values]
        tokens = [] if self.tokens is None else [self.tokens.records]
        return sum(each.nbytes for each in (*([] if self.dense is None else [self.dense]), *terms, *tokens))

    @property
    def words(self) -> int:
        """The width that writes out all terms that there are."""
        return 0 if self.terms is None else 1 + int(self.terms.indices.max(initial=-1))

    def matrices(self, words: int) -> list[Vectors]:
        """Write out the parts that have one vector a row, for a few rows: weights of terms as so many `words`."""
        terms = [] if self.terms is None else [self.terms.to_dense(words)]
        return [*([] if self.dense is None else [self.dense]), *terms]

    def refused(self, width: int) -> dict[int, str]:
        """Find the rows that must not be written, with the reason; `width` is that of the dense part.

        A text may have no terms, and no token that counts. Raises InterlockError for a dense part of another width.
        """
        bad = {} if self.dense is None else gate(self.dense, width)
        for part in (self.terms, self.tokens):
            if part is not None:
                bad |= dict.fromkeys(np.flatnonzero(part.parked).tolist(), NOT_FINITE)
        return bad


def none_of(card: ModelCard) -> Outputs:
    """Return what no rows of a model give, with the parts that its pass has."""
    no_tokens = TokenRows(starts_of(NOTHING), np.empty(0, record_of("int8", 0)), NOTHING.astype(np.bool_))
    no_terms = SparseRows.from_dense(np.empty((0, 0), np.float32))
    return Outputs(
        np.empty((0, card.dim), np.float32) if "dense" in card.outputs else None,
        no_terms if "sparse" in card.outputs else None,
        no_tokens if "tokens" in card.outputs else None,
    )


def _dense(like: Vectors, rows: int, pieces: Pieces) -> Vectors:
    vectors = np.full((rows, like.shape[1]), np.nan, np.float32)
    for places, piece in pieces:
        vectors[places] = piece.dense
    return vectors


def _of(pieces: Pieces, part: Callable[[Outputs], Part | None]) -> list[tuple[Indices, Part]]:
    found = ((places, part(piece)) for places, piece in pieces)
    return [(places, each) for places, each in found if each is not None]
