"""Weights of terms: on disk `rows.npy` says where in `terms.bin` the terms of each text stand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.files import TORN, RowFile, Rows
from interlock.engine.compute.parts.part import Ragged, crc_of
from interlock.engine.corpus.places import Ints, owners_of, starts_of

TERM = np.dtype([("index", "<i4"), ("value", "<f4")])
"""One record of `terms.bin`."""


@dataclass(frozen=True)
class SparseRows(Ragged):
    """Rows of term weights: the terms of row i are `[starts[i]:starts[i + 1]]` of `indices` and `values`.

    `starts` int64 [n + 1]; `indices` [terms], ascending within a row; `values` float32 [terms], > 0; `parked`
    bool [n]: a row that has no vector, where an empty one that is not parked is a text without terms.
    """

    starts: Ints
    indices: npt.NDArray[np.signedinteger]
    values: Vectors
    parked: npt.NDArray[np.bool_]

    @classmethod
    def from_dense(cls, matrix: Vectors) -> Self:
        """Keep what is above zero of `matrix` [n, vocabulary]; a row that is not finite is parked."""
        ends = matrix.min(axis=1, initial=0), matrix.max(axis=1, initial=0)  # which NaN goes through
        parked = np.asarray(~np.isfinite(ends).all(axis=0))
        rows, indices = divmod(np.flatnonzero(matrix > 0), max(1, matrix.shape[1]))
        if parked.any():
            rows, indices = rows[~parked[rows]], indices[~parked[rows]]
        starts = np.searchsorted(rows, np.arange(len(matrix) + 1))
        return cls(starts.astype(np.int64), indices.astype(np.int32), matrix[rows, indices], parked)

    @classmethod
    def largest(
        cls, rows: Ints, indices: npt.NDArray[np.signedinteger], values: Vectors, parked: npt.NDArray[np.bool_]
    ) -> Self:
        """Give each row [n of `parked`] its indices, each with the largest of its values; value i [terms] is that of
        `indices[i]` in `rows[i]`, in any order. A parked row has none."""
        there = np.flatnonzero(~parked[rows])
        order = there[np.lexsort((indices[there], rows[there]))]
        rows, indices = rows[order], indices[order]
        firsts = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(indices, prepend=-1))
        values = np.maximum.reduceat(values[order], firsts) if len(firsts) else values[:0]
        counts = np.bincount(rows[firsts], minlength=len(parked))
        return cls(starts_of(counts), indices[firsts].astype(np.int32), values, parked)

    def heaviest(self, most: int | None, width: int) -> Self:
        """Keep the `most` terms of each row that weigh most, of a vocabulary of `width`; None keeps all.

        Of equal weights those are kept that sentence-transformers keeps for `max_active_dims` on a CPU. Which they are
        depends on the whole row, so that each is written out for it, one at a time.
        """
        if most is None or self.counts.max(initial=0) <= most:
            return self
        from torch import from_numpy  # not for terms that are delivered or read

        kept = np.ones(len(self.indices), np.bool_)
        for row in np.flatnonzero(self.counts > most):
            own = slice(*self.starts[row : row + 2])
            (weights,) = self.taken(np.array([row])).to_dense(width)
            kept[own] = np.isin(self.indices[own], from_numpy(weights).topk(most).indices.numpy())
        counts = np.minimum(self.counts, most)
        return type(self)(starts_of(counts), self.indices[kept], self.values[kept], self.parked)

    def to_dense(self, width: int) -> Vectors:
        """Return float32 [n, `width`], NaN where a row is parked."""
        matrix = np.zeros((len(self.parked), width), np.float32)
        matrix[owners_of(self.counts), self.indices] = self.values
        matrix[self.parked] = np.nan
        return matrix


NO_TERMS = SparseRows.from_dense(np.empty((0, 0), np.float32))


class SparseFile(RowFile):
    """The sparse vectors of one model."""

    PLACE, RECORDS = "rows.npy", "terms.bin"

    def __init__(self, path: Path, table: Ints, width: int) -> None:
        """Take the row table [texts, 2] at `path`, whose terms lie beside it; `width` is the size of the vocabulary."""
        super().__init__(path, table, TERM)
        self.width = width

    def put(self, rows: Rows, sparse: SparseRows) -> int:
        """Write the terms of `rows`; returns their CRC-32. Raises DiskError where the disk takes no more."""
        terms = np.empty(len(sparse.indices), TERM)
        terms["index"], terms["value"] = sparse.indices, sparse.values
        self.write(rows, sparse.starts, terms, sparse.parked)
        return sparse.crc()

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now, which is another one where any of it is torn."""
        counts, terms = self.find(rows)
        return crc_of(counts, terms["index"], terms["value"])

    def take(self, rows: Rows) -> SparseRows:
        """Read `rows`; one that was never written is parked. Raises InterlockError where what is there is no row."""
        counts, terms = self.find(rows)
        lengths = np.maximum(counts, 0)
        indices = np.ascontiguousarray(terms["index"], np.int32)
        ascending = (np.diff(indices) > 0) | (np.diff(owners_of(lengths)) > 0)
        terms_there = (indices >= 0) & (indices < self.width) & (terms["value"] > 0)
        if (counts == TORN).any() or not ascending.all() or not terms_there.all():
            raise self.damage()
        return SparseRows(starts_of(lengths), indices, np.ascontiguousarray(terms["value"], np.float32), counts < 0)
