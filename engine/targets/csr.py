"""Sparse vectors in files: `<model>.npz`, which scipy.sparse.load_npz reads, and a column of `points.parquet`.

Both hold compressed sparse rows. An `.npz` has scipy's arrays (`data`, `indices`, `indptr`, `shape`, `format`) and one
of ours, `parked`: the rows that are empty because they have no vector. A parked row of the column is null.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.ragged import starts_of
from interlock.engine.targets.windows import Check, Sink, Window, first

if TYPE_CHECKING:
    import pyarrow as pa

VALUE = np.dtype("<f4")


@dataclass(frozen=True)
class Npz:
    """One `.npz` of the sparse vectors of `name`; `shape` is [rows, vocabulary]."""

    name: str
    shape: tuple[int, int]

    @property
    def index(self) -> np.dtype[Any]:
        """The type of its indices."""
        return _index_of(self.shape[1])

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        """Terms are kept in files without names until all have come: the members of an archive stand one by one, and
        each begins with its length."""
        counts, parked = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with ExitStack() as spools:
            indices, values = (spools.enter_context(tempfile.TemporaryFile(dir=partial.parent)) for _ in range(2))

            def take(window: Window) -> None:
                rows = window.sparse[self.name]
                indices.write(np.ascontiguousarray(rows.indices, self.index).data)
                values.write(np.ascontiguousarray(rows.values, VALUE).data)
                counts.append(rows.counts)
                parked.append(window.start + np.flatnonzero(rows.parked))

            yield take
            indptr = starts_of(np.concatenate(counts))
            with zipfile.ZipFile(partial, "w") as archive:
                _store(archive, "indices", indices, self.index, int(indptr[-1]))
                _store(archive, "data", values, VALUE, int(indptr[-1]))
                others = {"indptr": indptr, "shape": np.array(self.shape), "parked": np.concatenate(parked)}
                for name, array in {**others, "format": np.array(b"csr")}.items():
                    with _member(archive, name) as out:
                        np.lib.format.write_array(out, array, (1, 0))

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        """Windows have to come in order: terms are read as they stand in the archive, and never all at once."""
        with zipfile.ZipFile(partial) as archive, ExitStack() as members:
            indptr, shape, parked, layout = (_array(archive, n) for n in ("indptr", "shape", "parked", "format"))
            indices, values = (members.enter_context(archive.open(f"{name}.npy")) for name in ("indices", "data"))
            found = [_header(indices), _header(values)]
            expected = [(kind, (int(indptr[-1]),)) for kind in (self.index, VALUE)]

            def check(window: Window) -> str:
                if (layout.item(), shape.tolist(), len(indptr)) != (b"csr", list(self.shape), self.shape[0] + 1):
                    return f"found {layout.item()!r} {shape.tolist()}, expected {b'csr'!r} {list(self.shape)}"
                if found != expected:
                    return f"found {found}, expected {expected}"
                starts = indptr[window.start : window.start + len(window.points) + 1]
                terms = int(starts[-1] - starts[0])
                own = np.isin(np.arange(window.start, window.start + len(window.points)), parked)
                rows = SparseRows(
                    starts - starts[0], _next(indices, self.index, terms), _next(values, VALUE, terms), own
                )
                return first(window, rows.unlike(window.sparse[self.name]), "vector")

            yield check


def _index_of(width: int) -> np.dtype[Any]:
    """The smallest of the types that scipy takes."""
    return np.dtype("<i4" if width <= 2**31 else "<i8")


def column_type(width: int) -> "pa.DataType":
    """Return the type of a column of sparse vectors with indices below `width`."""
    import pyarrow as pa

    return pa.struct([("indices", pa.list_(pa.from_numpy_dtype(_index_of(width)))), ("values", pa.list_(pa.float32()))])


def column(rows: SparseRows, width: int) -> "pa.Array[Any]":
    """Make a column [n] of sparse vectors with indices below `width`; a parked row is null."""
    import pyarrow as pa

    starts = pa.array(rows.starts.astype(np.int32))
    lists = [
        pa.ListArray.from_arrays(starts, pa.array(terms))
        for terms in (rows.indices.astype(_index_of(width)), rows.values)
    ]
    return pa.StructArray.from_arrays(lists, fields=list(column_type(width)), mask=pa.array(rows.parked))


def of_column(chunked: "pa.ChunkedArray[Any]") -> SparseRows:
    """Read a column of sparse vectors. Raises ValueError where a row has more indices than values, or fewer."""
    structs = chunked.combine_chunks()
    lists = structs.flatten()
    counts, others = (np.asarray(each.value_lengths().fill_null(0)).astype(np.int64) for each in lists)
    if (counts != others).any():
        raise ValueError("a row has not as many values as indices")
    indices, values = (np.asarray(each.flatten()) for each in lists)
    return SparseRows(starts_of(counts), indices, values, ~np.asarray(structs.is_valid()))


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """An array's place in the archive, dated as all of them are, so that the same vectors give the same bytes."""
    return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)


def _store(archive: zipfile.ZipFile, name: str, spool: IO[bytes], kind: np.dtype[Any], length: int) -> None:
    """Move what was gathered in a file into the archive, as an array of this length."""
    spool.seek(0)
    with _member(archive, name) as out:
        header = {"descr": kind.str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(out, header)
        shutil.copyfileobj(spool, out)


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
