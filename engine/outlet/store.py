"""A delivered collection as points in the embedded store, read back and compared with the plan."""

import json
from collections.abc import Iterator, Mapping

import numpy as np

from interlock.engine.intake.chunks import RECORD
from interlock.engine.outlet.qdrant import Point, Store, Vector, verify
from interlock.engine.outlet.windows import Delivery, Sink, Vectors, Window, uuid_of, whole
from interlock.engine.record.facts import Verification

SAMPLE = 256
"""Rows, spread over the collection, whose vectors are read back."""


def sink(store: Store) -> Sink:
    """Upsert every row of a window as one point with all its vectors."""

    def points(window: Window) -> Iterator[Point]:
        for chunk, vectors in zip(window.chunks, _by_row(window.vectors, len(window.points)), strict=False):
            payload = {
                "text": chunk.text,
                "chunk_id": chunk.chunk_id,
                "source": chunk.source,
                "metadata": json.loads(chunk.payload),
                **({RECORD: json.loads(chunk.record)} if chunk.record else {}),
            }
            yield Point(chunk.point_id, payload, vectors)

    return lambda window: store.upsert(points(window))


def verified(delivery: Delivery, store: Store) -> Verification:
    """Make the points durable and compare them with the plan: every text, and a sample's vectors with the passes."""
    store.flush()
    planned = (
        dict(zip(map(uuid_of, delivery.points(rows)), delivery.texts(rows), strict=True))
        for rows in map(delivery.places, delivery.starts)
    )
    rows = np.unique(np.linspace(0, len(delivery.rows.texts) - 1, SAMPLE).astype(np.int64))
    sample = zip(map(uuid_of, delivery.points(rows)), _by_row(delivery.vectors(rows), len(rows)), strict=True)
    return verify(store, planned, dict(sample))


def _by_row(vectors: Mapping[str, Vectors], rows: int) -> Iterator[dict[str, Vector]]:
    """The vectors of each row by name, without those for which it was parked."""
    there = {name: whole(matrix) for name, matrix in vectors.items()}
    for row in range(rows):
        yield {name: matrix[row] for name, matrix in vectors.items() if there[name][row]}
