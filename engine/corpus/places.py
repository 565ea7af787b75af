"""Where rows stand: those of a collection at which record of which file, rows of any length in one array, and rows that
are known by a digest.

Of files a step is kept wherever file and record do not simply go on by one.
"""

import mmap
import os
import struct
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from interlock.engine.record import atomic

Ints = npt.NDArray[np.int64]
DIGEST = np.dtype("V16")
PARTS, BITS, PLACE = 16, 28, (1 << 28) - 1
"""Tables, one for each first 4 bits of a hash of 32, and its other bits, which say where in its table it belongs."""
LEAST, GAP = 2000, 64
"""Slots that a table has at least, and those behind the last that is taken."""
MOST = (1 << 31) - 1
"""Numbers."""
STEP = 1 << 16
"""Places of an array that are looked at together where all of them do not go into memory."""
LIVE = 1 << 20
"""Keys that have their slots in memory at least."""
HELD = 1 << 20
"""Bytes of records that are held before they go to the file."""


def starts_of(counts: Ints | Sequence[int]) -> Ints:
    """Return where each row begins, and where the last ends [n + 1], of rows that stand one after the other."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def owners_of(counts: Ints | Sequence[int]) -> Ints:
    """Return the row that each place belongs to, of rows that stand one after the other."""
    return np.repeat(np.arange(len(counts)), np.asarray(counts, np.int64))


def places_of(firsts: Ints, lengths: Ints) -> Ints:
    """Return the places `firsts[i]` to `firsts[i] + lengths[i]`, one row after the other."""
    behind = np.cumsum(lengths) - lengths  # places of the rows before
    return np.repeat(firsts - behind, lengths) + np.arange(lengths.sum())


class Places:
    """The file and the record, counted from 1, of every row that was added in order."""

    def __init__(self) -> None:
        self._steps = Spool([("row", "<i8"), ("record", "<i8")])
        self._count, self._firsts = 0, array("q")  # steps, and the first of each file
        self._files: list[str] = []
        self._next: tuple[str, int] = "", 0

    def add(self, row: int, file: str, record: int) -> None:
        """Take in the next row."""
        if self._next != (file, record):
            if file != self._next[0]:
                self._firsts.append(self._count)
                self._files.append(file)
            self._steps.add(struct.pack("<qq", row, record))
            self._count += 1
        self._next = file, record + 1

    def of(self, row: int) -> tuple[str, int]:
        """Return the file and the record of a row."""
        steps = self._steps.records
        step = bisect_right(steps["row"], row) - 1
        first, record = steps[step].tolist()
        return self._files[bisect_right(self._firsts, step) - 1], record + row - first


def windows(start: int, stop: int, *mapped: npt.NDArray[np.generic]) -> Iterator[slice]:
    """Yield the places from `start` to `stop`, some at a time; `release` what is `mapped` behind each."""
    for first in range(start, stop, STEP):
        yield slice(first, min(first + STEP, stop))
        release(*mapped)


def release(*arrays: npt.NDArray[np.generic]) -> None:
    """Let the kernel take back the pages of memory-mapped arrays, or of those that they are views of, or views of
    views; they stay in their files."""
    for each in arrays:
        owner: object = each
        while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
            owner = owner.base
        if isinstance(mapped := getattr(owner, "_mmap", None), mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)


def save(handle: IO[bytes], array: npt.NDArray[Any]) -> None:
    """Write an array as `np.save` does, and let go of what is mapped of it meanwhile."""
    np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(array))
    for part in windows(0, len(array), array):
        handle.write(array[part].tobytes())


class Spool:
    """Records that come one after the other: the latest in memory, those before in a temporary file."""

    def __init__(self, record: npt.DTypeLike) -> None:
        self._record: np.dtype[Any] = np.dtype(record)
        self._tail, self._filed = bytearray(), 0
        self._file: IO[bytes] | None = None

    def add(self, data: bytes) -> None:
        """Keep further records. Raises DiskError where the disk takes no more."""
        self._tail += data
        if len(self._tail) >= HELD:
            self._put()

    def _put(self) -> None:
        with atomic.explaining(Path(tempfile.gettempdir())):
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115  # as long as it is mapped
            self._file.write(self._tail)
            self._file.flush()
        self._filed += len(self._tail)
        self._tail = bytearray()

    @property
    def records(self) -> npt.NDArray[Any]:
        """All that was kept so far, in order [n], mapped where it is much."""
        if not self._file:
            return np.frombuffer(bytes(self._tail), self._record)
        self._put()
        return np.asarray(np.memmap(self._file, self._record, "r"))


def spooled(record: npt.DTypeLike, parts: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Put arrays end to end, in a temporary file where they are much."""
    kept = Spool(record)
    for part in parts:
        kept.add(part.astype(kept._record, copy=False).tobytes())
    return kept.records


