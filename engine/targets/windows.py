"""A collection ready to be delivered, a window of rows at a time: its plan, its chunks, and the vectors of its passes.

Sinks take the windows as they come, and checks are asked with the same windows whether what was written is what the
plan says. Vectors are read from the passes each time, never from what a sink remembers.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.terms import SparseFile, SparseRows
from interlock.engine.compute.parts.tokens import TokenFile, TokenRows
from interlock.engine.corpus.chunks import RECORD, Chunk
from interlock.engine.corpus.corpus import Rows
from interlock.engine.corpus.features import TERM
from interlock.engine.corpus.identity import Digests
from interlock.engine.corpus.places import Spool, places_of, release, starts_of
from interlock.engine.corpus.rereading import reread
from interlock.engine.errors import InterlockError
from interlock.engine.record import atomic
from interlock.engine.record.facts import RosterEntry
from interlock.engine.record.words import several
from interlock.engine.vectors.bm25 import WordWeights
from interlock.engine.vectors.fusion import Vectors, fuse, project, truncate
from interlock.engine.vectors.manifest import CollectionSpec
from interlock.engine.vectors.points import MOST_INDEX, NESTED, PayloadForm, Point, Terms, Tokens, arranged
from interlock.engine.vectors.precision import ALL, FUSED, Encoding

WINDOW = 2048
TOKENS = 16384
"""Tokens that are in memory at once, unless one text has more."""

BLOCK = 1 << 20
"""Bytes of terms that are gathered before they are written."""
SAMPLE = 256
"""Rows of a collection that are looked at more closely than all of them can be."""

Places = npt.NDArray[np.int64]


class ChunkTerms:
    """The terms of all chunks of a run, in the order in which they are read."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "chunk-terms.bin"
        self.count, self._ends, self._pending = 0, Spool(np.int64), bytearray()
        """How many terms all chunks have; where those of each end; what is not in the file yet."""
        self._ends.add(bytes(8))

    def add(self, chunk: Chunk) -> None:
        """Keep the terms of the next chunk. Raises InterlockError where the disk takes no more."""
        self._pending += chunk.features
        if len(self._pending) > BLOCK:
            self._write()
        self.count += len(chunk.features) // TERM.itemsize
        self._ends.add(self.count.to_bytes(8, sys.byteorder))

    def take(self, rows: Places) -> SparseRows:
        """Read the terms of `rows` [n], counted over all collections; a chunk that brings none has an empty row."""
        self._write()
        ends = self._ends.records
        counts = ends[rows + 1] - ends[rows]
        places = places_of(ends[rows], counts)
        terms = np.memmap(self.path, TERM, "r")[places] if len(places) else np.empty(0, TERM)
        starts = starts_of(counts)
        return SparseRows(starts, terms["index"].astype(np.int64), terms["value"].copy(), np.zeros(len(rows), bool))

    def _write(self) -> None:
        with atomic.explaining(self.path), self.path.open("ab") as out:
            out.write(self._pending)
        self._pending.clear()


@dataclass(frozen=True)
class RowWindows:
    """So many rows, those of a window at a time, as often as they are asked for."""

    rows: int

    def __iter__(self) -> Iterator[Places]:
        return (np.arange(start, min(start + WINDOW, self.rows)) for start in range(0, self.rows, WINDOW))


class TokenSource(Protocol):
    """Token vectors that lie on disk, a row for each of what they are of."""

    def counts(self, rows: Places, /) -> Places:
        """Return how many tokens each of `rows` has [n]."""

    def take(self, rows: Places, /) -> TokenRows:
        """Read `rows`."""


