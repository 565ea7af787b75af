"""A delivered collection as points in the embedded store, read back and compared with the plan."""

import json
from collections.abc import Iterator, Mapping

import numpy as np

from interlock.engine.intake.chunks import RECORD
from interlock.engine.outlet.points import Point, Terms, Vector
from interlock.engine.outlet.qdrant import Store, verify
from interlock.engine.outlet.windows import Delivery, Sink, Vectors, Window, uuid_of, whole
from interlock.engine.passes.sparse import SparseRows
from interlock.engine.record.facts import Verification

SAMPLE = 256
"""Rows, spread over the collection, whose vectors are read back."""


def sink(store: Store) -> Sink:
    """Upsert every row of a window as one point with all its vectors."""

    def points(window: Window) -> Iterator[Point]:
        rows = len(window.points)
        dense, sparse = _by_row(window.vectors, rows), _terms_by_row(window.sparse, rows)
        for chunk, vectors, terms in zip(window.chunks, dense, sparse, strict=False):
            payload = {
                "text": chunk.text,
                "chunk_id": chunk.chunk_id,
                "source": chunk.source,
                "metadata": json.loads(chunk.payload),
                **({RECORD: json.loads(chunk.record)} if chunk.record else {}),
            }
            yield Point(chunk.point_id, payload, vectors, terms)

    return lambda window: store.upsert(points(window))


def verified(delivery: Delivery, store: Store) -> Verification:
    """Make the points durable and compare them with the plan: every text, and a sample's vectors with the passes."""
    store.flush()
    planned = (
        dict(zip(map(uuid_of, delivery.points(rows)), delivery.texts(rows), strict=True))
        for rows in map(delivery.places, delivery.starts)
    )
    rows = np.unique(np.linspace(0, len(delivery.rows.texts) - 1, SAMPLE).astype(np.int64))
    points = [uuid_of(point) for point in delivery.points(rows)]
    dense = dict(zip(points, _by_row(delivery.vectors(rows), len(rows)), strict=True))
    sparse = dict(zip(points, _terms_by_row(delivery.terms(rows), len(rows)), strict=True))
    return verify(store, planned, dense, sparse)


def _by_row(vectors: Mapping[str, Vectors], rows: int) -> Iterator[dict[str, Vector]]:
    """The vectors of each row by name, without those for which it was parked."""
    there = {name: whole(matrix) for name, matrix in vectors.items()}
    for row in range(rows):
        yield {name: matrix[row] for name, matrix in vectors.items() if there[name][row]}


def _terms_by_row(sparse: Mapping[str, SparseRows], rows: int) -> Iterator[dict[str, Terms]]:
    """The sparse vectors of each row by name, without those for which it was parked, or that have no terms."""
    counts = {name: each.counts for name, each in sparse.items()}
    for row in range(rows):
        cuts = {name: slice(*each.starts[row : row + 2]) for name, each in sparse.items() if counts[name][row]}
        yield {name: Terms(sparse[name].indices[cut], sparse[name].values[cut]) for name, cut in cuts.items()}
