"""Files of a finished collection: `<model>.npy`, `fused.npy` and `points.parquet`, rows in corpus order.

Vectors are read from the passes once, a window at a time, and go into every file from there, so memory does not grow
with the collection. Every file is there whole or not at all, and the same vectors always give the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.intake.chunks import Chunk
from engine.intake.corpus import Rows, reread
from engine.outlet.fusion import Fusion, fuse, fused_width, truncate
from engine.passes.vectors import release
from engine.record import durable

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW = 2048
Vectors = npt.NDArray[np.float32]
Sink = Callable[[int, list[Chunk], dict[str, Vectors]], None]  # takes a window: its first row, chunks and vectors


@dataclass(frozen=True)
class Source:
    """One model's vectors of the run: a row for each distinct text, NaN where it was parked."""

    name: str
    weight: float
    vectors: Vectors
    dim: int


@dataclass(frozen=True)
class Delivery:
    """A collection ready to be delivered."""

    rows: Rows
    sources: Sequence[Source]
    fusion: Fusion

    @property
    def fused_dim(self) -> int | None:
        return fused_width(self.fusion, [source.dim for source in self.sources], self.names)

    @property
    def names(self) -> list[str]:
        return [source.name for source in self.sources]

    def vectors(self, start: int, count: int) -> dict[str, Vectors]:
        """The vectors of `count` rows from `start`, by model, and `fused` unless the fusion is `named`."""
        texts = self.rows.texts[start : start + count]
        found = {}
        for source in self.sources:
            whole = source.vectors[texts]
            found[source.name] = truncate(whole, source.dim, start) if source.dim < whole.shape[1] else whole
            release(source.vectors)
        fused = fuse(self.fusion, list(found.values()), [source.weight for source in self.sources], start)
        return found if fused is None else found | {"fused": fused}

    def chunks(self) -> Iterator[tuple[int, list[Chunk], dict[str, Vectors]]]:
        """Every window of rows in order: the row it starts at, its chunks and its vectors."""
        stream = reread(self.rows)
        for start, _, vectors in self.without_chunks():
            yield start, list(islice(stream, WINDOW)), vectors
        if any(True for _ in stream):
            raise AssertionError("more chunks than rows")

    def without_chunks(self) -> Iterator[tuple[int, list[Chunk], dict[str, Vectors]]]:
        """The same windows with no chunks in them, for what needs only vectors: no file is read again."""
        for start in range(0, len(self.rows.texts), WINDOW):
            yield start, [], self.vectors(start, WINDOW)


def write(delivery: Delivery, formats: Sequence[str], directory: Path) -> list[Path]:
    """Write the files of `formats` ("npy", "parquet") in one walk over the rows; the paths written."""
    sinks: dict[Path, AbstractContextManager[Sink]] = {}
    if "npy" in formats:
        for name, dim in dims(delivery).items():
            path = directory / f"{name}.npy"
            sinks[path] = _npy(path, name, (len(delivery.rows.texts), dim))
    if "parquet" in formats:
        path = directory / "points.parquet"
        sinks[path] = _parquet(path, dims(delivery))
    if sinks:
        with ExitStack() as stack:
            opened = {path: stack.enter_context(sink) for path, sink in sinks.items()}
            _pour(delivery.chunks() if "parquet" in formats else delivery.without_chunks(), opened)
    return list(sinks)


def _pour(windows: Iterable[tuple[int, list[Chunk], dict[str, Vectors]]], sinks: Mapping[Path, Sink]) -> None:
    for start, chunks, vectors in windows:
        for path, take in sinks.items():
            with durable.explaining(path):  # or the file opened last would be blamed
                take(start, chunks, vectors)


@contextmanager
def _npy(path: Path, name: str, shape: tuple[int, int]) -> Iterator[Sink]:
    """One float32 `.npy` of `shape` [rows, dim] with the vectors of `name`."""
    with durable.replacing(path) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        durable.take_blocks(partial)

        def take(start: int, _: list[Chunk], vectors: dict[str, Vectors]) -> None:
            array[start : start + WINDOW] = vectors[name]
            array.flush()
            release(array)

        yield take


@contextmanager
def _parquet(path: Path, widths: Mapping[str, int]) -> Iterator[Sink]:
    """`points.parquet`: id, chunk_id, source, text, payload (JSON) and one vector column a model and `fused`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = [pa.field(name, pa.string(), nullable=False) for name in ("id", "chunk_id", "source", "text", "payload")]
    schema = pa.schema(plain + [pa.field(name, pa.list_(pa.float32(), width)) for name, width in widths.items()])
    with (
        durable.replacing(path) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=["source"]) as writer,
    ):

        def take(_: int, chunks: list[Chunk], vectors: dict[str, Vectors]) -> None:
            columns = [
                pa.array([chunk.point_id for chunk in chunks]),
                pa.array([chunk.chunk_id for chunk in chunks]),
                pa.array([chunk.source for chunk in chunks]),
                pa.array([chunk.text for chunk in chunks]),
                pa.array([chunk.payload.decode() for chunk in chunks]),
                *(_column(vectors[name]) for name in widths),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))

        yield take


def dims(delivery: Delivery) -> dict[str, int]:
    """The width of every vector that is delivered, by name."""
    return with_fused({source.name: source.dim for source in delivery.sources}, delivery.fused_dim)


def with_fused(widths: Mapping[str, int], fused: int | None) -> dict[str, int]:
    """The models' widths and that of the fused vector, where there is one."""
    return {**widths} if fused is None else {**widths, "fused": fused}


def _column(vectors: Vectors) -> "pa.Array[Any]":
    """A window of vectors as one column; a parked row is null."""
    import pyarrow as pa

    missing = np.asarray(~np.isfinite(vectors).all(axis=1))
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=pa.array(missing.tolist()))
