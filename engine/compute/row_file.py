"""Rows of any length on disk: a table says where in an append-only file the records of each text stand.

Records are only ever appended, and the row table points at them once they are written: what a killed process left
behind the last row is appended after and never pointed at. A batch is committed in the journal with the CRC-32 of its
rows, as in a dense pass, so that a resumed run knows which rows survived; what is torn has another one.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.batches import Rows
from interlock.engine.compute.vectors import create, mapped, release
from interlock.engine.corpus.ragged import Ints, places_of
from interlock.engine.errors import InterlockError
from interlock.engine.record import atomic

NEVER, PARKED, TORN = -1, -2, -3
"""What stands for a number of records where there is none; on disk the first two stand in place of an offset."""
Mask = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]


def open_table(path: Path, records: Path, texts: int) -> Ints:
    """Open the row table [texts, 2] at `path`, or make it and the file of its `records`.

    Raises InterlockError where there is no room for them or the table has another shape.
    """
    if not path.exists() or not records.exists():
        atomic.write_bytes(records, b"")
    if not path.exists():
        create(path, np.array([[NEVER, 0]], np.int64), texts)
    return mapped(path, np.dtype(np.int64), (texts, 2), "rows")


class RowFile:
    """The rows of one model as records of one kind; safe to be put to by several threads."""

    def __init__(self, path: Path, table: Ints, records: Path, record: np.dtype[np.void]) -> None:
        self.path, self.table, self.records, self.record = path, table, records, record
        self._appending = threading.Lock()

    @property
    def texts(self) -> int:
        return len(self.table)

    def sync(self) -> None:
        """Make every row written so far survive a power cut, records first, and let go of the pages."""
        with atomic.explaining(self.records), self.records.open("rb+") as handle:
            os.fsync(handle.fileno())
        with atomic.explaining(self.path):
            if isinstance(self.table, np.memmap):
                self.table.flush()
                release(self.table)

    def write(self, rows: Rows, starts: Ints, records: Records, parked: Mask) -> None:
        """Append `records`, those of the i-th of `rows` at `[starts[i]:starts[i + 1]]`, then point at them.

        Raises DiskError where the disk takes no more.
        """
        with self._appending:
            first = self._append(records)
            self.table[rows, 0] = np.where(parked, PARKED, first + starts[:-1])
            self.table[rows, 1] = np.diff(starts)

    def counts(self, rows: Rows) -> Ints:
        """How many records each of `rows` has by the table; none where it was never written, or is parked."""
        return np.asarray(self.table[rows, 1])

    def find(self, rows: Rows) -> tuple[Ints, Records]:
        """How many records each of `rows` has, or what stands for that, and those that are there, row after row."""
        records = self._mapped()
        first, counts = self.table[rows].T
        there = (first >= 0) & (counts >= 0) & (counts <= len(records)) & (first <= len(records) - counts)
        unwritten = np.isin(first, (NEVER, PARKED)) & (counts == 0)
        found = records[places_of(np.where(there, first, 0), np.where(there, counts, 0))]
        return np.where(there, counts, np.where(unwritten, first, TORN)), found

    def damage(self) -> InterlockError:
        """Return the error of rows that are not what was written."""
        return InterlockError(f"{self.records} is damaged: --resume recomputes the damaged rows")

    def _append(self, records: Records) -> int:
        """Write behind all that is there, half a record of a killed process included; the first one's place."""
        size = self.record.itemsize
        with atomic.explaining(self.records), self.records.open("rb+") as handle:
            first = -(-handle.seek(0, os.SEEK_END) // size)
            handle.seek(first * size)
            handle.write(np.ascontiguousarray(records).view(np.uint8).data)
        return first

    def _mapped(self) -> Records:
        """All whole records that are there now."""
        with suppress(FileNotFoundError), atomic.reading(self.records), atomic.opened(self.records) as handle:
            if whole := os.fstat(handle.fileno()).st_size // self.record.itemsize:  # nothing cannot be mapped
                return np.memmap(handle, self.record, "r", shape=(whole,))
        return np.empty(0, self.record)
