"""Vectors of tokens, as they are stored: one record a token, of int8, float16 or one bit a number.

An int8 token has a scale of its own (its largest number / 127), so a number is off by at most half of that; a one-bit
token keeps only on which side of zero each number is. On disk `token_rows.npy` says where in `tokens.bin` the tokens of
each text stand. Tokens that are alike may be pooled into their mean before they are stored.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.files import TORN, Mask, Records, RowFile, Rows
from interlock.engine.compute.parts.part import Ragged, crc_of
from interlock.engine.corpus.places import Ints, owners_of, starts_of
from interlock.engine.record.facts import TokenPrecision

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
class TokenRows(Ragged):
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

    def to_float32(self) -> Vectors:
        """Return the vectors of all tokens [tokens, dim], as float32."""
        names = self.records.dtype.names or ()
        if "bits" in names:
            signs = np.unpackbits(self.records["bits"], axis=1).astype(np.float32)
            return (2 * signs - 1) / np.float32(np.sqrt(max(1, signs.shape[1])))
        values: Vectors = self.records["values"].astype(np.float32)
        return values * self.records["scale"][:, None] if "scale" in names else values


NO_TOKENS = TokenRows(np.zeros(1, np.int64), np.empty(0, record_of("int8", 0)), np.empty(0, np.bool_))


class TokenFile(RowFile):
    """The token vectors of one model."""

    PLACE, RECORDS = "token_rows.npy", "tokens.bin"

    def __init__(self, path: Path, table: Ints, dim: int, precision: TokenPrecision) -> None:
        """Take the row table [texts, 2] at `path`, whose tokens lie beside it."""
        super().__init__(path, table, record_of(precision, dim))

    @property
    def bytes(self) -> int:
        """What the tokens take so far."""
        return self.records.stat().st_size

    def put(self, rows: Rows, tokens: TokenRows) -> int:
        """Write the tokens of `rows`; returns the CRC-32 of these. Raises DiskError where the disk takes no more."""
        self.write(rows, tokens.starts, tokens.records, tokens.parked)
        return tokens.crc()

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now, which is another one where any of it is torn."""
        return crc_of(*self.find(rows))

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


def pool_tokens(vectors: Vectors, starts: Ints, factor: int) -> tuple[Vectors, Ints]:
    """Pool the unit vectors [tokens, dim] of each row to one for `factor` of them, rounded up; with the new starts."""
    if factor == 1:
        return vectors, starts
    rows = [pool(vectors[begin:end], -(-(end - begin) // factor)) for begin, end in pairwise(starts)]
    return np.concatenate([vectors[:0], *rows]), starts_of(np.array([len(row) for row in rows], np.int64))


def pool(vectors: Vectors, clusters: int) -> Vectors:
    """Pool the unit vectors [tokens, dim] of one text into so many means of unit length, in the order of the first of
    each; all of them as they are where one is not finite.

    Hierarchical clustering with Ward's criterion on cosine distances, as in Clavié et al. 2024, "Reducing the Footprint
    of Multi-Vector Retrieval with Minimal Performance Impact via Token Pooling" (arXiv:2409.14683).
    """
    from scipy.cluster.hierarchy import linkage  # not for a run that pools nothing

    tokens = len(vectors)
    if tokens <= clusters or not np.isfinite(vectors).all():
        return vectors
    likeness = vectors @ vectors.T
    distances = 1 - np.concatenate([row[place + 1 :] for place, row in enumerate(likeness)])
    del likeness  # as large as the clustering's own copy
    merges = linkage(np.maximum(distances, 0), "ward")[: tokens - clusters, :2].astype(np.int64)
    cluster = np.arange(tokens)
    for number, (one, other) in enumerate(merges, tokens):
        cluster[(cluster == one) | (cluster == other)] = number
    _, firsts, members = np.unique(cluster, return_index=True, return_inverse=True)
    sums = np.zeros((clusters, vectors.shape[1]), np.float32)
    np.add.at(sums, members, vectors)
    means: Vectors = sums[np.argsort(firsts)]
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return means
