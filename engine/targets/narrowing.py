"""A delivery whose files have narrower numbers, and what these lose of its vectors."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from interlock.engine.targets.windows import Delivery, Places, Vectors
from interlock.engine.vectors import int8
from interlock.engine.vectors.narrow import Loss, Narrow, Precision
from interlock.engine.vectors.neighbours import nearest, share_kept


def narrowed(delivery: Delivery, precision: Precision) -> Delivery:
    """Return the delivery with every dense vector of its files in these numbers."""
    if precision == "float32":
        return delivery
    names = delivery.arrays | delivery.dims
    if precision == "float16":
        return replace(delivery, narrowed=dict.fromkeys(names, Narrow()))
    return replace(delivery, narrowed={name: Narrow(int8.scale_of(_whole(delivery, name))) for name in names})


def losses(delivery: Delivery) -> Iterator[Loss]:
    """Measure what each of the narrowed vectors of a delivery has lost, by a sample of its rows against all of them."""
    for name, narrow in delivery.narrowed.items():
        whole = delivery.vectors(delivery.sample)[name]
        there = np.isfinite(whole).all(axis=1)
        rows, before = delivery.sample[there], whole[there]
        after = narrow.decode(narrow.encode(before))
        lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
        cosines = (before.astype(np.float64) * after).sum(axis=1) / np.maximum(lengths, 1e-30)
        _, best = nearest(_windows(delivery, name, None), before, rows)
        found, _ = nearest(_windows(delivery, name, narrow), after, rows)
        every = np.unique(found[found >= 0])
        exact = delivery.vectors(every)[name] if len(every) else np.empty((0, before.shape[1]), np.float32)
        now = [
            exact[np.searchsorted(every, places[places >= 0])] @ vector
            for places, vector in zip(found, before, strict=True)
        ]
        least, mean = (float(cosines.min()), float(cosines.mean())) if len(cosines) else (None, None)
        yield Loss(name, least, mean, share_kept(best, now), len(rows))


def _whole(delivery: Delivery, name: str) -> Iterator[Vectors]:
    return (delivery.vectors(rows)[name] for rows in map(delivery.places, delivery.starts))


def _windows(delivery: Delivery, name: str, narrow: Narrow | None) -> Iterator[tuple[Places, Vectors]]:
    for rows, vectors in zip(map(delivery.places, delivery.starts), _whole(delivery, name), strict=True):
        yield rows, narrow.decode(narrow.encode(vectors)) if narrow else vectors
