"""How much of a ranking is left where vectors are kept smaller: the nearest neighbours of some rows, before and after.

Pure, and a window of rows at a time, so that memory does not grow with the collection.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from interlock.engine.vectors.fusion import Vectors

COUNT = 10
"""Neighbours of a row that are compared."""
TIE = 1e-6
"""Cosines that are no further apart are alike: a text that occurs twice has two neighbours in any order."""

Places = NDArray[np.int64]


def nearest(
    windows: Iterable[tuple[Places, Vectors]], queries: Vectors, own: Places, count: int = COUNT
) -> tuple[Places, Vectors]:
    """Find the `count` rows with the highest dot product with each of `queries` [m, dim], but its `own` [m], best
    first: rows [m, count] and products [m, count], -1 and -inf where there are fewer.

    `windows` are places of rows [n] with their vectors [n, dim]; one that is not finite is nobody's neighbour.
    """
    rows = np.full((len(queries), count), -1, np.int64)
    best = np.full((len(queries), count), -np.inf, np.float32)
    for places, vectors in windows:
        products = queries @ vectors.T
        products[~np.isfinite(products) | (places == own[:, None])] = -np.inf
        all_rows = np.hstack([rows, np.broadcast_to(places, products.shape)])
        all_products = np.hstack([best, products])
        order = np.argsort(-all_products, axis=1, kind="stable")[:, :count]
        rows, best = (np.take_along_axis(each, order, axis=1) for each in (all_rows, all_products))
    rows[np.isneginf(best)] = -1
    return rows, best


def share_kept(before: Vectors, after: Sequence[Vectors]) -> float | None:
    """Return the share of neighbours that are the same as before, 0 to 1; None where nothing has any.

    `before` [m, count] are the products of each row's neighbours, best first, `after[i]` those of what is found for it
    now, both by the vectors before. What is found is one of the same where it is no further away than the last of them.
    """
    kept = found = 0
    for products, now in zip(before, after, strict=True):
        last = products[np.isfinite(products)][: len(now)]
        if len(last):
            found += len(last)
            kept += int((now[: len(last)] >= last[-1] - TIE).sum())
    return kept / found if found else None
