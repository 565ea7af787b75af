"""A collection ready to be delivered, a window of rows at a time: its plan, its chunks, and the vectors of its passes.

Sinks take the windows as they come, and checks are asked with the same windows whether what was written is what the
plan says. Vectors are read from the passes each time, never from what a sink remembers.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Protocol
from uuid import UUID

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.files import release
from interlock.engine.compute.parts.terms import SparseFile, SparseRows
from interlock.engine.compute.parts.tokens import TokenFile, TokenRows
from interlock.engine.corpus.chunks import RECORD, Chunk
from interlock.engine.corpus.corpus import Digests, Rows, reread
from interlock.engine.errors import InterlockError
from interlock.engine.record.facts import MissingModel
from interlock.engine.record.words import several
from interlock.engine.vectors.bm25 import WordWeights
from interlock.engine.vectors.form import ALL, FUSED, VectorForm
from interlock.engine.vectors.fusion import Fusion, fuse, truncate
from interlock.engine.vectors.points import Point, Terms, Tokens
from interlock.engine.vectors.precision import Encoding
from interlock.engine.vectors.projection import project

WINDOW = 2048
TOKENS = 16384
"""Tokens that are in memory at once, unless one text has more."""

SAMPLE = 256
"""Rows of a collection that are looked at more closely than all of them can be."""

Places = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ModelVectors:
    """One model's vectors of the run: a row for each distinct text, NaN where it was parked."""

    name: str
    weight: float
    vectors: Vectors
    dim: int


class TermSource(Protocol):
    """Sparse vectors by `name`, with indices below `width`."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...

    def take(self, rows: Places, texts: Places, /) -> SparseRows:
        """Read the vectors of `rows` [n], which have these `texts` [n]."""


@dataclass(frozen=True)
class SparseSource:
    """One sparse model's vectors of the run: a row for each distinct text."""

    name: str
    file: SparseFile

    @property
    def width(self) -> int:
        """How many indices there may be."""
        return self.file.width

    def take(self, _rows: Places, texts: Places) -> SparseRows:
        """Read the vectors of `rows` [n], which have these `texts` [n]."""
        return self.file.take(texts)


@dataclass(frozen=True)
class TokenSource:
    """One model's token vectors of the run, a row for each distinct text; `name` is what they are delivered as."""

    name: str
    file: TokenFile


class _Tokens(Protocol):
    """Token vectors that lie on disk, a row for each of what they are of."""

    def counts(self, rows: Places, /) -> Places:
        """Return how many tokens each of `rows` has [n]."""

    def take(self, rows: Places, /) -> TokenRows:
        """Read `rows`."""


