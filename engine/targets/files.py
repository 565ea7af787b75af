"""Files of a finished collection: `<model>.npy` or `.npz`, `fused.npy`, `points.parquet` and `points.jsonl`, rows in
corpus order.

Token vectors are a pair of arrays of their own, and no column of the table, which would hold hundreds of vectors a row.

Vectors are read from the passes a window at a time and go into every file from there, so memory does not grow with
the collection. What was written is read back and compared with the plan before it gets its name: a file is there whole
and right or not at all, and the same vectors always give the same bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.files import release
from interlock.engine.corpus.chunks import parted
from interlock.engine.corpus.corpus import digest_of
from interlock.engine.record import atomic
from interlock.engine.record.words import several
from interlock.engine.targets import csr
from interlock.engine.targets.gap import MARK, files_of
from interlock.engine.targets.json_lines import Jsonl
from interlock.engine.targets.token_arrays import TokenStarts, TokenVectors
from interlock.engine.targets.windows import (
    WINDOW,
    Check,
    Delivery,
    Sink,
    Vectors,
    Window,
    compare,
    first,
    pour,
    reading_back,
    uuid_of,
    whole,
)
from interlock.engine.vectors.binary import bytes_of, pack
from interlock.engine.vectors.form import FUSED
from interlock.engine.vectors.int8 import encode
from interlock.engine.vectors.narrow import Narrow
from interlock.engine.vectors.projection import PROJECTION, to_bytes

if TYPE_CHECKING:
    import pyarrow as pa


Mask = npt.NDArray[np.bool_]
BITS = "fused.bits.npy"
"""What holds a bit for each number of the fused vectors, beside those in int8."""
CODES, SCALE = "fused.int8.npy", "fused.int8-scale.npy"
"""What holds the fused vectors in int8, and the number that each of them is a multiple of."""
MISSING = "interlock.missing"
"""The key in the metadata of the table by which it says what MARK says."""
TEXTS = ("id", "chunk_id", "source", "text", "payload")
"""The columns of the table that hold text; those of the vectors follow."""
OWN_RECORDS = b"interlock.own_records"
"""The key of the table's metadata with the rows whose payload ends in an object `record` that is of the metadata, and
not the other fields of the chunk's record; there only where there are such rows."""


class FileKind(Protocol):
    """How one kind of file is written and read back, at a path that is not yet its own."""

    def written(self, partial: Path) -> AbstractContextManager[Sink]:
        """Make the file at `partial`; whole once the context is left."""

    def read(self, partial: Path) -> AbstractContextManager[Check]:
        """Open what was written, to be compared with the same windows in the same order."""


def kinds(delivery: Delivery, formats: Sequence[str], directory: Path) -> dict[Path, FileKind]:
    """Say which files of `formats` ("npy", "parquet", "jsonl") a delivery has in `directory`, and how each is made."""
    made: dict[Path, FileKind] = {}
    rows = len(delivery.rows.texts)
    if "npy" in formats:
        arrays = delivery.arrays
        if delivery.form.quantise == "binary":
            made[directory / BITS] = OneBit(FUSED, (rows, bytes_of(arrays[FUSED])))
        if delivery.scale is not None:
            made[directory / CODES] = EightBits(FUSED, (rows, arrays.pop(FUSED)), delivery.scale)
            made[directory / SCALE] = Content(to_bytes(np.array(delivery.scale)))
        for name, dim in arrays.items():
            narrow = delivery.narrowed.get(name)
            kind = NarrowNpy(name, (rows, dim), narrow) if narrow else Npy(name, (rows, dim))
            made[directory / (narrow.file(name) if narrow else f"{name}.npy")] = kind
            if narrow and narrow.scale is not None:
                made[directory / f"{name}.int8-scale.npy"] = Content(to_bytes(np.array(narrow.scale)))
        for source in delivery.sparse:
            made[directory / f"{source.name}.npz"] = csr.Npz(source.name, (rows, source.width))
        for tokens in delivery.tokens:
            counts = tokens.file.counts(delivery.rows.texts.astype(np.int64))
            vectors = TokenVectors(tokens.name, tokens.file.record, int(counts.sum()))
            made[directory / f"{tokens.name}-starts.npy"] = TokenStarts(tokens.name, rows)
            made[directory / f"{tokens.name}.npy"] = vectors
    if delivery.projection is not None and formats:
        made[directory / PROJECTION] = Content(to_bytes(delivery.projection))
    terms = {each.name: each.width for each in delivery.sparse}
    if "parquet" in formats:
        made[directory / "points.parquet"] = Parquet(rows, delivery.dims, terms, delivery.narrowed, delivery.mark)
    if "jsonl" in formats:
        made[directory / "points.jsonl"] = Jsonl(rows, [*delivery.dims], [*terms])
    if delivery.missing and formats:  # comes last, so it is the first that gets its name
        made[directory / MARK] = Content(delivery.mark)
    return made


