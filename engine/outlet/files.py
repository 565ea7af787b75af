"""Files of a finished collection: `<model>.npy`, `fused.npy` and `points.parquet`, rows in corpus order.

Vectors are read from the passes a window at a time, so memory does not grow with the collection. Every file is
there whole or not at all, and the same vectors always give the same bytes.
"""

from collections.abc import Iterator, Sequence
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

    def windows(self) -> Iterator[tuple[int, dict[str, Vectors]]]:
        """Every window of rows in order, with the row it starts at."""
        for start in range(0, len(self.rows.texts), WINDOW):
            yield start, self.vectors(start, WINDOW)

    def chunks(self) -> Iterator[tuple[int, list[Chunk], dict[str, Vectors]]]:
        """The same windows with their chunks."""
        stream = reread(self.rows)
        for start, vectors in self.windows():
            yield start, list(islice(stream, WINDOW)), vectors
        if any(True for _ in stream):
            raise AssertionError("more chunks than rows")


def write_npy(delivery: Delivery, directory: Path) -> list[Path]:
    """One float32 `.npy` [rows, dim] a model, and `fused.npy`; the paths written."""
    paths = []
    for name, dim in dims(delivery).items():
        path = directory / f"{name}.npy"
        with durable.replacing(path) as partial:
            shape = (len(delivery.rows.texts), dim)
            array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
            durable.take_blocks(partial)
            for start, vectors in delivery.windows():
                array[start : start + WINDOW] = vectors[name]
                array.flush()
                release(array)
            del array
        paths.append(path)
    return paths


def write_parquet(delivery: Delivery, directory: Path) -> Path:
    """`points.parquet`: id, chunk_id, source, text, payload (JSON) and one vector column a model and `fused`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    widths = dims(delivery)
    plain = [pa.field(name, pa.string(), nullable=False) for name in ("id", "chunk_id", "source", "text", "payload")]
    vectors = [pa.field(name, pa.list_(pa.float32(), width)) for name, width in widths.items()]
    schema = pa.schema(plain + vectors)
    path = directory / "points.parquet"
    with (
        durable.replacing(path) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=["source"]) as writer,
    ):
        for _, chunks, found in delivery.chunks():
            columns = [
                pa.array([chunk.point_id for chunk in chunks]),
                pa.array([chunk.chunk_id for chunk in chunks]),
                pa.array([chunk.source for chunk in chunks]),
                pa.array([chunk.text for chunk in chunks]),
                pa.array([chunk.payload.decode() for chunk in chunks]),
                *(_column(found[name]) for name in widths),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return path


def dims(delivery: Delivery) -> dict[str, int]:
    """The width of every vector that is delivered, by name."""
    widths = {source.name: source.dim for source in delivery.sources}
    fused = delivery.fused_dim
    return widths if fused is None else widths | {"fused": fused}


def _column(vectors: Vectors) -> "pa.Array[Any]":
    """A window of vectors as one column; a parked row is null."""
    import pyarrow as pa

    missing = np.asarray(~np.isfinite(vectors).all(axis=1))
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=pa.array(missing.tolist()))
