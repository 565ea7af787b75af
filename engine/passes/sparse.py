"""The sparse vectors of one pass on disk: `rows.npy` says where in `terms.bin` the terms of each text stand.

Terms are only ever appended, and the row table points at them once they are written: what a killed process left
behind the last row is appended after and never pointed at. A batch is committed in the journal with the CRC-32 of its
rows, as in a dense pass, so that a resumed run knows which rows survived; what is torn has another one.
"""

import os
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from interlock.engine.errors import InterlockError
from interlock.engine.passes.batches import Rows
from interlock.engine.passes.vectors import Vectors, create, mapped, release
from interlock.engine.record import atomic

TERM = np.dtype([("index", "<i4"), ("value", "<f4")])
"""One record of `terms.bin`."""
TERMS = "terms.bin"
NEVER, PARKED, TORN = -1, -2, -3
"""What stands for a number of terms where there is none; on disk the first two stand in place of an offset."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SparseRows:
    """Rows of term weights: the terms of row i are `[starts[i]:starts[i + 1]]` of `indices` and `values`.

    `starts` int64 [n + 1]; `indices` int32 [terms], ascending within a row; `values` float32 [terms], > 0; `parked`
    bool [n]: a row that has no vector, where an empty one that is not parked is a text without terms.
    """

    starts: Ints
    indices: npt.NDArray[np.int32]
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

    def to_dense(self, width: int) -> Vectors:
        """Return float32 [n, `width`], NaN where a row is parked."""
        matrix = np.zeros((len(self.parked), width), np.float32)
        matrix[np.repeat(np.arange(len(self.parked)), self.counts), self.indices] = self.values
        matrix[self.parked] = np.nan
        return matrix

    @property
    def counts(self) -> Ints:
        """How many terms each row has [n]."""
        return np.diff(self.starts)

    def unlike(self, other: "SparseRows") -> npt.NDArray[np.bool_]:
        """Tell which rows [n] differ in any bit from those of `other`."""
        wrong: npt.NDArray[np.bool_] = (self.parked != other.parked) | (self.counts != other.counts)
        if not wrong.any():  # or the terms do not stand side by side
            values = self.values.view(np.uint32) != other.values.view(np.uint32)
            wrong[np.repeat(np.arange(len(wrong)), self.counts)[(self.indices != other.indices) | values]] = True
        return wrong

    def crc(self) -> int:
        """Return the CRC-32 of these rows: how many terms each has, or that it is parked, then indices and values."""
        return _crc_of(np.where(self.parked, PARKED, self.counts), self.indices, self.values)


class SparseFile:
    """The sparse vectors of one model; safe to be put to by several threads."""

    def __init__(self, path: Path, texts: int, width: int) -> None:
        """Open the row table at `path` and the terms beside it, or make them.

        Raises InterlockError where there is no room for them or the table has another shape.
        """
        terms = path.with_name(TERMS)
        if not path.exists() or not terms.exists():
            atomic.write_bytes(terms, b"")
        if not path.exists():
            create(path, np.array([[NEVER, 0]], np.int64), texts)
        self._hold(path, mapped(path, np.dtype(np.int64), (texts, 2), "rows"), width)

    @classmethod
    def over(cls, path: Path, table: Ints, width: int) -> Self:
        """Read what lies at `path` by its row table [texts, 2], which nothing is written to."""
        file = cls.__new__(cls)
        file._hold(path, table, width)
        return file

    def _hold(self, path: Path, table: Ints, width: int) -> None:
        self.path, self.terms, self.width, self.texts = path, path.with_name(TERMS), width, len(table)
        self.table = table
        self._appending = threading.Lock()

    def put(self, rows: Rows, vectors: Vectors) -> int:
        """Write the dense `vectors` [n, vocabulary] of `rows`, NaN for parked ones; returns the CRC-32 of their rows.

        Raises DiskError where the disk takes no more.
        """
        sparse = SparseRows.from_dense(vectors)
        terms = np.empty(len(sparse.indices), TERM)
        terms["index"], terms["value"] = sparse.indices, sparse.values
        with self._appending:
            first = self._append(terms)
            self.table[rows, 0] = np.where(sparse.parked, PARKED, first + sparse.starts[:-1])
            self.table[rows, 1] = sparse.counts
        return sparse.crc()

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now, which is another one where any of it is torn."""
        counts, terms = self._found(rows)
        return _crc_of(counts, terms["index"], terms["value"])

    def take(self, rows: Rows) -> SparseRows:
        """Read `rows`; one that was never written is parked. Raises InterlockError where what is there is no row."""
        counts, terms = self._found(rows)
        lengths = np.maximum(counts, 0)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        indices = np.ascontiguousarray(terms["index"], np.int32)
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        ascending = (np.diff(indices) > 0) | (np.diff(row_of) > 0)
        terms_there = (indices >= 0) & (indices < self.width) & (terms["value"] > 0)
        if (counts == TORN).any() or not ascending.all() or not terms_there.all():
            raise InterlockError(f"{self.terms} is damaged: --resume recomputes the damaged rows")
        return SparseRows(starts, indices, np.ascontiguousarray(terms["value"], np.float32), counts < 0)

    def sync(self) -> None:
        """Make every row written so far survive a power cut, terms first, and let go of the pages."""
        with atomic.explaining(self.terms), self.terms.open("rb+") as handle:
            os.fsync(handle.fileno())
        with atomic.explaining(self.path):
            if isinstance(self.table, np.memmap):
                self.table.flush()
                release(self.table)

    def _append(self, terms: npt.NDArray[np.void]) -> int:
        """Write terms behind all that is there, half a record of a killed process included; the first one's place."""
        with atomic.explaining(self.terms), self.terms.open("rb+") as handle:
            first = -(-handle.seek(0, os.SEEK_END) // TERM.itemsize)
            handle.seek(first * TERM.itemsize)
            handle.write(terms.data)
        return first

    def _found(self, rows: Rows) -> tuple[Ints, npt.NDArray[np.void]]:
        """How many terms each of `rows` has, or what stands for that, and the terms that are there, one row after the
        other."""
        terms = self._mapped()
        first, counts = self.table[rows].T
        there = (first >= 0) & (counts >= 0) & (counts <= len(terms)) & (first <= len(terms) - counts)
        unwritten = np.isin(first, (NEVER, PARKED)) & (counts == 0)
        lengths = np.where(there, counts, 0)
        behind = np.cumsum(lengths) - lengths  # terms of the rows before
        places = np.repeat(np.where(there, first, 0) - behind, lengths) + np.arange(lengths.sum())
        return np.where(there, counts, np.where(unwritten, first, TORN)), terms[places]

    def _mapped(self) -> npt.NDArray[np.void]:
        """All whole terms that are there now."""
        with suppress(FileNotFoundError), atomic.reading(self.terms), atomic.opened(self.terms) as handle:
            if whole := os.fstat(handle.fileno()).st_size // TERM.itemsize:  # nothing cannot be mapped
                return np.memmap(handle, TERM, "r", shape=(whole,))
        return np.empty(0, TERM)


def _crc_of(counts: Ints, indices: npt.NDArray[np.int32], values: Vectors) -> int:
    crc = 0
    for array, kind in ((counts, "<i8"), (indices, "<i4"), (values, "<f4")):
        crc = zlib.crc32(np.ascontiguousarray(array, kind).data, crc)
    return crc
