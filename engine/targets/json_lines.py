"""`points.jsonl`: a chunk a line, with its id, payload, dense vectors and sparse ones by name.

`{"id": ..., "payload": {...}, "vectors": {name: [...]}, "sparse": {name: {"indices": [...], "values": [...]}}}`. The
payload is that of a point of a store. A number is that of the float32 to its last bit. A row that was parked lacks
that vector; one without terms has empty lists.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Raw

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.chunks import RECORD, Chunk
from interlock.engine.corpus.corpus import digest_of
from interlock.engine.targets.windows import Check, Sink, Vectors, Window, first, uuid_of, whole

Terms = dict[str, list[int] | list[float]]


@dataclass(frozen=True)
class Jsonl:
    """The table as lines of JSON, with the dense vectors of these `names` and the `sparse` ones of those."""

    rows: int
    names: Sequence[str]
    sparse: Sequence[str]

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        encoder = msgspec.json.Encoder()
        with partial.open("wb") as out:

            def take(window: Window) -> None:
                there = {name: whole(window.vectors[name]) for name in self.names}
                for row, chunk in enumerate(window.chunks):
                    line = {
                        "id": chunk.point_id,
                        "payload": _payload(chunk),
                        "vectors": {
                            name: window.vectors[name][row].tolist() for name in self.names if there[name][row]
                        },
                        "sparse": {name: terms for name in self.sparse if (terms := _terms(window.sparse[name], row))},
                    }
                    out.write(encoder.encode(line) + b"\n")

            yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        """Windows have to come in order, as lines do. They are read by another reader than what wrote them."""
        with partial.open("rb") as lines:

            def check(window: Window) -> str:
                there = {name: whole(window.vectors[name]) for name in self.names}
                wrong = []
                for row in range(len(window.points)):
                    text = lines.readline()
                    found = json.loads(text) if text else {"id": None, "payload": {}}
                    vectors = {name: window.vectors[name][row] for name in self.names if there[name][row]}
                    sparse = {n: terms for n in self.sparse if (terms := _terms(window.sparse[n], row))}
                    wrong.append(
                        found["id"] != uuid_of(window.points[row])
                        or digest_of(found["payload"]["text"]) != window.digests[row]
                        or not _same(found["vectors"], vectors)
                        or found["sparse"] != sparse
                    )
                more = window.start + len(wrong) == self.rows and lines.readline()
                return "it has more lines" if more else first(window, wrong, "line")

            yield check


def _payload(chunk: Chunk) -> dict[str, object]:
    """The payload of its point, in one line: what a JSON file has over several has only blanks between them."""
    record = {RECORD: _in_line(chunk.record)} if chunk.record else {}
    own = {"text": chunk.text, "chunk_id": chunk.chunk_id, "source": chunk.source}
    return {**own, "metadata": _in_line(chunk.payload), **record}


def _in_line(text: bytes) -> Raw:
    return Raw(text.replace(b"\n", b" ").replace(b"\r", b" "))


def _terms(rows: SparseRows, row: int) -> Terms | None:
    """The terms of a row; None where it was parked."""
    if rows.parked[row]:
        return None
    cut = slice(*rows.starts[row : row + 2])
    return {"indices": rows.indices[cut].tolist(), "values": rows.values[cut].tolist()}


def _same(found: dict[str, list[float]], wanted: dict[str, Vectors]) -> bool:
    """Whether these are the very vectors, in every bit."""
    return found.keys() == wanted.keys() and all(
        np.array(numbers).tobytes() == wanted[name].astype(np.float64).tobytes() for name, numbers in found.items()
    )
