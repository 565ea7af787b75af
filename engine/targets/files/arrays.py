"""Arrays in files: dense vectors in any numbers, sparse ones as scipy reads them, and those of tokens.

- `<name>.npy` are dense vectors [rows, dim]; in int8 with their scale beside them.
- `<name>.npz` are sparse ones, which `scipy.sparse.load_npz` reads: compressed rows, and one array of ours, `parked`:
  the rows that are empty because they have no vector.
- `<name>.npy` with `<name>-starts.npy` are tokens: a record as it was stored each (`values` int8 [dim] with its
  `scale`, `values` float16 [dim], or `bits` uint8 [dim / 8]); those of row i are `[starts[i]:starts[i + 1]]`, none
  where it was parked.

Windows have to come in order, for writing and for reading back.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.corpus.places import release, starts_of
from interlock.engine.record import atomic
from interlock.engine.targets.windows import WINDOW, Check, Delivery, Files, Sink, Window, first
from interlock.engine.vectors.fusion import to_bytes
from interlock.engine.vectors.precision import FLOAT32, Encoding

VALUE = np.dtype("<f4")


def array_files(delivery: Delivery) -> Files:
    """Yield every array of a delivery: the name of its file, and what writes it."""
    rows = len(delivery.rows.texts)
    for name, dim in delivery.arrays.items():
        numbers = delivery.arrays_in.get(name, FLOAT32)
        yield numbers.file(name), Npy(name, (rows, dim), numbers)
        if numbers.precision == "int8":
            yield scale_file(name), Content(to_bytes(np.array(numbers.scale)))
    for name, width in delivery.terms_widths.items():
        yield f"{name}.npz", Npz(name, (rows, width))
    for name, tokens in delivery.tokens.items():
        counts = tokens.counts(delivery.rows.texts.astype(np.int64))
        yield f"{name}-starts.npy", TokenStarts(name, rows)
        yield f"{name}.npy", TokenVectors(name, tokens.record, int(counts.sum()))


def scale_file(name: str) -> str:
    """Name the file of the number that each of the vectors `name` in int8 is a multiple of."""
    return f"{name}.int8-scale.npy"


@dataclass(frozen=True)
class Npy:
    """One `.npy` of `shape` [rows, width] with the dense vectors of `name` in some numbers."""

    name: str
    shape: tuple[int, int]
    numbers: Encoding = FLOAT32

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=self.numbers.kind, shape=self.shape)
        atomic.take_blocks(partial)

        def take(window: Window) -> None:
            array[window.start : window.start + WINDOW] = self.numbers.encode(window.vectors[self.name])
            array.flush()
            release(array)

        yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        array = np.lib.format.open_memmap(partial, mode="r")

        def check(window: Window) -> str:
            if (array.dtype, array.shape) != (self.numbers.kind, self.shape):
                return f"found {array.dtype} {array.shape}, expected {self.numbers.kind} {self.shape}"
            wanted = self.numbers.encode(window.vectors[self.name])
            fault = first(window, differ(array[window.start : window.start + len(wanted)], wanted), "vector")
            release(array)
            return fault

        yield check


def differ(written: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which rows differ in any bit."""
    bits = np.dtype(f"u{wanted.itemsize}")
    return np.asarray((written.view(bits) != wanted.view(bits)).any(axis=1))


@dataclass(frozen=True)
class Content:
    """A file of these bytes, whatever the rows are."""

    content: bytes

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        partial.write_bytes(self.content)
        yield lambda _: None

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        fault = "" if partial.read_bytes() == self.content else "it has other bytes"
        yield lambda _: fault


