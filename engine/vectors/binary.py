"""Vectors in one bit a number, 1 where it is above 0, and a search by them whose best are scored again by eight bits.

Bits are packed as `numpy.packbits` does: the first number in the highest bit of the first byte, zeros behind the last.
A query keeps its numbers: its product with the bits, as 1 and -1, finds more than bits with bits at the same size. A
parked row has no bit set, and is known by its codes in int8, since another may have none either. Pure.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from interlock.engine.vectors.fusion import Vectors
from interlock.engine.vectors.int8 import PARKED, Codes, decode
from interlock.engine.vectors.neighbours import Places, nearest

Bits = NDArray[np.uint8]
RESCORED = 40
"""Rows that are scored again, unless more are asked for."""
WINDOW = 4096
"""Rows whose bits are made numbers at a time."""


def bytes_of(width: int) -> int:
    """Return the bytes of a vector of `width` numbers."""
    return -(-width // 8)


def pack(vectors: Vectors) -> Bits:
    """Keep of vectors [n, dim] which numbers are above 0, in [n, dim / 8] bytes."""
    return np.packbits(vectors > 0, axis=1)


def unpack(bits: Bits, codes: Codes) -> Vectors:
    """Make 1 and -1 [n, dim] of bits, and NaN of a row that is parked in `codes` [n, dim]."""
    signs = 2 * np.unpackbits(bits, axis=1, count=codes.shape[1]).astype(np.float32) - 1
    empty = np.flatnonzero(~bits.any(axis=1))  # of no other row are the codes read: they may be on a disk
    signs[empty[codes[empty, 0] == PARKED]] = np.nan
    return signs


def signs(vectors: Vectors) -> Vectors:
    """Return what `unpack` makes of the bits of vectors [n, dim]."""
    return np.where(np.isfinite(vectors), np.where(vectors > 0, np.float32(1), np.float32(-1)), np.float32(np.nan))


def search(
    bits: Bits, codes: Codes, scale: np.float32, queries: Vectors, limit: int, rescored: int = RESCORED
) -> tuple[Places, Vectors]:
    """Find for each of `queries` [m, dim] the `limit` best rows by bits and codes, as `rescored_best` does."""
    places = (np.arange(start, min(start + WINDOW, len(bits))) for start in range(0, len(bits), WINDOW))
    windows = ((rows, unpack(bits[rows[0] : rows[-1] + 1], codes[rows[0] : rows[-1] + 1])) for rows in places)
    nobody = np.full(len(queries), -1, np.int64)
    return rescored_best(windows, lambda rows: decode(codes[rows], scale), queries, nobody, limit, rescored)


def rescored_best(
    windows: Iterable[tuple[Places, Vectors]],
    take: Callable[[Places], Vectors],
    queries: Vectors,
    own: Places,
    limit: int,
    rescored: int = RESCORED,
) -> tuple[Places, Vectors]:
    """Find for each of `queries` [m, dim] the `limit` best rows but its `own` [m], best first: rows [m, limit] and dot
    products [m, limit], -1 and -inf where there are fewer.

    `windows` are places of rows with their `signs`; the `rescored` rows (`limit`, if that is more) with the largest dot
    products with these are ordered by their vectors, which `take` gives.
    """
    first, _ = nearest(windows, queries, own, max(limit, rescored))
    rows, products = np.full((len(queries), limit), -1, np.int64), np.full((len(queries), limit), -np.inf, np.float32)
    for place, (found, query) in enumerate(zip(first, queries, strict=True)):
        there = np.sort(found[found >= 0])  # of equals the first row first
        scores = take(there) @ query
        best = np.argsort(-scores, kind="stable")[:limit]
        rows[place, : len(best)], products[place, : len(best)] = there[best], scores[best]
    return rows, products
