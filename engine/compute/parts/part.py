"""What every kind of output has in common: rows in memory that are taken, joined and gated, and a file of them on disk.

A kind is one file beside this one. Its rows are immutable; a row that has no output is parked. Its file takes rows in
any order and gives back, of any of them, the bytes that were written, or a CRC-32 that differs.
"""

import zlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.files import PARKED, Mask, Rows
from interlock.engine.corpus.places import Ints, owners_of, places_of, starts_of

NOT_FINITE = "not finite"


class Part(Protocol):
    """Rows of one kind of output, in memory."""

    def __len__(self) -> int:
        """Count the rows."""

    def taken(self, rows: Rows, /) -> Self:
        """Return some of the rows, in the order in which they are named."""

    def join(self, rows: int, pieces: Sequence[tuple[Rows, Self]], /) -> Self:
        """Make `rows` rows of `pieces`, each with its places among them; a row of no piece is parked."""

    def gate(self, width: int, /) -> dict[int, str]:
        """Find the rows that must not be written, with the reason; `width` is that of a dense row."""

    def crc(self) -> int:
        """Return the CRC-32 of the rows as their pass writes them."""

    @property
    def sound(self) -> Mask:
        """Tell which rows [n] were not parked."""

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""


class PartFile(Protocol):
    """The rows of one kind of output on disk, for all distinct texts of a pass."""

    path: Path

    @property
    def texts(self) -> int:
        """Count the texts that it has rows for."""

    def put(self, rows: Rows, part: Any, /) -> int:
        """Write `rows`; returns the CRC-32 of them. Raises DiskError where the disk takes no more."""

    def crc(self, rows: Rows, /) -> int:
        """Return the CRC-32 of what stands in `rows` now, which is another one where any of it is torn."""

    def take(self, rows: Rows, /) -> "Part":
        """Read `rows`; one that was never written is parked. Raises InterlockError where what is there is no row."""

    def grow(self, texts: int, /) -> None:
        """Have rows for so many texts at least, while others are put to. Raises InterlockError as opening it does."""

    def sync(self) -> None:
        """Make every row written so far survive a power cut."""


class Ragged:
    """Rows of any length: a dataclass of `starts` [n + 1], columns of what the rows have end to end, and `parked` [n].
    Those of row i are `[starts[i]:starts[i + 1]]` of each column."""

    starts: Ints
    parked: Mask

    def __len__(self) -> int:
        return len(self.parked)

    @property
    def counts(self) -> Ints:
        """How many entries each row has [n]."""
        return np.diff(self.starts)

    @property
    def columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        """What the rows have, end to end."""
        return tuple(getattr(self, field.name) for field in fields(self)[1:-1])  # type: ignore[arg-type]

    def taken(self, rows: Rows) -> Self:
        """Return some of the rows, in the order in which they are named."""
        counts = self.counts[rows]
        places = places_of(self.starts[rows], counts)
        return type(self)(starts_of(counts), *(each[places] for each in self.columns), self.parked[rows])  # type: ignore[call-arg]

    def join(self, rows: int, pieces: Sequence[tuple[Rows, Self]]) -> Self:
        """Make `rows` rows of `pieces`, each with its places among them; a row of no piece is parked."""
        counts, parked = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
        for places, piece in pieces:
            counts[places], parked[places] = piece.counts, piece.parked
        starts = starts_of(counts)
        # Rows without any entry do not know how wide those of others are.
        like = next((piece for _, piece in pieces if piece.starts[-1]), self)
        columns = [np.empty(starts[-1], each.dtype) for each in like.columns]
        for places, piece in pieces:
            if piece.starts[-1]:
                into = places_of(starts[places], piece.counts)
                for column, own in zip(columns, piece.columns, strict=True):
                    column[into] = own
        return type(self)(starts, *columns, parked)  # type: ignore[call-arg]

    def unlike(self, other: Self) -> Mask:
        """Tell which rows [n] differ in any bit from those of `other`."""
        wrong: Mask = (self.parked != other.parked) | (self.counts != other.counts)
        if wrong.any():  # they do not stand side by side
            return wrong
        for mine, theirs in zip(self.columns, other.columns, strict=True):
            if {mine.dtype.kind, theirs.dtype.kind} <= {*"iu"}:  # an index is the same in any width
                differ = mine != theirs
            elif mine.dtype != theirs.dtype:
                return wrong | (self.counts > 0)
            else:
                differ = (bytes_of(mine) != bytes_of(theirs)).any(axis=1)
            wrong[owners_of(self.counts)[differ]] = True
        return wrong

    def gate(self, _width: int) -> dict[int, str]:
        """Find the rows that must not be written. A text may have no terms, and no token that counts."""
        return dict.fromkeys(np.flatnonzero(self.parked).tolist(), NOT_FINITE)

    def crc(self) -> int:
        """Return the CRC-32 of these rows: how many entries each has, or that it is parked, then the columns."""
        return crc_of(np.where(self.parked, PARKED, self.counts), *self.columns)

    @property
    def sound(self) -> Mask:
        """Tell which rows [n] were not parked."""
        return ~self.parked

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        return sum(each.nbytes for each in self.columns)


def bytes_of(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """View the entries of an array [n] as bytes [n, size of one]."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize)


def crc_of(counts: Ints, *columns: npt.NDArray[np.generic]) -> int:
    """Return the CRC-32 of ragged rows as they are written, in the order in which they are written."""
    crc = zlib.crc32(np.ascontiguousarray(counts, "<i8").data)
    for column in columns:
        crc = zlib.crc32(bytes_of(column).data, crc)
    return crc
