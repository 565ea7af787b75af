"""Dense vectors: float32 [n, dim] of unit length, NaN where parked; on disk a mapped `vectors.npy` [texts, dim]."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.files import Mask, Rows, create, flush, lengthen, mapped, readable
from interlock.engine.compute.parts.part import NOT_FINITE
from interlock.engine.corpus.places import release
from interlock.engine.errors import InterlockError

Vectors = npt.NDArray[np.float32]
UNIT_TOLERANCE = 1e-2
"""What the length of a unit vector may be off: wide enough for half-precision encoders, far too narrow for a model that
does not normalise."""


@dataclass(frozen=True)
class DenseRows:
    """One vector a row: `vectors` float32 [n, dim], NaN where a row is parked."""

    vectors: Vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def taken(self, rows: Rows) -> Self:
        """Return some of the rows, in the order in which they are named."""
        return type(self)(self.vectors[rows])

    def join(self, rows: int, pieces: Sequence[tuple[Rows, Self]]) -> Self:
        """Make `rows` rows of `pieces`, each with its places among them; a row of no piece is parked."""
        vectors = np.full((rows, self.vectors.shape[1]), np.nan, np.float32)
        for places, piece in pieces:
            vectors[places] = piece.vectors
        return type(self)(vectors)

    def gate(self, width: int) -> dict[int, str]:
        """Find the rows that must not be written, with the reason. Raises InterlockError for a wrong dimension."""
        vectors = self.vectors
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise InterlockError(f"the model gave vectors of shape {vectors.shape}, expected {width} dimensions")
        reasons = {int(row): "zero vector" for row in np.flatnonzero(~vectors.any(axis=1))}
        return reasons | {int(row): NOT_FINITE for row in np.flatnonzero(~np.isfinite(vectors).all(axis=1))}

    def crc(self) -> int:
        """Return the CRC-32 of the vectors' bytes, row by row."""
        return zlib.crc32(np.ascontiguousarray(self.vectors).data)

    @property
    def sound(self) -> Mask:
        """Tell which rows [n] were not parked: those with unit vectors."""
        with np.errstate(over="ignore", invalid="ignore"):  # a parked row is NaN, and so no unit vector
            return np.asarray(np.abs(np.linalg.norm(self.vectors, axis=1) - 1) <= UNIT_TOLERANCE)

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        return self.vectors.nbytes


@dataclass(frozen=True)
class ScoreRows(DenseRows):
    """One number a row [n, 1], of any size: what a cross-encoder gives of a pair."""

    def gate(self, width: int) -> dict[int, str]:
        """Find the rows that have no score."""
        return dict.fromkeys(np.flatnonzero(~np.isfinite(self.vectors).all(axis=1)).tolist(), NOT_FINITE)

    @property
    def sound(self) -> Mask:
        """Tell which rows [n] have a score."""
        return np.asarray(np.isfinite(self.vectors).all(axis=1))


class VectorFile:
    """The vectors of one model; rows that were never written, or are parked, are NaN."""

    PLACE = "vectors.npy"

    def __init__(self, path: Path, array: Vectors) -> None:
        """Take the memory-mapped `array` [texts, dim] of `path`."""
        self.path, self.array = path, array

    @classmethod
    def open(cls, path: Path, texts: int, dim: int) -> Self:
        """Open `path`, or make it. Raises InterlockError where there is no room for it or it has another shape."""
        if not path.exists():
            create(path, np.full((1, dim), np.nan, np.float32), texts)
        return cls(path, mapped(path, np.dtype(np.float32), (texts, dim), "vectors"))

    @classmethod
    def read(cls, path: Path, texts: int, least: int) -> Self:
        """Map `path` to be read; its model may be wider than the `least` dimensions that were delivered of it. Raises
        as `readable` does."""
        wanted = f"{texts:,} texts of {least} dimensions"

        def fits(shape: tuple[int, ...]) -> bool:
            return len(shape) == 2 and shape[0] == texts and shape[1] >= least

        return cls(path, readable(path, np.float32, fits, wanted))

    def grow(self, texts: int) -> None:
        """Have rows for so many texts at least, while others are put to."""
        if texts > self.texts:
            lengthen(self.path, np.full((1, self.width), np.nan, np.float32), texts)
            self.array = mapped(self.path, np.dtype(np.float32), (texts, self.width), "vectors")

    @property
    def texts(self) -> int:
        return len(self.array)

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    def put(self, rows: Rows, part: DenseRows) -> int:
        """Write the vectors of `rows`; returns the CRC-32 of their bytes."""
        self.array[rows] = part.vectors
        release(self.array)
        return part.crc()

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now."""
        return self.take(rows).crc()

    def take(self, rows: Rows) -> DenseRows:
        """Read `rows`."""
        taken = DenseRows(self.array[rows])
        release(self.array)
        return taken

    def sync(self) -> None:
        """Make every row written so far survive a power cut, and let go of the pages."""
        flush(self.array)
