"""A delivered collection as points in the embedded store, read back and compared with the plan."""

import json
from collections.abc import Collection, Iterator, Mapping
from itertools import repeat

import numpy as np

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.chunks import RECORD
from interlock.engine.record.facts import Verification
from interlock.engine.targets.qdrant import Store
from interlock.engine.targets.verification import verify
from interlock.engine.targets.windows import Delivery, Sink, TokenWindow, Vectors, Window, uuid_of, whole
from interlock.engine.vectors.bm25 import WordWeights
from interlock.engine.vectors.points import Point, Terms, Tokens, Vector

TOKEN_SAMPLE = 32
"""Rows of the sample whose token vectors are read back; the other vectors of all of it are."""


def sink(store: Store, bm25: WordWeights | None = None) -> Sink:
    """Upsert every row of a window as one point with all its vectors, among them what `bm25` makes of its text."""
    return lambda window: store.upsert(points_of(window, store.dims, bm25))


def points_of(window: Window, kept: Collection[str], bm25: WordWeights | None = None) -> Iterator[Point]:
    """Yield every row of a window as one point: its payload, its vectors of the names that are `kept`, its sparse and
    token vectors, and what `bm25` makes of its text."""
    rows = len(window.points)
    dense, sparse = _by_row(window.vectors, rows, kept), _terms_by_row(window.sparse, rows)
    tokens = _tokens_by_row(window.tokens, rows)
    for chunk, vectors, terms, late in zip(window.chunks, dense, sparse, tokens, strict=False):
        payload = {
            "text": chunk.text,
            "chunk_id": chunk.chunk_id,
            "source": chunk.source,
            "metadata": json.loads(chunk.payload),
            **({RECORD: json.loads(chunk.record)} if chunk.record else {}),
        }
        words = bm25.of(chunk.text) if bm25 else {}
        yield Point(chunk.point_id, payload, vectors, {**terms, **words}, late)


def verified(delivery: Delivery, store: Store) -> Verification:
    """Make the points durable and compare them with the plan: every text, and a sample's vectors with the passes.

    What its BM25 makes of a text is compared with what it makes now of the text that is there, which is compared too.
    """
    store.flush()
    planned = (
        dict(zip(map(uuid_of, delivery.points(rows)), delivery.texts(rows), strict=True))
        for rows in map(delivery.places, delivery.starts)
    )
    rows = delivery.sample
    points = [uuid_of(point) for point in delivery.points(rows)]
    dense = dict(zip(points, _by_row(delivery.vectors(rows), len(rows), store.dims), strict=True))
    sparse = dict(zip(points, _terms_by_row(delivery.terms(rows), len(rows)), strict=True))
    if delivery.bm25:
        there = store.texts(points).items()
        sparse |= {point: {**sparse[point], **delivery.bm25.of(text)} for point, text in there if text is not None}
    few = slice(None, None, -(-len(rows) // TOKEN_SAMPLE))  # a point's tokens may be large
    tokens = zip(points[few], _tokens_by_row(delivery.token_windows(rows[few]), len(rows[few])), strict=True)
    return verify(store, planned, dense, sparse, tokens if delivery.tokens else ())


def _by_row(vectors: Mapping[str, Vectors], rows: int, kept: Collection[str]) -> Iterator[dict[str, Vector]]:
    """The vectors of each row that are `kept`, by name, without those for which it was parked."""
    there = {name: whole(vectors[name]) for name in kept}
    for row in range(rows):
        yield {name: vectors[name][row] for name in kept if there[name][row]}


def _terms_by_row(sparse: Mapping[str, SparseRows], rows: int) -> Iterator[dict[str, Terms]]:
    """The sparse vectors of each row by name, without those for which it was parked, or that have no terms."""
    counts = {name: each.counts for name, each in sparse.items()}
    for row in range(rows):
        cuts = {name: slice(*each.starts[row : row + 2]) for name, each in sparse.items() if counts[name][row]}
        yield {name: Terms(sparse[name].indices[cut], sparse[name].values[cut]) for name, cut in cuts.items()}


def _tokens_by_row(tokens: Mapping[str, TokenWindow], rows: int) -> Iterator[dict[str, Tokens]]:
    """The token vectors of each row by name, without those for which it was parked; read as rows are asked for."""
    each = [_split(window) for window in tokens.values()]
    for found in zip(*each, strict=True) if each else repeat((), rows):
        yield {name: vectors for name, vectors in zip(tokens, found, strict=True) if len(vectors)}


def _split(window: TokenWindow) -> Iterator[Tokens]:
    for rows in window.slices():
        yield from np.split(rows.to_float32().astype(np.float16), rows.starts[1:-1])
