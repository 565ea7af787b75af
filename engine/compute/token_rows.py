"""The token vectors of texts, as they are stored: one record a token, of int8, float16 or one bit a number.

An int8 token has a scale of its own (its largest number / 127), so a number is off by at most half of that; a one-bit
token keeps only on which side of zero each number is. `TokenFile` holds the records of one pass on disk:
`token_rows.npy` says where in `tokens.bin` the tokens of each text stand.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from interlock.engine.compute.batches import Rows
from interlock.engine.compute.row_file import PARKED, TORN, Mask, Records, RowFile, open_table
from interlock.engine.compute.vectors import Vectors
from interlock.engine.corpus.ragged import Ints, owners_of, places_of, starts_of
from interlock.engine.record.facts import TokenPrecision

TOKENS = "tokens.bin"
LARGEST = 127


def record_of(precision: TokenPrecision, dim: int) -> np.dtype[np.void]:
    """Return how a token of `dim` numbers is stored; `dim` is a multiple of 8 where a number is one bit."""
    match precision:
        case "int8":
            return np.dtype([("scale", "<f4"), ("values", "i1", (dim,))])
        case "float16":
            return np.dtype([("values", "<f2", (dim,))])
        case "bit":
            return np.dtype([("bits", "u1", (dim // 8,))])


@dataclass(frozen=True)
class TokenRows:
    """Rows of token vectors: the tokens of row i are `[starts[i]:starts[i + 1]]` of `records`.

    `starts` int64 [n + 1]; `records` [tokens], each as `record_of` says; `parked` bool [n]: a row that has no vectors.
    """

    starts: Ints
    records: Records
    parked: Mask

    @classmethod
    def from_vectors(cls, vectors: Vectors, starts: Ints, precision: TokenPrecision) -> Self:
        """Store `vectors` [tokens, dim], those of row i at `[starts[i]:starts[i + 1]]`; a row with a token that is not
        finite is parked."""
        wrong = ~np.isfinite(vectors).all(axis=1)
        counts = np.diff(starts)
        parked = np.zeros(len(counts), np.bool_)
        parked[owners_of(counts)[wrong]] = True
        if parked.any():
            counts, vectors = np.where(parked, 0, counts), vectors[np.repeat(~parked, counts)]
        return cls(starts_of(counts), _stored(vectors, precision), parked)

    @classmethod
    def joined(cls, rows: int, pieces: Sequence[tuple[Rows, Self]]) -> Self:
        """Make `rows` rows of `pieces`, each with its places among them; a row of no piece is parked."""
        counts, parked = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
        for places, piece in pieces:
            counts[places], parked[places] = piece.counts, piece.parked
        starts = starts_of(counts)
        record = next((piece.records.dtype for _, piece in pieces if len(piece.records)), record_of("int8", 0))
        records = np.empty(starts[-1], record)
        for places, piece in pieces:
            if len(piece.records):
                records[places_of(starts[places], piece.counts)] = piece.records
        return cls(starts, records, parked)

    def __len__(self) -> int:
        return len(self.parked)

    @property
    def counts(self) -> Ints:
        """How many tokens each row has [n]."""
        return np.diff(self.starts)

    def taken(self, rows: Rows) -> "TokenRows":
        """Return some of the rows, in the order in which they are named."""
        counts = self.counts[rows]
        return TokenRows(starts_of(counts), self.records[places_of(self.starts[rows], counts)], self.parked[rows])

    def to_float32(self) -> Vectors:
        """Return the vectors of all tokens [tokens, dim], as float32."""
        names = self.records.dtype.names or ()
        if "bits" in names:
            signs = np.unpackbits(self.records["bits"], axis=1).astype(np.float32)
            return (2 * signs - 1) / np.float32(np.sqrt(max(1, signs.shape[1])))
        values: Vectors = self.records["values"].astype(np.float32)
        return values * self.records["scale"][:, None] if "scale" in names else values

    def unlike(self, other: "TokenRows") -> Mask:
        """Tell which rows [n] differ in any bit from those of `other`."""
        wrong: Mask = (self.parked != other.parked) | (self.counts != other.counts)
        if self.records.dtype != other.records.dtype:
            return wrong | (self.counts > 0)
        if not wrong.any():  # or the tokens do not stand side by side
            differ = (_bytes_of(self.records) != _bytes_of(other.records)).any(axis=1)
            wrong[owners_of(self.counts)[differ]] = True
        return wrong

    def crc(self) -> int:
        """Return the CRC-32 of these rows: how many tokens each has, or that it is parked, then the tokens."""
        return _crc_of(np.where(self.parked, PARKED, self.counts), self.records)


class TokenFile(RowFile):
    """The token vectors of one model."""

    def __init__(self, path: Path, table: Ints, dim: int, precision: TokenPrecision) -> None:
        """Take the row table [texts, 2] at `path`, whose tokens lie beside it."""
        super().__init__(path, table, path.with_name(TOKENS), record_of(precision, dim))

    @classmethod
    def open(cls, path: Path, texts: int, dim: int, precision: TokenPrecision) -> Self:
        """Open the row table at `path` and the tokens beside it, or make them.

        Raises InterlockError where there is no room for them or the table has another shape.
        """
        return cls(path, open_table(path, path.with_name(TOKENS), texts), dim, precision)

    def put(self, rows: Rows, tokens: TokenRows) -> int:
        """Write the tokens of `rows`; returns the CRC-32 of these. Raises DiskError where the disk takes no more."""
        self.write(rows, tokens.starts, tokens.records, tokens.parked)
        return tokens.crc()

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now, which is another one where any of it is torn."""
        return _crc_of(*self.find(rows))

    def take(self, rows: Rows) -> TokenRows:
        """Read `rows`; one that was never written is parked. Raises InterlockError where what is there is no row."""
        counts, records = self.find(rows)
        for name in {"scale", "values"} & {*(records.dtype.names or ())}:
            if not np.isfinite(records[name]).all():
                raise self.damage()
        if (counts == TORN).any():
            raise self.damage()
        return TokenRows(starts_of(np.maximum(counts, 0)), records, counts < 0)


def _stored(vectors: Vectors, precision: TokenPrecision) -> Records:
    records = np.empty(len(vectors), record_of(precision, vectors.shape[1]))
    match precision:
        case "int8":
            records["scale"] = np.abs(vectors).max(axis=1, initial=0) / LARGEST
            scales = np.where(records["scale"] > 0, records["scale"], 1)
            # A scale that is too small to be told exactly may make a number larger than the largest.
            records["values"] = np.clip(np.rint(vectors / scales[:, None]), -LARGEST, LARGEST)
        case "float16":
            records["values"] = vectors
        case "bit":
            records["bits"] = np.packbits(vectors > 0, axis=1)
    return records


def _bytes_of(records: Records) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.ascontiguousarray(records).view(np.uint8).reshape(len(records), records.dtype.itemsize)


def _crc_of(counts: Ints, records: Records) -> int:
    return zlib.crc32(_bytes_of(records).data, zlib.crc32(np.ascontiguousarray(counts, "<i8").data))