@dataclass(frozen=True)
class TokenWindow:
    """The token vectors of some consecutive rows, each of a text; they are read when they are asked for."""

    file: _Tokens
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
    """A collection ready to be delivered; `digests` are those of the whole corpus.

    `sources` are the dense vectors, `projection` [width, dim] what brings the fused ones to fewer dimensions, `sparse`
    those of sparse models and of the chunks, and `bm25` makes those of words. `arrays_in` says of dense ones by name in
    which numbers their arrays are, if not in float32, and `columns_in` the same of tables.
    `missing` are the models of the run that it has to do without, `chunk_sparse` names the terms that chunks brought.
    """

    rows: Rows
    digests: Digests
    sources: Sequence[ModelVectors]
    fusion: Fusion
    sparse: Sequence[TermSource] = ()
    tokens: Sequence[TokenSource] = ()
    bm25: WordWeights | None = None
    form: VectorForm = ALL
    projection: Vectors | None = None
    arrays_in: Mapping[str, Sequence[Encoding]] = field(default_factory=dict)
    columns_in: Mapping[str, Encoding] = field(default_factory=dict)
    missing: Sequence[MissingModel] = ()
    chunk_sparse: str = ""

    @property
    def mark(self) -> bytes:
        """What is said beside its files of the models that are missing and why, and of the weights of the dense ones
        that are left; empty where none is missing."""
        if not self.missing:
            return b""
        told = [
            {"model": each.model, "kind": each.kind, "weight": each.weight, "reason": each.reason}
            for each in self.missing
        ]
        weights = {each.name: each.weight for each in self.sources}
        return json.dumps({"missing": told, "weights": weights}, indent=2, ensure_ascii=False).encode() + b"\n"

    @property
    def dims(self) -> dict[str, int]:
        """The width of every dense vector that a store and the table keep, by name."""
        return self.form.widths(self.fusion, self.members)

    @property
    def arrays(self) -> dict[str, int]:
        """The width of every dense vector that has a file of its own, by name."""
        return self.form.files(self.fusion, self.members)

    @property
    def members(self) -> dict[str, int]:
        """The width of every model's own vectors, by name."""
        return {source.name: source.dim for source in self.sources}

    @property
    def starts(self) -> range:
        """The first row of every window."""
        return range(0, len(self.rows.texts), WINDOW)

    def vectors(self, rows: Places) -> dict[str, Vectors]:
        """Return the dense vectors of `rows` [n], ascending, by model, and `fused` unless the fusion is `named`,
        whatever of them a file or store keeps.

        Raises InterlockError where the passes hold no such vectors any more.
        """
        texts, start, vectors = self.rows.texts[rows], int(rows[0]), {}
        try:
            for source in self.sources:
                whole = source.vectors[texts]
                vectors[source.name] = truncate(whole, source.dim, start) if source.dim < whole.shape[1] else whole
                release(source.vectors)
            fused = fuse(self.fusion, list(vectors.values()), [source.weight for source in self.sources], start)
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
        return ALL.widths(self.fusion, self.members)[FUSED]

    @property
    def sample(self) -> Places:
        """Rows that are spread over the collection, to look at some instead of all."""
        return np.unique(np.linspace(0, len(self.rows.texts) - 1, SAMPLE).astype(np.int64))

    def terms(self, rows: Places) -> dict[str, SparseRows]:
        """Return the sparse vectors of `rows` [n] by name. Raises InterlockError where a pass holds none any more."""
        texts = self.rows.texts[rows].astype(np.int64)
        return {source.name: source.take(rows, texts) for source in self.sparse}

    def token_windows(self, rows: Places) -> dict[str, TokenWindow]:
        """Return the token vectors of `rows` [n] by name, still to be read."""
        texts = self.rows.texts[rows].astype(np.int64)
        return {source.name: TokenWindow(source.file, texts) for source in self.tokens}

    def places(self, start: int) -> Places:
        """Return the rows of the window that begins at `start`."""
        return np.arange(start, min(start + WINDOW, len(self.rows.texts)))

    def points(self, rows: Places) -> list[bytes]:
        """Return the id of each row's point."""
        ids: list[bytes] = self.rows.points[rows].tolist()
        return ids

    def texts(self, rows: Places) -> list[bytes]:
        """Return the digest of each row's text."""
        digests: list[bytes] = self.digests[self.rows.texts[rows]].tolist()
        return digests

    def windows(self) -> Iterator[Window]:
        """Yield every window in order, with its chunks. Raises InterlockError where they are not those of the plan."""
        stream = reread(self.rows, self.digests)
        for window in self.without_chunks():
            yield replace(window, chunks=list(islice(stream, WINDOW)))
        next(stream, None)  # reads on to the end of the files, which is compared as well

    def without_chunks(self) -> Iterator[Window]:
        """Yield the same windows with no chunks in them, for what needs only the plan: no file is read again."""
        for rows in map(self.places, self.starts):
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


def points_of(window: Window, kept: Collection[str], bm25: WordWeights | None = None) -> Iterator[Point]:
    """Yield every row of a window as one point: its payload, its vectors of the names that are `kept`, its sparse and
    token vectors, and what `bm25` makes of its text; none for which it was parked, and no sparse one without terms."""
    for row, chunk in zip(_rows_of(window, kept), window.chunks, strict=True):
        payload = {
            "text": chunk.text,
            "chunk_id": chunk.chunk_id,
            "source": chunk.source,
            "metadata": json.loads(chunk.payload),
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
