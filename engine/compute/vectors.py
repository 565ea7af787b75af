"""The vectors of one pass on disk: a memory-mapped `vectors.npy` [texts, dim] float32 that fills batch by batch.

Every row is gated before it is written. A batch is committed in the journal with the CRC-32 of its rows, so that
a resumed run knows which rows survived whatever killed it.
"""

import errno
import math
import mmap
import os
import tokenize
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.batches import Rows
from interlock.engine.errors import InterlockError
from interlock.engine.record import atomic

Vectors = npt.NDArray[np.float32]
Kind = TypeVar("Kind", bound=np.generic)
UNIT_TOLERANCE = 1e-2
"""What the length of a unit vector may be off: wide enough for half-precision encoders, far too narrow for a model that
does not normalise."""
NOT_FINITE = "not finite"
NOT_AN_ARRAY = (ValueError, EOFError, TypeError, KeyError, SyntaxError, OverflowError, MemoryError, tokenize.TokenError)
"""What numpy raises for a file that is not, or is no longer, a `.npy`."""


def gate(vectors: Vectors, dim: int) -> dict[int, str]:
    """Find the rows that must not be written, with the reason. Raises InterlockError for a wrong dimension."""
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise InterlockError(f"the model gave vectors of shape {vectors.shape}, expected {dim} dimensions")
    reasons = {int(row): "zero vector" for row in np.flatnonzero(~vectors.any(axis=1))}
    reasons |= {int(row): NOT_FINITE for row in np.flatnonzero(~np.isfinite(vectors).all(axis=1))}
    return reasons


def crc_of(vectors: Vectors) -> int:
    """Return the CRC-32 of the vectors' bytes, row by row."""
    return zlib.crc32(np.ascontiguousarray(vectors).data)


def crc_together(crcs: Sequence[int]) -> int:
    """Make one CRC-32 of several; that of a pass with one output is its only one."""
    return crcs[0] if len(crcs) == 1 else zlib.crc32(np.array(crcs, "<u4").tobytes())


def header_of(path: Path, *, complete: bool = True) -> tuple[np.dtype[np.generic], tuple[int, ...], int]:
    """Read the type and shape of the array in a `.npy` file, and the bytes that the file must have.

    Raises one of NOT_AN_ARRAY where it is none, or has to be `complete` and is not; OSError where it cannot be read.
    """
    with atomic.opened(path) as handle:
        if np.lib.format.read_magic(handle) != (1, 0):
            raise ValueError("another version of the format")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(handle)
        size = handle.tell() + math.prod(shape) * dtype.itemsize
        if fortran or dtype.hasobject or (complete and os.fstat(handle.fileno()).st_size < size):
            raise ValueError("shorter than its header says" if complete else "unexpected header")
    return dtype, shape, size


class VectorFile:
    """The vectors of one model; rows that were never written, or are parked, are NaN."""

    def __init__(self, path: Path, array: Vectors) -> None:
        """Take the memory-mapped `array` [texts, dim] of `path`."""
        self.path, self.array = path, array

    @classmethod
    def open(cls, path: Path, texts: int, dim: int) -> Self:
        """Open `path`, or make it. Raises InterlockError where there is no room for it or it has another shape."""
        if not path.exists():
            create(path, np.full((1, dim), np.nan, np.float32), texts)
        return cls(path, mapped(path, np.dtype(np.float32), (texts, dim), "vectors"))

    @property
    def texts(self) -> int:
        return len(self.array)

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    def put(self, rows: Rows, vectors: Vectors) -> int:
        """Write the vectors of `rows`; returns the CRC-32 of their bytes."""
        self.array[rows] = vectors
        return crc_of(vectors)

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now."""
        return crc_of(self.array[rows])

    def take(self, rows: Rows) -> Vectors:
        """Read `rows`."""
        return self.array[rows]

    def sync(self) -> None:
        """Make every row written so far survive a power cut, and let go of the pages."""
        if isinstance(self.array, np.memmap):
            self.array.flush()
            release(self.array)


def create(path: Path, row: npt.NDArray[np.generic], rows: int) -> None:
    """Make a `.npy` of so many rows like `row` [1, n], with a block on the disk for each of its bytes."""
    with atomic.replacing(path) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=row.dtype, shape=(rows, row.shape[1]))
        atomic.take_blocks(partial)
        for start in range(0, rows, 4096):
            array[start : start + 4096] = row
        array.flush()


def mapped(path: Path, expected: np.dtype[Kind], rows: tuple[int, int], what: str) -> npt.NDArray[Kind]:
    """Map a `.npy` of this type and shape to be written; `what` it holds is for the message. What was cut off is zeros.

    Raises InterlockError where it is something else, is damaged or cannot be opened.
    """
    try:
        dtype, shape, size = header_of(path, complete=False)
        if (dtype, shape) != (expected, rows):
            raise InterlockError(f"{path} has {shape} {what} of {dtype}, expected {rows} of {expected}")
        atomic.take_blocks(path, size)  # what was cut off is there again, and its CRCs differ
        array: npt.NDArray[Kind] = np.lib.format.open_memmap(path, mode="r+")
    except NOT_AN_ARRAY as error:
        raise InterlockError(f"{path} is damaged ({error}): delete it and --resume, which recomputes it") from error
    except OSError as error:
        crowded = error.errno in (errno.EMFILE, errno.ENFILE)
        advice = "raise the open file limit (ulimit -n) and --resume" if crowded else "fix the cause and --resume"
        raise InterlockError(f"cannot open {path}: {error.strerror or error}; {advice}") from error
    return array


def release(array: npt.NDArray[np.generic]) -> None:
    """Let the kernel take back the pages of a memory-mapped array; they stay in its file."""
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)
