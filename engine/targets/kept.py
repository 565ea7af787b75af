"""What a delivery takes and what it costs: bytes of dense vectors a chunk, and neighbours that are still found."""

from collections.abc import Iterator, Sequence
from uuid import UUID

import numpy as np

from interlock.engine.record.facts import KeptVectors
from interlock.engine.targets.qdrant import Store
from interlock.engine.targets.windows import Delivery, Places, uuid_of
from interlock.engine.vectors.binary import rescored_best, signs
from interlock.engine.vectors.form import FUSED, stored_bytes
from interlock.engine.vectors.fusion import Vectors
from interlock.engine.vectors.int8 import decode, encode
from interlock.engine.vectors.neighbours import COUNT, nearest, share_kept


def kept(delivery: Delivery, formats: Sequence[str], directory: str, store: Store | None) -> Iterator[KeptVectors]:
    """Tell what the files of `formats` in `directory` hold, and what the store does; where vectors were made smaller,
    with the share of the ten nearest neighbours of a sample of rows that are found as by the whole fused vectors."""
    form, fusion, members = delivery.form, delivery.fusion, delivery.members
    smaller = delivery.projection is not None or delivery.scale is not None
    reduced = smaller or (store is not None and store.quantise != "none")
    asked = _Sample(delivery) if reduced and FUSED in delivery.arrays else None
    if formats:
        share = asked.by_files() if asked and smaller else None
        size, compared = form.file_bytes(fusion, members, formats), asked.size if asked and share is not None else 0
        yield KeptVectors(place=directory, bytes=size, neighbours=share, sampled=compared)
    if store:
        by_store = asked.by_store(store) if asked and FUSED in store.dims else None
        size = stored_bytes(store.dims, store.quantise)
        compared = asked.size if asked and by_store is not None else 0
        yield KeptVectors(place=str(store.path), bytes=size, neighbours=by_store, sampled=compared)


class _Sample:
    """Some rows of a delivery, and their neighbours by the whole fused vectors."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        whole = delivery.fused(delivery.sample)
        there = np.isfinite(whole).all(axis=1)
        self._rows, self._whole = delivery.sample[there], whole[there]
        self.size = len(self._rows)
        _, self._before = nearest(((rows, delivery.fused(rows)) for rows in self._places), self._whole, self._rows)

    def by_files(self) -> float | None:
        """The share that is kept by the vectors in files."""
        if self._delivery.form.quantise == "binary":
            asked = self._delivery.vectors(self._rows)[FUSED]
            by_bits = ((rows, signs(self._delivery.vectors(rows)[FUSED])) for rows in self._places)
            rows, _ = rescored_best(by_bits, self._filed, asked, self._rows, COUNT)
        else:
            whole = ((rows, self._filed(rows)) for rows in self._places)
            rows, _ = nearest(whole, self._filed(self._rows), self._rows)
        return self._share([found[found >= 0] for found in rows])

    def by_store(self, store: Store) -> float | None:
        """The share that is kept by what a store answers, points aside that are no longer in the corpus."""
        own = [uuid_of(point) for point in self._delivery.points(self._rows)]
        vectors = self._delivery.vectors(self._rows)[FUSED]
        found = [store.query(FUSED, vector, COUNT + 1) for vector in vectors]
        rows = self._rows_of({UUID(point).bytes for points in found for point in points})
        return self._share(
            [
                np.array([rows[point] for point in points if point != mine and point in rows][:COUNT], np.int64)
                for points, mine in zip(found, own, strict=True)
            ]
        )

    @property
    def _places(self) -> Iterator[Places]:
        return map(self._delivery.places, self._delivery.starts)

    def _filed(self, rows: Places) -> Vectors:
        vectors, scale = self._delivery.vectors(rows)[FUSED], self._delivery.scale
        return vectors if scale is None else decode(encode(vectors, scale), scale)

    def _rows_of(self, points: set[bytes]) -> dict[str, int]:
        there = (zip(self._delivery.points(rows), rows.tolist(), strict=True) for rows in self._places)
        return {uuid_of(point): row for window in there for point, row in window if point in points}

    def _share(self, found: Sequence[Places]) -> float | None:
        every = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        if not len(every):
            return None
        vectors = self._delivery.fused(every)
        after = [vectors[np.searchsorted(every, rows)] @ whole for rows, whole in zip(found, self._whole, strict=True)]
        return share_kept(self._before, after)