def laid(count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Make room for so many numbers, in a temporary file where they are much."""
    size = count * np.dtype(kind).itemsize
    if size < HELD:
        return np.empty(count, kind)
    with atomic.explaining(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return np.asarray(np.memmap(file, kind, "r+", shape=(count,)))


Table = tuple["memoryview[int]", int, int]


@dataclass(frozen=True)
class FiledTable:
    """A table in a file from `start` on, and a byte of bits in memory for each of its keys, which say of nearly all
    others that they are not in it."""

    file: IO[bytes]
    start: int
    room: int
    span: int
    bits: bytes

    def may_have(self, mark: int) -> bool:
        """Tell whether a key with this mark may be there."""
        at = (mark & PLACE) * 8 * len(self.bits) >> BITS
        return bool(self.bits[at >> 3] & 128 >> (at & 7))

    def numbers(self, mark: int) -> Iterator[int]:
        """Yield the numbers of the keys with this mark."""
        at = (mark & PLACE) * self.span >> BITS
        while True:
            for place, found in enumerate(self._read(at, GAP), at):
                if not found:
                    return
                if found == mark:
                    yield self._read(self.room + place, 1)[0]
            at += GAP

    def _read(self, slot: int, count: int) -> "memoryview[int]":
        return memoryview(os.pread(self.file.fileno(), 4 * count, self.start + 4 * slot)).cast("I")

    @property
    def slots(self) -> npt.NDArray[np.uint32]:
        """The marks and the numbers [2, slots], 0 where a slot is empty."""
        return np.asarray(self._read(0, 2 * self.room)).reshape(2, -1)


class Numbered(Spool):
    """Numbers keys of 16 bytes in the order in which they come, each once.

    In memory a key is a slot with its number and 32 bits of its hash, in tables of which at most three quarters are
    taken: 11 to 13 bytes, until there are many; then one, and its slot goes to a temporary file. The key itself goes to
    one with what is kept beside it, and is read there where those bits are the same, so that no two are taken for one.
    """

    def __init__(self, record: npt.DTypeLike = DIGEST) -> None:
        """Keep a `record` of each, which begins with the key."""
        super().__init__(record)
        self._tables: list[Table] = [(memoryview(bytes(8)).cast("I"), 1, 0)] * PARTS
        self._filed_tables: list[FiledTable] = []
        self._count = self._most = self._in_files = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> bytes:
        size, at = self._record.itemsize, number * self._record.itemsize
        if self._file and at < self._filed:
            return os.pread(self._file.fileno(), size, at)
        return bytes(self._tail[at - self._filed : at - self._filed + size])

    def number(self, record: bytes) -> int:
        """Return the number of the record with this one's key: if there was none, this is kept and has the next."""
        key = record[:16]
        mark = hash(key) & 0xFFFFFFFF or 1  # 0 is an empty slot
        if self._filed_tables and (filed := self._filed_tables[mark >> BITS]).may_have(mark):
            for number in filed.numbers(mark):
                if self[number][:16] == key:
                    return number
        table, room, span = self._tables[mark >> BITS]  # so many marks, then their numbers
        at = (mark & PLACE) * span >> BITS
        while found := table[at]:
            if found == mark and self[number := table[room + at]][:16] == key:
                return number
            at += 1
        if self._count == self._most or at == room - 1:  # the last stays empty: a search ends there
            self._make_room()
            return self.number(record)
        table[at], table[room + at] = mark, (number := self._count)
        self._count = number + 1
        self._tail += record
        if len(self._tail) >= HELD:
            self._put()
        return number

    def _make_room(self) -> None:
        if self._count - self._in_files >= max(LIVE, self._in_files >> 3):
            self._file_tables()
        else:
            for part, each in enumerate(self._tables):
                slots, span = _laid_out([_slots(each)])
                new = _empty(slots.shape[1])
                np.frombuffer(new, np.uint32)[:] = slots.reshape(-1)
                self._tables[part] = new, slots.shape[1], span
        self._most = self._in_files + sum(span * 3 // 4 for *_, span in self._tables)

    def _file_tables(self) -> None:
        """Put the tables and those that went before together into a new file, and begin others of their sizes."""
        filed = list[FiledTable]()
        with atomic.explaining(Path(tempfile.gettempdir())):
            file = tempfile.TemporaryFile()  # noqa: SIM115  # as long as it is read
            for part, (table, room, span) in enumerate(self._tables):
                slots, wide = _laid_out(
                    [_slots((table, room, span)), *(each.slots for each in self._filed_tables[part : part + 1])]
                )
                taken = slots[0][slots[0] != 0].astype(np.int64) & PLACE
                bits = np.zeros(8 * max(1, len(taken)), np.bool_)
                bits[taken * len(bits) >> BITS] = True
                filed.append(FiledTable(file, file.tell(), slots.shape[1], wide, np.packbits(bits).tobytes()))
                file.write(slots.tobytes())
                self._tables[part] = _empty(room), room, span
            file.flush()
        self._filed_tables, self._in_files = filed, self._count


def _empty(room: int) -> "memoryview[int]":
    return memoryview(mmap.mmap(-1, 8 * room)).cast("I")  # given back whole, unlike what malloc has


def _slots(table: Table) -> npt.NDArray[np.uint32]:
    return np.frombuffer(table[0], np.uint32).reshape(2, -1)


def _laid_out(tables: Sequence[npt.NDArray[np.uint32]]) -> tuple[npt.NDArray[np.uint32], int]:
    """Lay out the slots of some tables anew with two fifths of them empty: in the order of the marks, each where it
    belongs or behind the one before; return them, and for how many they are."""
    filled = np.concatenate([each[:, each[0] != 0] for each in tables], axis=1)
    taken = filled[0].astype(np.int64) << 31 | filled[1]
    taken.sort()
    span, order = len(taken) * 5 // 3 + LEAST, np.arange(len(taken))
    places = taken >> 31  # worked on where they lie: of many keys each copy is large
    places &= PLACE
    places *= span
    places >>= BITS
    places -= order
    np.maximum.accumulate(places, out=places)
    places += order
    room = int(max(span, places.max(initial=0) + 1)) + GAP
    slots = np.zeros((2, room), np.uint32)
    slots[0, places] = taken >> 31
    slots[1, places] = taken & MOST
    return slots, span