@dataclass(frozen=True)
class Npz:
    """One `.npz` of the sparse vectors of `name`; `shape` is [rows, vocabulary]."""

    name: str
    shape: tuple[int, int]

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        """Terms are kept in files without names until all have come: the members of an archive stand one by one, and
        each begins with its length."""
        kind = index_type(self.shape[1])
        counts, parked = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with ExitStack() as spools:
            indices, values = (spools.enter_context(tempfile.TemporaryFile(dir=partial.parent)) for _ in range(2))

            def take(window: Window) -> None:
                rows = window.sparse[self.name]
                indices.write(np.ascontiguousarray(rows.indices, kind).data)
                values.write(np.ascontiguousarray(rows.values, VALUE).data)
                counts.append(rows.counts)
                parked.append(window.start + np.flatnonzero(rows.parked))

            yield take
            indptr = starts_of(np.concatenate(counts))
            with zipfile.ZipFile(partial, "w") as archive:
                for name, spool, of in (("indices", indices, kind), ("data", values, VALUE)):
                    spool.seek(0)
                    with _member(archive, name) as out:
                        header = {"descr": of.str, "fortran_order": False, "shape": (int(indptr[-1]),)}
                        np.lib.format.write_array_header_1_0(out, header)
                        shutil.copyfileobj(spool, out)
                others = {"indptr": indptr, "shape": np.array(self.shape), "parked": np.concatenate(parked)}
                for name, array in {**others, "format": np.array(b"csr")}.items():
                    with _member(archive, name) as out:
                        np.lib.format.write_array(out, array, (1, 0))

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        """Terms are read as they stand in the archive, and never all at once."""
        with zipfile.ZipFile(partial) as archive, ExitStack() as members:
            indptr, shape, parked, layout = (_array(archive, n) for n in ("indptr", "shape", "parked", "format"))
            indices, values = (members.enter_context(archive.open(f"{name}.npy")) for name in ("indices", "data"))
            kind = index_type(self.shape[1])
            found = [_header(indices), _header(values)]
            expected = [(each, (int(indptr[-1]),)) for each in (kind, VALUE)]

            def check(window: Window) -> str:
                if (layout.item(), shape.tolist(), len(indptr)) != (b"csr", list(self.shape), self.shape[0] + 1):
                    return f"found {layout.item()!r} {shape.tolist()}, expected {b'csr'!r} {list(self.shape)}"
                if found != expected:
                    return f"found {found}, expected {expected}"
                starts = indptr[window.start : window.start + len(window.points) + 1]
                terms = int(starts[-1] - starts[0])
                own = np.isin(np.arange(window.start, window.start + len(window.points)), parked)
                numbers = _next(indices, kind, terms), _next(values, VALUE, terms)
                rows = SparseRows(starts - starts[0], *numbers, own)
                return first(window, rows.unlike(window.sparse[self.name]), "vector")

            yield check


def index_type(width: int) -> np.dtype[Any]:
    """Return the type of indices below `width`: the smallest of those that scipy takes."""
    return np.dtype("<i4" if width <= 2**31 else "<i8")


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """An array's place in the archive, dated as all of them are, so that the same vectors give the same bytes."""
    return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        array: npt.NDArray[Any] = np.lib.format.read_array(member)
        return array


def _header(member: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and shape of an array, whose numbers follow."""
    np.lib.format.read_magic(member)
    shape, _, kind = np.lib.format.read_array_header_1_0(member)
    return kind, shape


def _next(member: IO[bytes], kind: np.dtype[Any], length: int) -> npt.NDArray[Any]:
    return np.frombuffer(member.read(length * kind.itemsize), kind, length)


@dataclass(frozen=True)
class TokenStarts:
    """Where the tokens of each row begin, and those of the last end: int64 [rows + 1]."""

    name: str
    rows: int

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.int64, shape=(self.rows + 1,))
        atomic.take_blocks(partial)

        def take(window: Window) -> None:
            array[self._places(window)] = array[window.start] + self._ends(window)

        yield take
        array.flush()

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        array = np.lib.format.open_memmap(partial, mode="r")

        def check(window: Window) -> str:
            if array.dtype != np.int64 or array.shape != (self.rows + 1,):
                return f"found {array.dtype} {array.shape}, expected int64 {(self.rows + 1,)}"
            begin = array[window.start] if window.start else 0
            return first(window, array[self._places(window)] != begin + self._ends(window), "place")

        yield check

    def _places(self, window: Window) -> slice:
        return slice(window.start + 1, window.start + 1 + len(window.points))

    def _ends(self, window: Window) -> npt.NDArray[np.int64]:
        tokens = window.tokens[self.name]
        return np.cumsum(tokens.file.counts(tokens.texts))


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of all rows [tokens], one after the other, each a `record`."""

    name: str
    record: np.dtype[np.void]
    tokens: int

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        with partial.open("wb") as out:
            kind = np.lib.format.dtype_to_descr(self.record)
            np.lib.format.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": (self.tokens,)})

            def take(window: Window) -> None:
                for rows in window.tokens[self.name].slices():
                    out.write(np.ascontiguousarray(rows.records).data)

            yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        array = np.lib.format.open_memmap(partial, mode="r")
        place = 0

        def check(window: Window) -> str:
            nonlocal place
            if (array.dtype, array.shape) != (self.record, (self.tokens,)):
                return f"found {array.dtype} {array.shape}, expected {self.record} {(self.tokens,)}"
            wrong = []
            for rows in window.tokens[self.name].slices():
                written = array[place : place + len(rows.records)]
                wrong.append(TokenRows(rows.starts, written, rows.parked).unlike(rows))
                place += len(rows.records)
            release(array)
            return first(window, np.concatenate(wrong), "tokens")

        yield check
