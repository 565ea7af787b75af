"""A delivered collection as points in the embedded store, read back and compared before anyone relies on it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from engine.outlet.files import Delivery, Vectors, dims
from engine.outlet.qdrant import Point, Store, Verification, verify

SAMPLE = 64


def deliver(delivery: Delivery, directory: Path, manifest: Mapping[str, object]) -> Verification:
    """Upsert every row as one point with all its vectors, then read back the count and a sample.

    Raises UsageError when the store holds vectors of another meaning, InterlockError when it fails.
    """
    collection = delivery.rows.collection.qdrant_collection
    every = max(1, len(delivery.rows.texts) // SAMPLE)
    sample: dict[str, dict[str, Vectors]] = {}
    with Store.open_for_write(directory, collection, dims(delivery), manifest) as store:
        written = store.upsert(_sampled(_points(delivery), every, sample))
        store.flush()
        return verify(store, written, sample)


def _points(delivery: Delivery) -> Iterator[Point]:
    for _, chunks, vectors in delivery.chunks():
        for place, chunk in enumerate(chunks):
            found = {name: window[place] for name, window in vectors.items() if np.isfinite(window[place]).all()}
            payload = {
                "text": chunk.text,
                "chunk_id": chunk.chunk_id,
                "source": chunk.source,
                "metadata": json.loads(chunk.payload),
            }
            yield Point(chunk.point_id, payload, found)


def _sampled(points: Iterator[Point], every: int, sample: dict[str, dict[str, Vectors]]) -> Iterator[Point]:
    """Pass the points on, keeping the vectors of every n-th."""
    for number, point in enumerate(points):
        if number % every == 0:
            sample[point.id] = {name: vector.copy() for name, vector in point.vectors.items()}
        yield point
