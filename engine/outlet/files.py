"""Files of a finished collection: `<model>.npy` or `.npz`, `fused.npy` and `points.parquet`, rows in corpus order.

Vectors are read from the passes a window at a time and go into every file from there, so memory does not grow with
the collection. What was written is read back and compared with the plan before it gets its name: a file is there whole
and right or not at all, and the same vectors always give the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from interlock.engine.intake.corpus import digest_of
from interlock.engine.outlet import csr
from interlock.engine.outlet.windows import (
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
from interlock.engine.passes.vectors import release
from interlock.engine.record import atomic
from interlock.engine.record.counting import several

if TYPE_CHECKING:
    import pyarrow as pa


Mask = npt.NDArray[np.bool_]
TEXTS = ("id", "chunk_id", "source", "text", "payload")
"""The columns of the table that hold text; those of the vectors follow."""


def write(delivery: Delivery, formats: Sequence[str], directory: Path, beside: Mapping[Path, Sink]) -> list[Path]:
    """Write the files of `formats` ("npy", "parquet") in one walk for these and the sinks `beside`; the paths written.

    Raises InterlockError where the chunks are not those of the plan, the disk refuses, or a file does not hold what the
    plan says when it is read back; no file of this delivery has got its name then, unless the disk refused just that.
    """
    kinds: dict[Path, Npy | csr.Npz | Parquet] = {}  # each is written, and read back, at a path that is not yet its own
    rows = len(delivery.rows.texts)
    if "npy" in formats:
        kinds |= {directory / f"{name}.npy": Npy(name, (rows, dim)) for name, dim in delivery.dims.items()}
        for source in delivery.sparse:
            kinds[directory / f"{source.name}.npz"] = csr.Npz(source.name, (rows, source.file.width))
    if "parquet" in formats:
        kinds[directory / "points.parquet"] = Parquet(rows, delivery.dims, [each.name for each in delivery.sparse])
    with ExitStack() as published:  # files get their names as it closes, when all of them have been compared
        partials = {path: published.enter_context(atomic.replacing(path)) for path in kinds}
        with ExitStack() as open_files:
            sinks = {path: open_files.enter_context(kind.written(partials[path])) for path, kind in kinds.items()}
            if sinks or beside:
                pour(delivery.windows(), {**sinks, **beside})
        with ExitStack() as open_files:
            checks = {}
            for path, kind in kinds.items():
                with reading_back(path):
                    checks[path] = open_files.enter_context(kind.read(partials[path]))
            compare(delivery.without_chunks() if checks else (), checks)
    return list(kinds)


@dataclass(frozen=True)
class Npy:
    """One float32 `.npy` of `shape` [rows, dim] with the vectors of `name`."""

    name: str
    shape: tuple[int, int]

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=self.shape)
        atomic.take_blocks(partial)

        def take(window: Window) -> None:
            array[window.start : window.start + WINDOW] = window.vectors[self.name]
            array.flush()
            release(array)

        yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        array = np.lib.format.open_memmap(partial, mode="r")

        def check(window: Window) -> str:
            if array.dtype != np.float32 or array.shape != self.shape:
                return f"found {array.dtype} {array.shape}, expected float32 {self.shape}"
            wanted = window.vectors[self.name]
            fault = first(window, _differ(array[window.start : window.start + len(wanted)], wanted), "vector")
            release(array)
            return fault

        yield check


@dataclass(frozen=True)
class Parquet:
    """`points.parquet`: id, chunk_id, source, text, payload (JSON) and one vector column a model and `fused`.

    The columns of sparse models come last, as lists of indices and values.
    """

    rows: int
    widths: Mapping[str, int]
    sparse: Sequence[str] = ()

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts = [pa.field(name, pa.string(), nullable=False) for name in TEXTS]
        vectors = [pa.field(name, pa.list_(pa.float32(), width)) for name, width in self.widths.items()]
        terms = [pa.field(name, csr.column_type()) for name in self.sparse]
        schema = pa.schema(texts + vectors + terms)
        with pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=["source"]) as writer:

            def take(window: Window) -> None:
                rows = [
                    (chunk.point_id, chunk.chunk_id, chunk.source, chunk.text, chunk.whole_payload.decode())
                    for chunk in window.chunks
                ]
                columns = [pa.array(column) for column in zip(*rows, strict=True)]
                columns += [_column(window.vectors[name]) for name in self.widths]
                columns += [csr.column(window.sparse[name]) for name in self.sparse]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))

            yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        """A window is a group of rows, and no other column is read than those that the plan speaks of."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(partial) as file:

            def check(window: Window) -> str:
                if file.metadata.num_rows != self.rows:
                    return f"found {several(file.metadata.num_rows, 'row')}, expected {self.rows:,}"
                columns = ["id", "text", *window.vectors, *window.sparse]
                group = file.read_row_group(window.start // WINDOW, columns=columns)
                return _unlike_table(window, group)

            yield check


def _unlike_table(window: Window, group: "pa.Table") -> str:
    """What is wrong with a group of rows of the table; each vector is compared bit by bit."""
    ids, texts = (group[name].to_pylist() for name in ("id", "text"))
    others = [written != uuid_of(point) for written, point in zip(ids, window.points, strict=True)]
    changed = [digest_of(text) != digest for text, digest in zip(texts, window.digests, strict=True)]
    fault = first(window, others, "id") or first(window, changed, "text")
    for name, wanted in window.vectors.items():
        there, column = whole(wanted), group[name].combine_chunks()
        wrong = np.asarray(column.is_valid()) != there
        if not wrong.any():
            wrong[there] = _differ(np.asarray(column.flatten()).reshape(-1, wanted.shape[1]), wanted[there])
        fault = fault or first(window, wrong, f"vector {name}")
    for name, rows in window.sparse.items():
        fault = fault or first(window, csr.of_column(group[name]).unlike(rows), f"vector {name}")
    return fault


def _differ(written: Vectors, wanted: Vectors) -> Mask:
    """Which rows differ in any bit."""
    differ: Mask = (written.view(np.uint32) != wanted.view(np.uint32)).any(axis=1)
    return differ


def _column(vectors: Vectors) -> "pa.Array[Any]":
    """A window of vectors as one column; a parked row is null."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=pa.array((~whole(vectors)).tolist()))
