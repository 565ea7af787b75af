"""A collection as a table: `points.parquet`, and the same as lines of JSON in `points.jsonl`; a chunk a row, in order.

Sparse vectors are lists of indices and values. Token vectors are in neither: they would be hundreds of vectors a row. A
vector that a row was parked for is null in the table and absent in its line.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Raw

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.chunks import RECORD, Chunk, parted
from interlock.engine.corpus.identity import digest_of
from interlock.engine.corpus.places import starts_of
from interlock.engine.record.words import several
from interlock.engine.targets.files.arrays import differ, index_type
from interlock.engine.targets.windows import WINDOW, Check, Sink, Window, first, uuid_of, whole
from interlock.engine.vectors.fusion import Vectors
from interlock.engine.vectors.points import NESTED, PayloadForm, arranged
from interlock.engine.vectors.precision import FLOAT32, Encoding

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = "interlock.missing"
"""The key of the table's metadata that says which models are missing."""
TEXTS = ("id", "chunk_id", "source", "text", "payload")
"""The columns of the table that hold text; those of the vectors follow."""
OWN_RECORDS = b"interlock.own_records"
"""The key of the table's metadata with the rows whose payload ends in an object `record` that is of the metadata, and
not the other fields of the chunk's record; there only where there are such rows."""


@dataclass(frozen=True)
class Parquet:
    """`points.parquet`: id, chunk_id, source, text, payload (JSON) and a column of each vector that is kept.

    The columns of sparse models come last. A column of `numbers` with a scale has it in its metadata; the table's own
    says `mark` where models are missing.
    """

    rows: int
    widths: Mapping[str, int]
    sparse: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Encoding] = field(default_factory=dict)
    mark: bytes = b""

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts = [pa.field(name, pa.string(), nullable=False) for name in TEXTS]
        vectors = [self._field(name, width) for name, width in self.widths.items()]
        terms = [pa.field(name, _terms_type(width)) for name, width in self.sparse.items()]
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
                columns += [_column(window.vectors[name], self._of(name)) for name in self.widths]
                columns += [_terms_column(window.sparse[name], width) for name, width in self.sparse.items()]
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
                return self._unlike(window, file.read_row_group(window.start // WINDOW, columns=columns))

            yield check

    def _of(self, name: str) -> Encoding:
        return self.numbers.get(name, FLOAT32)

    def _field(self, name: str, width: int) -> "pa.Field[Any]":
        import pyarrow as pa

        numbers = self._of(name)
        scale = {"scale": repr(float(numbers.scale))} if numbers.precision == "int8" else None
        return pa.field(name, pa.list_(pa.from_numpy_dtype(numbers.kind), width), metadata=scale)

    def _unlike(self, window: Window, group: "pa.Table") -> str:
        """What is wrong with a group of rows; each vector is compared bit by bit."""
        ids, texts = (group[name].to_pylist() for name in ("id", "text"))
        others = [written != uuid_of(point) for written, point in zip(ids, window.points, strict=True)]
        changed = [digest_of(text) != digest for text, digest in zip(texts, window.digests, strict=True)]
        fault = first(window, others, "id") or first(window, changed, "text")
        for name in self.widths:
            there, column = whole(wanted := window.vectors[name]), group[name].combine_chunks()
            wrong = np.asarray(column.is_valid()) != there
            if not wrong.any():
                found = np.asarray(column.flatten()).reshape(-1, wanted.shape[1])
                wrong[there] = differ(found, self._of(name).encode(wanted[there]))
            fault = fault or first(window, wrong, f"vector {name}")
        for name, rows in window.sparse.items():
            fault = fault or first(window, terms_of(group[name]).unlike(rows), f"vector {name}")
        return fault


def matrix_of(column: "pa.ChunkedArray[Any]", width: int) -> Vectors:
    """Read a column of vectors [n, width] in float32; a row that is null is NaN."""
    whole = column.combine_chunks()
    vectors = np.full((len(whole), width), np.nan, np.float32)
    vectors[np.asarray(whole.is_valid())] = np.asarray(whole.flatten()).reshape(-1, width)
    return vectors


def terms_of(column: "pa.ChunkedArray[Any]") -> SparseRows:
    """Read a column of sparse vectors. Raises ValueError where a row has more indices than values, or fewer."""
    structs = column.combine_chunks()
    lists = structs.flatten()
    counts, others = (np.asarray(each.value_lengths().fill_null(0)).astype(np.int64) for each in lists)
    if (counts != others).any():
        raise ValueError("a row has not as many values as indices")
    indices, values = (np.asarray(each.flatten()) for each in lists)
    return SparseRows(starts_of(counts), indices, values, ~np.asarray(structs.is_valid()))


def _column(vectors: Vectors, numbers: Encoding) -> "pa.Array[Any]":
    """A window of vectors as one column; a parked row is null."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(numbers.encode(vectors)).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=pa.array((~whole(vectors)).tolist()))


def _terms_type(width: int) -> "pa.DataType":
    import pyarrow as pa

    indices = pa.list_(pa.from_numpy_dtype(index_type(width)))
    return pa.struct([("indices", indices), ("values", pa.list_(pa.float32()))])


def _terms_column(rows: SparseRows, width: int) -> "pa.Array[Any]":
    """Sparse vectors [n] with indices below `width` as one column; a parked row is null."""
    import pyarrow as pa

    starts = pa.array(rows.starts.astype(np.int32))
    numbers = (rows.indices.astype(index_type(width)), rows.values)
    lists = [pa.ListArray.from_arrays(starts, pa.array(each)) for each in numbers]
    return pa.StructArray.from_arrays(lists, fields=list(_terms_type(width)), mask=pa.array(rows.parked))


@dataclass(frozen=True)
class Jsonl:
    """`points.jsonl`, with the dense vectors of these `names` and the `sparse` ones of those.

    `{"id": ..., "payload": {...}, "vectors": {name: [...]}, "sparse": {name: {"indices": [...], "values": [...]}}}`.
    The payload is that of a point of a store. A number is that of the float32 to its last bit.
    """

    rows: int
    names: Sequence[str]
    sparse: Sequence[str]
    form: PayloadForm = NESTED

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        encoder = msgspec.json.Encoder()
        with partial.open("wb") as out:

            def take(window: Window) -> None:
                for chunk, (vectors, sparse) in zip(window.chunks, self.rows_of(window), strict=True):
                    numbers = {name: vector.tolist() for name, vector in vectors.items()}
                    line = {
                        "id": chunk.point_id,
                        "payload": _payload(chunk, self.form),
                        "vectors": numbers,
                        "sparse": sparse,
                    }
                    out.write(encoder.encode(line) + b"\n")

            yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        """Lines are read by another reader than what wrote them."""
        with partial.open("rb") as lines:

            def check(window: Window) -> str:
                wrong = []
                for row, (vectors, sparse) in enumerate(self.rows_of(window)):
                    text = lines.readline()
                    found = json.loads(text) if text else {"id": None, "payload": {}}
                    wrong.append(
                        found["id"] != uuid_of(window.points[row])
                        or digest_of(found["payload"]["text"]) != window.digests[row]
                        or not _same(found["vectors"], vectors)
                        or found["sparse"] != sparse
                    )
                more = window.start + len(wrong) == self.rows and lines.readline()
                return "it has more lines" if more else first(window, wrong, "line")

            yield check

    def rows_of(self, window: Window) -> Iterator[tuple[dict[str, Vectors], dict[str, object]]]:
        """The dense and sparse vectors of each row by name, without those it was parked for."""
        there = {name: whole(window.vectors[name]) for name in self.names}
        for row in range(len(window.points)):
            vectors = {name: window.vectors[name][row] for name in self.names if there[name][row]}
            sparse: dict[str, object] = {}
            for name in self.sparse:
                rows = window.sparse[name]
                if not rows.parked[row]:
                    cut = slice(*rows.starts[row : row + 2])
                    sparse[name] = {"indices": rows.indices[cut].tolist(), "values": rows.values[cut].tolist()}
            yield vectors, sparse


def _payload(chunk: Chunk, form: PayloadForm) -> dict[str, object]:
    """The payload of its point, in one line: what a JSON file has over several has only blanks between them."""
    record = {RECORD: _in_line(chunk.record)} if chunk.record else {}
    own = {"text": chunk.text, "chunk_id": chunk.chunk_id, "source": chunk.source}
    fields = msgspec.json.decode(_in_line(chunk.payload), type=dict[str, Raw])
    return {**own, **arranged(fields, form), **record}


def _in_line(text: bytes) -> Raw:
    return Raw(text.replace(b"\n", b" ").replace(b"\r", b" "))


def _same(found: dict[str, list[float]], wanted: dict[str, Vectors]) -> bool:
    """Whether these are the very vectors, in every bit."""
    return found.keys() == wanted.keys() and all(
        np.array(numbers).tobytes() == wanted[name].astype(np.float64).tobytes() for name, numbers in found.items()
    )


def texts_table(
    ids: Sequence[str], texts: Sequence[str], dense: Mapping[str, Vectors], sparse: Mapping[str, SparseRows]
) -> "pa.Table":
    """Make a table of texts outside a run, with columns of vectors as `points.parquet` has them."""
    import pyarrow as pa

    columns = {"id": pa.array(ids, pa.string()), "text": pa.array(texts, pa.string())}
    columns |= {name: _column(vectors, FLOAT32) for name, vectors in dense.items()}
    columns |= {name: _terms_column(rows, int(rows.indices.max(initial=0)) + 1) for name, rows in sparse.items()}
    return pa.table(columns)


def text_lines(
    ids: Sequence[str], texts: Sequence[str], dense: Mapping[str, Vectors], sparse: Mapping[str, SparseRows]
) -> Iterator[str]:
    """Write texts outside a run as lines of JSON, with vectors as `points.jsonl` has them."""
    rows = Jsonl(len(ids), [*dense], [*sparse]).rows_of(Window(0, [b""] * len(ids), (), dense, sparse))
    for own, text, (vectors, terms) in zip(ids, texts, rows, strict=True):
        numbers = {name: vector.tolist() for name, vector in vectors.items()}
        yield msgspec.json.encode({"id": own, "text": text, "vectors": numbers, "sparse": terms}).decode() + "\n"
