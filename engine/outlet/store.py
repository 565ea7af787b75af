"""A delivered collection as points in the embedded store, read back and compared with the plan."""

import json
from collections.abc import Iterator, Mapping

import numpy as np

from interlock.engine.intake.chunks import RECORD
from interlock.engine.outlet.qdrant import Point, Store, Vector, verify
from interlock.engine.outlet.windows import Delivery, Sink, Window, uuid_of, whole
from interlock.engine.record.events import Verification

SAMPLE = 256
"""Rows, spread over the collection, whose vectors are read back."""


def sink(store: Store) -> Sink:
    """Upserts every row of a window as one point with all its vectors."""

    def take(window: Window) -> None:
        store.upsert(_points(window))

    return take


def verified(delivery: Delivery, store: Store) -> Verification:
    """Make the points durable and compare them with the plan: every text, and a sample's vectors with the passes."""
    store.flush()
    return verify(store, _planned(delivery), _sample(delivery))


def _points(window: Window) -> Iterator[Point]:
    there = {name: whole(vectors) for name, vectors in window.vectors.items()}
    for place, chunk in enumerate(window.chunks):
        payload = {
            "text": chunk.text,
            "chunk_id": chunk.chunk_id,
            "source": chunk.source,
            "metadata": json.loads(chunk.payload),
            **({RECORD: json.loads(chunk.record)} if chunk.record else {}),
        }
        yield Point(
            chunk.point_id, payload, {name: window.vectors[name][place] for name in there if there[name][place]}
        )


def _planned(delivery: Delivery) -> Iterator[Mapping[str, bytes]]:
    """The digest of each point's text, by its id, a window at a time."""
    for rows in map(delivery.places, delivery.starts):
        yield dict(zip(map(uuid_of, delivery.points(rows)), delivery.texts(rows), strict=True))


def _sample(delivery: Delivery) -> dict[str, dict[str, Vector]]:
    """The vectors of rows spread over the collection, as the passes have them now."""
    rows = np.unique(np.linspace(0, len(delivery.rows.texts) - 1, SAMPLE).astype(np.int64))
    vectors = delivery.vectors(rows)
    there = {name: whole(found) for name, found in vectors.items()}
    return {
        uuid_of(point): {name: vectors[name][place] for name in there if there[name][place]}
        for place, point in enumerate(delivery.points(rows))
    }
