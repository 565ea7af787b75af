"""In which numbers a delivery keeps dense vectors, what they take, and how many neighbours are still found by them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np

from interlock.engine.record.facts import KeptVectors
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.formats import file_bytes, with_arrays
from interlock.engine.targets.windows import Delivery, Places, Vectors, uuid_of
from interlock.engine.vectors.form import FUSED, stored_bytes
from interlock.engine.vectors.precision import (
    BITS,
    COUNT,
    FLOAT16,
    FLOAT32,
    Encoding,
    FilePrecision,
    Loss,
    NeighbourSample,
    int8_for,
    loss_of,
)


def narrowed(delivery: Delivery, formats: Sequence[str], precision: FilePrecision) -> Delivery:
    """Return the delivery with the numbers that its files are to have: every dense vector in this precision, and the
    arrays of fused ones as its form says."""
    if precision != "float32":
        numbers = {
            name: FLOAT16 if precision == "float16" else int8_for(map(_of(delivery, name), _places(delivery)))
            for name in delivery.arrays | delivery.dims
        }
        return replace(delivery, columns_in=numbers, arrays_in={name: (each,) for name, each in numbers.items()})
    if delivery.form.quantise == "none" or not with_arrays(formats) or FUSED not in delivery.arrays:
        return delivery
    codes = int8_for(map(_of(delivery, FUSED), _places(delivery)))
    return replace(delivery, arrays_in={FUSED: (BITS, codes) if delivery.form.quantise == "binary" else (codes,)})


def losses(delivery: Delivery) -> Iterator[Loss]:
    """Measure what each of the narrowed vectors of a delivery has lost, by a sample of its rows against all of them."""
    windows = [*_places(delivery)]
    for name, numbers in delivery.columns_in.items():
        vectors = _of(delivery, name)
        yield loss_of(name, NeighbourSample(vectors, windows, delivery.sample), vectors, numbers)


def kept(delivery: Delivery, formats: Sequence[str], directory: str, store: Store | None) -> Iterator[KeptVectors]:
    """Tell what the files of `formats` in `directory` hold, and what the store does; where vectors were made smaller,
    with the share of the ten nearest neighbours of a sample of rows that are found as by the whole fused vectors."""
    smaller = delivery.projection is not None or FUSED in delivery.arrays_in
    reduced = smaller or (store is not None and store.quantise != "none")
    sample = None
    if reduced and FUSED in delivery.arrays:
        sample = NeighbourSample(delivery.fused, [*_places(delivery)], delivery.sample)
    if formats:
        share = _by_files(delivery, sample) if sample and smaller else None
        size = file_bytes(formats, delivery.form, delivery.fusion, delivery.members)
        compared = len(sample.rows) if sample and share is not None else 0
        yield KeptVectors(place=directory, bytes=size, neighbours=share, sampled=compared)
    if store:
        share = _by_store(delivery, sample, store) if sample and FUSED in store.dims else None
        compared = len(sample.rows) if sample and share is not None else 0
        size = stored_bytes(store.dims, store.quantise)
        yield KeptVectors(place=str(store.path), bytes=size, neighbours=share, sampled=compared)


def _by_files(delivery: Delivery, sample: NeighbourSample) -> float | None:
    vectors, numbers = _of(delivery, FUSED), delivery.arrays_in.get(FUSED, (FLOAT32,))
    codes: Encoding = numbers[-1]
    if BITS in numbers:
        return sample.by_bits(vectors, codes)
    return sample.by(lambda rows: codes.decode(codes.encode(vectors(rows))))


def _by_store(delivery: Delivery, sample: NeighbourSample, store: Store) -> float | None:
    """The share that is kept by what a store answers, points aside that are no longer in the corpus."""
    own = [uuid_of(point) for point in delivery.points(sample.rows)]
    found = [store.query(FUSED, vector, COUNT + 1) for vector in _of(delivery, FUSED)(sample.rows)]
    wanted = {UUID(point).bytes for points in found for point in points}
    every = (zip(delivery.points(rows), rows.tolist(), strict=True) for rows in _places(delivery))
    rows = {uuid_of(point): row for window in every for point, row in window if point in wanted}
    return sample.share(
        np.array([rows[point] for point in points if point != mine and point in rows][:COUNT], np.int64)
        for points, mine in zip(found, own, strict=True)
    )


def _of(delivery: Delivery, name: str) -> Callable[[Places], Vectors]:
    """What reads the vectors of this name."""
    return lambda rows: delivery.vectors(rows)[name]


def _places(delivery: Delivery) -> Iterator[Places]:
    return map(delivery.places, delivery.starts)
