"""The files of a pass: `.npy` tables mapped to be written, and append-only records that a table points at.

Of rows of any length a table says where in an append-only file the records of each text stand. Records are only ever
appended, and the table points at them once they are written: what a killed process left behind the last row is never
pointed at. A batch is committed in the journal with the CRC-32 of its rows, so that a resumed run knows which rows
survived; what is torn has another one.
"""

import errno
import math
import os
import threading
import tokenize
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from interlock.engine.corpus.places import Ints, places_of, release
from interlock.engine.errors import InterlockError
from interlock.engine.record import atomic

Kind = TypeVar("Kind", bound=np.generic)
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]
NEVER, PARKED, TORN = -1, -2, -3
"""What stands for a number of records where there is none; on disk the first two stand in place of an offset."""
NOT_AN_ARRAY = (ValueError, EOFError, TypeError, KeyError, SyntaxError, OverflowError, MemoryError, tokenize.TokenError)
"""What numpy raises for a file that is not, or is no longer, a `.npy`."""


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


def create(path: Path, row: npt.NDArray[np.generic], rows: int) -> None:
    """Make a `.npy` of so many rows like `row` [1, n], with a block on the disk for each of its bytes."""
    with atomic.replacing(path) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=row.dtype, shape=(rows, row.shape[1]))
        atomic.take_blocks(partial)
        for start in range(0, rows, 4096):
            array[start : start + 4096] = row
            release(array)
        array.flush()


def rows_in(path: Path) -> int:
    """Count the rows of a `.npy` by its header; 0 where it is none or not there."""
    with suppress(*NOT_AN_ARRAY, OSError):
        return header_of(path, complete=False)[1][0]
    return 0


def lengthen(path: Path, row: npt.NDArray[np.generic], rows: int) -> None:
    """Have a `.npy` of fewer rows like `row` [1, n] end with so many; its header leaves room for the number. Raises
    DiskError where the disk has none; of a file that is another `mapped` says what is wrong with it."""
    there = rows_in(path)
    if not 0 < there < rows:
        return
    begins = header_of(path, complete=False)[2] - there * row.nbytes
    with atomic.explaining(path):
        atomic.take_blocks(path, begins + rows * row.nbytes)
        array = np.memmap(path, row.dtype, "r+", begins, (rows, row.shape[1]))
        for start in range(there, rows, 4096):
            array[start : start + 4096] = row
            release(array)
        array.flush()
        header = BytesIO()
        told = {"descr": np.lib.format.dtype_to_descr(row.dtype), "fortran_order": False, "shape": (rows, row.shape[1])}
        np.lib.format.write_array_header_1_0(header, told)
        assert len(header.getvalue()) == begins, "numpy leaves room for the number of rows"
        with path.open("rb+") as handle:
            handle.write(header.getvalue())
            os.fsync(handle.fileno())


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


def readable(
    path: Path, expected: type[Kind], fits: Callable[[tuple[int, ...]], bool], wanted: str
) -> npt.NDArray[Kind]:
    """Map a `.npy` to be read. Raises ValueError, naming what was `wanted`, for another type or shape, and as
    `header_of` does."""
    dtype, shape, _ = header_of(path)
    if dtype != expected or not fits(shape):
        raise ValueError(f"found {dtype} {shape}, expected {wanted}")
    array: npt.NDArray[Kind] = np.lib.format.open_memmap(path, mode="r")
    return array


def flush(array: npt.NDArray[np.generic]) -> None:
    """Make what was written to a mapped array survive a power cut, and let go of its pages."""
    if isinstance(array, np.memmap):
        array.flush()
        release(array)


class RowFile:
    """The rows of one model as records of one kind, in a file beside their table; safe to be put to by several threads.

    What follows `texts` in `open` and `read` says how a kind keeps its rows.
    """

    RECORDS: ClassVar[str]
    UNWRITTEN: ClassVar[Ints] = np.array([[NEVER, 0]], np.int64)

    def __init__(self, path: Path, table: Ints, record: np.dtype[np.void]) -> None:
        """Take the row table [texts, 2] at `path`."""
        self.path, self.table, self.record = path, table, record
        self.records = path.with_name(self.RECORDS)
        self._appending = threading.Lock()

    @classmethod
    def open(cls, path: Path, texts: int, *kept: Any) -> Self:
        """Open the row table at `path` and the records beside it, or make them.

        Raises InterlockError where there is no room for them or the table has another shape.
        """
        records = path.with_name(cls.RECORDS)
        if not path.exists() or not records.exists():
            atomic.write_bytes(records, b"")
        if not path.exists():
            create(path, cls.UNWRITTEN, texts)
        return cls(path, mapped(path, np.dtype(np.int64), (texts, 2), "rows"), *kept)

    @classmethod
    def read(cls, path: Path, texts: int, *kept: Any) -> Self:
        """Map the row table at `path` to be read. Raises as `readable` does."""
        return cls(path, readable(path, np.int64, lambda shape: shape == (texts, 2), f"{texts:,} rows"), *kept)

    def grow(self, texts: int) -> None:
        """Have rows for so many texts at least, while others are put to."""
        if texts > self.texts:
            lengthen(self.path, self.UNWRITTEN, texts)
            self.table = mapped(self.path, np.dtype(np.int64), (texts, 2), "rows")

    @property
    def texts(self) -> int:
        return len(self.table)

    def sync(self) -> None:
        """Make every row written so far survive a power cut, records first, and let go of the pages."""
        with atomic.explaining(self.records), self.records.open("rb+") as handle:
            os.fsync(handle.fileno())
        with atomic.explaining(self.path):
            flush(self.table)

    def write(self, rows: Rows, starts: Ints, records: Records, parked: Mask) -> None:
        """Append `records`, those of the i-th of `rows` at `[starts[i]:starts[i + 1]]`, then point at them.

        Raises DiskError where the disk takes no more.
        """
        size = self.record.itemsize
        with self._appending:
            with atomic.explaining(self.records), self.records.open("rb+") as handle:
                first = -(-handle.seek(0, os.SEEK_END) // size)  # behind half a record of a killed process too
                handle.seek(first * size)
                handle.write(np.ascontiguousarray(records).view(np.uint8).data)
            self.table[rows, 0] = np.where(parked, PARKED, first + starts[:-1])
            self.table[rows, 1] = np.diff(starts)
            release(self.table)

    def counts(self, rows: Rows) -> Ints:
        """How many records each of `rows` has by the table; none where it was never written, or is parked."""
        return np.asarray(self.table[rows, 1])

    def find(self, rows: Rows) -> tuple[Ints, Records]:
        """How many records each of `rows` has, or what stands for that, and those that are there, row after row."""
        records = np.empty(0, self.record)
        with suppress(FileNotFoundError), atomic.reading(self.records), atomic.opened(self.records) as handle:
            if whole := os.fstat(handle.fileno()).st_size // self.record.itemsize:  # nothing cannot be mapped
                records = np.memmap(handle, self.record, "r", shape=(whole,))
        first, counts = self.table[rows].T
        there = (first >= 0) & (counts >= 0) & (counts <= len(records)) & (first <= len(records) - counts)
        unwritten = np.isin(first, (NEVER, PARKED)) & (counts == 0)
        found = records[places_of(np.where(there, first, 0), np.where(there, counts, 0))]
        return np.where(there, counts, np.where(unwritten, first, TORN)), found

    def damage(self) -> InterlockError:
        """Return the error of rows that are not what was written."""
        return InterlockError(f"{self.records} is damaged: --resume recomputes the damaged rows")