def write(delivery: Delivery, formats: Sequence[str], directory: Path, beside: Mapping[Path, Sink]) -> list[Path]:
    """Write the files of `formats` in one walk for these and the sinks `beside`; the paths written.

    Raises InterlockError where the chunks are not those of the plan, the disk refuses, or a file does not hold what the
    plan says when it is read back; no file of this delivery has got its name then, unless the disk refused just that.
    """
    made = kinds(delivery, formats, directory)
    with ExitStack() as published:  # files get their names as it closes, when all of them have been compared
        partials = {path: published.enter_context(atomic.replacing(path)) for path in made}
        with ExitStack() as open_files:
            sinks = {path: open_files.enter_context(kind.written(partials[path])) for path, kind in made.items()}
            if sinks or beside:
                pour(delivery.windows(), {**sinks, **beside})
        with ExitStack() as open_files:
            checks = {}
            for path, kind in made.items():
                with reading_back(path):
                    checks[path] = open_files.enter_context(kind.read(partials[path]))
            compare(delivery.without_chunks() if checks else (), checks)
    for path in {directory / name for name in (*files_of(delivery.missing), MARK)} - made.keys():
        with atomic.explaining(path):
            path.unlink(missing_ok=True)  # of an earlier delivery, which had more models or fewer
    return list(made)


@dataclass(frozen=True)
class Npy:
    """One float32 `.npy` of `shape` [rows, dim] with the vectors of `name`."""

    name: str
    shape: tuple[int, int]

    @property
    def kind(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return np.dtype(np.float32)

    def of(self, window: Window) -> npt.NDArray[Any]:
        """Return what it has of a window."""
        return window.vectors[self.name]

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=self.kind, shape=self.shape)
        atomic.take_blocks(partial)

        def take(window: Window) -> None:
            array[window.start : window.start + WINDOW] = self.of(window)
            array.flush()
            release(array)

        yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        array = np.lib.format.open_memmap(partial, mode="r")

        def check(window: Window) -> str:
            if array.dtype != self.kind or array.shape != self.shape:
                return f"found {array.dtype} {array.shape}, expected {self.kind} {self.shape}"
            wanted = self.of(window)
            fault = first(window, _differ(array[window.start : window.start + len(wanted)], wanted), "vector")
            release(array)
            return fault

        yield check


@dataclass(frozen=True)
class EightBits(Npy):
    """One int8 `.npy` of `shape` [rows, dim] with the vectors of `name`, each number of them a multiple of `scale`."""

    scale: np.float32

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(np.int8)

    def of(self, window: Window) -> npt.NDArray[Any]:
        return encode(window.vectors[self.name], self.scale)


@dataclass(frozen=True)
class NarrowNpy(Npy):
    """One `.npy` of `shape` [rows, dim] with the vectors of `name` in narrower numbers."""

    narrow: Narrow

    @property
    def kind(self) -> np.dtype[Any]:
        return self.narrow.kind

    def of(self, window: Window) -> npt.NDArray[Any]:
        return self.narrow.encode(window.vectors[self.name])


