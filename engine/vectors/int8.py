"""Vectors in eight bits a number, with one scale for a whole collection: value = code * scale, codes from -127 to 127.

The scale spans the full range of the values: cutting off what is rare costs the ranking more than it gives in steps.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from interlock.engine.vectors.fusion import Vectors

Codes = NDArray[np.int8]
PARKED = -128
"""Every code of a row that has no vector."""


def scale_of(windows: Iterable[Vectors]) -> np.float32:
    """Return the scale of all rows of `windows` together, but for what is not finite; 1 is that of nothing."""
    largest = [float(np.nanmax(np.abs(vectors), initial=0.0, where=np.isfinite(vectors))) for vectors in windows]
    return np.float32(max(largest, default=0.0) / 127 or 1.0)


def encode(vectors: Vectors, scale: np.float32) -> Codes:
    """Round vectors [n, dim] to codes."""
    there = np.isfinite(vectors).all(axis=1)
    codes = np.full(vectors.shape, PARKED, np.int8)
    codes[there] = np.clip(np.rint(vectors[there] / scale), -127, 127)
    return codes


def decode(codes: Codes, scale: np.float32) -> Vectors:
    """Return the vectors [n, dim] of codes, as near as they are; a parked row is NaN."""
    vectors = codes.astype(np.float32) * scale
    vectors[(codes == PARKED).all(axis=1)] = np.nan
    return vectors