@dataclass(frozen=True)
class TokenWindow:
    """The token vectors of some consecutive rows, each of a text; they are read when they are asked for."""

    file: TokenSource
    texts: Places

    def slices(self) -> Iterator[TokenRows]:
        """Yield the rows in order, about `TOKENS` tokens at a time. Raises InterlockError where they are damaged."""
        ends = np.cumsum(self.file.counts(self.texts))
        for texts in np.split(self.texts, np.flatnonzero(np.diff(ends // TOKENS)) + 1):
            yield self.file.take(texts)


@dataclass(frozen=True)
class Window:
    """Rows from `start` on as the plan has them: the id of each point, the digest of its text, and its vectors by name.

    `vectors` are the dense ones, `sparse` those of sparse models, `tokens` those of tokens.
    `chunks` are there while they are delivered, and not when what was written is compared.
    """

    start: int
    points: Sequence[bytes]
    digests: Sequence[bytes]
    vectors: Mapping[str, Vectors]
    sparse: Mapping[str, SparseRows] = field(default_factory=dict)
    tokens: Mapping[str, TokenWindow] = field(default_factory=dict)
    chunks: Sequence[Chunk] = ()


Sink = Callable[[Window], object]
Check = Callable[[Window], str]
"""What is wrong with the rows of a window where they were written; empty: nothing."""


class OutputFile(Protocol):
    """How one file is written and read back, at a path that is not yet its own."""

    def written(self, partial: Path) -> AbstractContextManager[Sink]:
        """Make the file at `partial`; whole once the context is left."""

    def read(self, partial: Path) -> AbstractContextManager[Check]:
        """Open what was written, to be compared with the same windows in the same order."""


Files = Iterator[tuple[str, OutputFile]]


@dataclass(frozen=True)
class Delivery:
    """A collection ready to be delivered as its `spec` says; `digests` are those of the whole corpus.

    `dense` are the vectors of the run by model, a row for each distinct text, NaN where it was parked; `sparse` and
    `tokens` those by the names that they are delivered as, and `chunk_terms` what chunks brought: a row for each chunk,
    from `first_chunk` on of all that were read. `projection` [width, dim] brings the fused vectors to fewer dimensions.
    `arrays_in` says of dense ones by name in which numbers their arrays are, if not in float32, and `columns_in` the
    same of tables.
    """

    rows: Rows
    digests: Digests
    spec: CollectionSpec
    dense: Mapping[str, Vectors]
    sparse: Mapping[str, SparseFile] = field(default_factory=dict)
    tokens: Mapping[str, TokenFile] = field(default_factory=dict)
    chunk_terms: ChunkTerms | None = None
    first_chunk: int = 0
    projection: Vectors | None = None
    arrays_in: Mapping[str, Encoding] = field(default_factory=dict)
    columns_in: Mapping[str, Encoding] = field(default_factory=dict)

    def specified(self, **changes: Any) -> "Delivery":
        """Return the same delivery with another spec."""
        return replace(self, spec=replace(self.spec, **changes))

    @property
    def mark(self) -> bytes:
        """What is said beside its files of the models that are missing and why, and of the weights of the dense ones
        that are left; empty where none is missing."""
        if not self.spec.missing:
            return b""
        told = [
            {"model": each.model, "kind": each.kind, "weight": each.weight, "reason": each.reason}
            for each in self.spec.missing
        ]
        weights = {each.model: each.weight for each in self.fused_models}
        return json.dumps({"missing": told, "weights": weights}, indent=2, ensure_ascii=False).encode() + b"\n"

    @property
    def fused_models(self) -> list[RosterEntry]:
        """The dense models, in the order of the roster."""
        return [entry for entry in self.spec.roster if entry.kind == "dense"]

    @property
    def arrays(self) -> dict[str, int]:
        """The width of every dense vector that has a file of its own, by name."""
        return self.spec.form.files(self.spec.fusion, self.spec.members)

    @property
    def terms_widths(self) -> dict[str, int]:
        """Below what the indices of every sparse vector are, by name; BM25's are made of texts and in no file."""
        brought = {self.spec.chunk_sparse: MOST_INDEX + 1} if self.chunk_terms else {}
        return brought | {name: file.width for name, file in self.sparse.items()}

    @property
    def row_windows(self) -> "RowWindows":
        """All rows, those of a window at a time."""
        return RowWindows(len(self.rows.texts))

    def reader(self, name: str) -> Callable[[Places], Vectors]:
        """Return what reads the dense vectors of this name."""
        return lambda rows: self.vectors(rows)[name]

    def vectors(self, rows: Places) -> dict[str, Vectors]:
        """Return the dense vectors of `rows` [n], ascending, by model, and `fused` unless the fusion is `named`,
        whatever of them a file or store keeps.

        Raises InterlockError where the passes hold no such vectors any more.
        """
        texts, start, vectors = self.rows.texts[rows], int(rows[0]), {}
        try:
            for entry in self.fused_models:
                whole = self.dense[entry.model][texts]
                vectors[entry.model] = truncate(whole, entry.dim, start) if entry.dim < whole.shape[1] else whole
                release(self.dense[entry.model])
            weights = [entry.weight for entry in self.fused_models]
            fused = fuse(self.spec.fusion, list(vectors.values()), weights, start)
            if fused is not None and self.projection is not None:
                fused = project(fused, self.projection, start)
        except ValueError as error:
            name = self.rows.collection.name
            raise InterlockError(
                f"the vectors of {name} changed after they were computed ({error}): --resume recomputes them"
            ) from error
        return vectors if fused is None else vectors | {FUSED: fused}

    def fused(self, rows: Places) -> Vectors:
        """Return the fused vectors of `rows` [n], ascending, in all their dimensions; not for a fusion `named`."""
        return replace(self, projection=None).vectors(rows)[FUSED]

    @property
    def fused_width(self) -> int:
        """How many dimensions these have."""
        return ALL.widths(self.spec.fusion, self.spec.members)[FUSED]

    @property
    def sample(self) -> Places:
        """Rows that are spread over the collection, to look at some instead of all."""
        return np.unique(np.linspace(0, len(self.rows.texts) - 1, SAMPLE).astype(np.int64))

    def terms(self, rows: Places) -> dict[str, SparseRows]:
        """Return the sparse vectors of `rows` [n] by name. Raises InterlockError where a pass holds none any more."""
        texts = self.rows.texts[rows].astype(np.int64)
        brought = {self.spec.chunk_sparse: self.chunk_terms.take(self.first_chunk + rows)} if self.chunk_terms else {}
        return brought | {name: file.take(texts) for name, file in self.sparse.items()}

    def token_windows(self, rows: Places) -> dict[str, TokenWindow]:
        """Return the token vectors of `rows` [n] by name, still to be read."""
        texts = self.rows.texts[rows].astype(np.int64)
        return {name: TokenWindow(file, texts) for name, file in self.tokens.items()}

    def points(self, rows: Places) -> list[bytes]:
        """Return the id of each row's point."""
        ids: list[bytes] = self.rows.points[rows].tolist()
        return ids

    def texts(self, rows: Places) -> list[bytes]:
        """Return the digest of each row's text."""
        digests: list[bytes] = self.digests[self.rows.texts[rows]].tolist()
        release(self.digests, self.rows.texts, self.rows.points)
        return digests

    def windows(self) -> Iterator[Window]:
        """Yield every window in order, with its chunks. Raises InterlockError where they are not those of the plan."""
        stream = reread(self.rows, self.digests)
        for window in self.without_chunks():
            yield replace(window, chunks=list(islice(stream, WINDOW)))
        next(stream, None)  # reads on to the end of the files, which is compared as well

    def without_chunks(self) -> Iterator[Window]:
        """Yield the same windows with no chunks in them, for what needs only the plan: no file is read again."""
        for rows in self.row_windows:
            kinds = self.vectors(rows), self.terms(rows), self.token_windows(rows)
            yield Window(int(rows[0]), self.points(rows), self.texts(rows), *kinds)


def first(window: Window, wrong: Sequence[bool] | npt.NDArray[np.bool_], what: str) -> str:
    """Return the first row of `wrong` [n] in words; empty: none is."""
    rows = np.flatnonzero(wrong)
    if not len(rows):
        return ""
    return f"{what} differs in {several(len(rows), 'row')}, first in row {window.start + rows[0]}"


def whole(vectors: Vectors) -> npt.NDArray[np.bool_]:
    """Tell which rows are vectors; a parked one is not finite."""
    return np.asarray(np.isfinite(vectors).all(axis=1))


def uuid_of(point: bytes) -> str:
    """Return the id of a point as it is written."""
    return str(UUID(bytes=point))


def points_of(
    window: Window, kept: Collection[str], bm25: WordWeights | None = None, form: PayloadForm = NESTED
) -> Iterator[Point]:
    """Yield every row of a window as one point: its payload in this form, its vectors of the names that are `kept`,
    its sparse and token vectors, and what `bm25` makes of its text; none for which it was parked, and no sparse one
    without terms."""
    for row, chunk in zip(_rows_of(window, kept), window.chunks, strict=True):
        payload = {
            "text": chunk.text,
            "chunk_id": chunk.chunk_id,
            "source": chunk.source,
            **arranged(json.loads(chunk.payload), form),
            **({RECORD: json.loads(chunk.record)} if chunk.record else {}),
        }
        yield replace(row, payload=payload, sparse={**row.sparse, **(bm25.of(chunk.text) if bm25 else {})})


def points_at(delivery: Delivery, rows: Places, kept: Collection[str], *, tokens: bool) -> Iterator[Point]:
    """Yield the points of `rows`, ascending, with the vectors that the passes hold and without payloads."""
    if len(rows):
        late = delivery.token_windows(rows) if tokens else {}
        found = delivery.vectors(rows), delivery.terms(rows), late
        yield from _rows_of(Window(int(rows[0]), delivery.points(rows), (), *found), kept)


def _rows_of(window: Window, kept: Collection[str]) -> Iterator[Point]:
    there = {name: whole(window.vectors[name]) for name in kept}
    tokens = [_split(each) for each in window.tokens.values()]
    for row, point in enumerate(window.points):
        vectors = {name: window.vectors[name][row] for name in kept if there[name][row]}
        sparse = {}
        for name, terms in window.sparse.items():
            if (cut := slice(*terms.starts[row : row + 2])).start < cut.stop:
                sparse[name] = Terms(terms.indices[cut], terms.values[cut])
        late = {name: found for name, each in zip(window.tokens, tokens, strict=True) if len(found := next(each))}
        yield Point(uuid_of(point), {}, vectors, sparse, late)


def _split(window: TokenWindow) -> Iterator[Tokens]:
    """The token vectors of each row, read as rows are asked for."""
    for rows in window.slices():
        yield from np.split(rows.to_float32().astype(np.float16), rows.starts[1:-1])