@dataclass(frozen=True)
class OneBit(Npy):
    """One uint8 `.npy` of `shape` [rows, bytes] with a bit for each number of the vectors of `name`."""

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    def of(self, window: Window) -> npt.NDArray[Any]:
        return pack(window.vectors[self.name])


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
class Parquet:
    """`points.parquet`: id, chunk_id, source, text, payload (JSON) and a column of each vector that is kept.

    The columns of sparse models come last, as lists of indices and values. A column of `narrowed` numbers with a scale
    has it in its metadata, which says `mark` where models are missing.
    """

    rows: int
    widths: Mapping[str, int]
    sparse: Mapping[str, int] = field(default_factory=dict)
    narrowed: Mapping[str, Narrow] = field(default_factory=dict)
    mark: bytes = b""

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts = [pa.field(name, pa.string(), nullable=False) for name in TEXTS]
        vectors = [self._field(name, width) for name, width in self.widths.items()]
        terms = [pa.field(name, csr.column_type(width)) for name, width in self.sparse.items()]
        schema = pa.schema(texts + vectors + terms, metadata={MISSING: self.mark} if self.mark else None)
        own: list[int] = []
        with pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=["source"]) as writer:

            def take(window: Window) -> None:
                for row, chunk in enumerate(window.chunks, window.start):
                    if not chunk.record and parted(chunk.payload)[1]:
                        own.append(row)
                rows = [
                    (chunk.point_id, chunk.chunk_id, chunk.source, chunk.text, chunk.whole_payload.decode())
                    for chunk in window.chunks
                ]
                columns = [pa.array(column) for column in zip(*rows, strict=True)]
                columns += [_column(window.vectors[name], self.narrowed.get(name)) for name in self.widths]
                columns += [csr.column(window.sparse[name], width) for name, width in self.sparse.items()]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))

            yield take
            if own:
                writer.add_key_value_metadata({OWN_RECORDS: json.dumps(own)})

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        """A window is a group of rows, and no other column is read than those that the plan speaks of."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(partial) as file:

            def check(window: Window) -> str:
                if file.metadata.num_rows != self.rows:
                    return f"found {several(file.metadata.num_rows, 'row')}, expected {self.rows:,}"
                columns = ["id", "text", *self.widths, *window.sparse]
                group = file.read_row_group(window.start // WINDOW, columns=columns)
                kept = {name: window.vectors[name] for name in self.widths}
                return _unlike_table(replace(window, vectors=kept), group, self.narrowed)

            yield check

    def _field(self, name: str, width: int) -> "pa.Field[Any]":
        import pyarrow as pa

        narrow = self.narrowed.get(name)
        kind = pa.from_numpy_dtype(narrow.kind if narrow else np.dtype(np.float32))
        scale = {"scale": repr(float(narrow.scale))} if narrow and narrow.scale is not None else None
        return pa.field(name, pa.list_(kind, width), metadata=scale)


def matrix_of(column: "pa.ChunkedArray[Any]", width: int) -> Vectors:
    """Read a column of vectors [n, width] in float32; a row that is null is NaN."""
    whole = column.combine_chunks()
    vectors = np.full((len(whole), width), np.nan, np.float32)
    vectors[np.asarray(whole.is_valid())] = np.asarray(whole.flatten()).reshape(-1, width)
    return vectors


def _unlike_table(window: Window, group: "pa.Table", narrowed: Mapping[str, Narrow] = {}) -> str:
    """What is wrong with a group of rows of the table; each vector is compared bit by bit."""
    ids, texts = (group[name].to_pylist() for name in ("id", "text"))
    others = [written != uuid_of(point) for written, point in zip(ids, window.points, strict=True)]
    changed = [digest_of(text) != digest for text, digest in zip(texts, window.digests, strict=True)]
    fault = first(window, others, "id") or first(window, changed, "text")
    for name, wanted in window.vectors.items():
        there, column = whole(wanted), group[name].combine_chunks()
        wrong = np.asarray(column.is_valid()) != there
        if not wrong.any():
            numbers = narrowed[name].encode(wanted[there]) if name in narrowed else wanted[there]
            wrong[there] = _differ(np.asarray(column.flatten()).reshape(-1, wanted.shape[1]), numbers)
        fault = fault or first(window, wrong, f"vector {name}")
    for name, rows in window.sparse.items():
        fault = fault or first(window, csr.of_column(group[name]).unlike(rows), f"vector {name}")
    return fault


def _differ(written: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Mask:
    """Which rows differ in any bit."""
    bits = np.dtype(f"u{wanted.itemsize}")
    differ: Mask = (written.view(bits) != wanted.view(bits)).any(axis=1)
    return differ


def _column(vectors: Vectors, narrow: Narrow | None) -> "pa.Array[Any]":
    """A window of vectors as one column; a parked row is null."""
    import pyarrow as pa

    numbers = narrow.encode(vectors) if narrow else vectors
    flat = pa.array(np.ascontiguousarray(numbers).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=pa.array((~whole(vectors)).tolist()))
