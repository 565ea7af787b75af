"""Fewer dimensions for fused vectors: those in which a collection's vectors have the most of their length.

The directions are the eigenvectors of `V^T V` with the largest eigenvalues (PCA that is not centred, since a cosine is
about the origin), kept as a matrix [width, dim] of float32 with orthonormal columns. What is projected is made a unit
vector again. Pure: the same vectors in the same order give the same bytes.
"""

import io
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from interlock.engine.errors import UsageError
from interlock.engine.vectors.fusion import Vectors, unit_rows

PROJECTION = "projection.npy"
"""Its name beside a store's manifest, and among a run's files."""
TURN = 20261123
"""What the random turn is drawn by."""
MOST_WIDTH = 8192
"""Dimensions that can be reduced: their products with each other are held in memory, 512 MiB then."""


def fit(windows: Iterable[Vectors], width: int, dim: int) -> Vectors:
    """Find the `dim` directions [width, dim] in which `windows` of unit vectors [n, width] have the most length.

    Rows that are not finite say nothing.
    """
    products = np.zeros((width, width), np.float64)
    for vectors in windows:
        whole = vectors[np.isfinite(vectors).all(axis=1)].astype(np.float64)
        products += whole.T @ whole
    _, directions = np.linalg.eigh(products)  # in ascending order
    chosen = directions[:, ::-1][:, :dim]
    largest = np.take_along_axis(chosen, np.abs(chosen).argmax(axis=0)[None], axis=0)
    return np.ascontiguousarray(chosen * np.where(largest < 0, -1.0, 1.0), np.float32)  # either sign would do


def turned(projection: Vectors) -> Vectors:
    """Turn the directions [width, dim] at random among themselves, always alike: dot products stay, and each direction
    has as much length as another, so that a bit of each says as much. Bits of the directions as found lose a lot."""
    drawn = np.random.default_rng(TURN).standard_normal((projection.shape[1],) * 2)
    turn, upper = np.linalg.qr(drawn)
    return np.ascontiguousarray(projection @ (turn * np.sign(np.diagonal(upper))), np.float32)


def project(vectors: Vectors, projection: Vectors, first_row: int = 0) -> Vectors:
    """Make [n, dim] unit vectors of [n, width]; a row that is not finite stays so.

    Raises ValueError for a row of which nothing is left; `first_row` is the window's place, for messages.
    """
    return unit_rows(vectors.astype(np.float64) @ projection.astype(np.float64), first_row)


def energy(vectors: Vectors, projection: Vectors) -> float:
    """Return the share of the squared length of unit `vectors` [n, width] that lies within the projection, 0 to 1."""
    whole = vectors[np.isfinite(vectors).all(axis=1)].astype(np.float64)
    kept: NDArray[np.float64] = np.square(whole @ projection.astype(np.float64)).sum(axis=1)
    return min(1.0, float(kept.sum() / len(whole))) if len(whole) else 1.0


def to_bytes(array: NDArray[np.float32]) -> bytes:
    """Write an array as the bytes of a `.npy`; by their SHA-256 a projection is known."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, (1, 0), allow_pickle=False)
    return out.getvalue()


def from_bytes(content: bytes) -> Vectors:
    """Read a projection [width, dim]; ValueError for what is none."""
    found = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if found.dtype != np.float32 or found.ndim != 2:
        raise ValueError(f"it holds {found.dtype} {found.shape}, expected float32 [width, dim]")
    return np.asarray(found, np.float32)


def check_width(dim: int, width: int) -> None:
    """Raise UsageError unless vectors of `width` dimensions can be projected to `dim`."""
    if dim >= width:
        raise UsageError(f"--project {dim}: the fused vectors have {width:,} dimensions: choose fewer, or drop it")
    if width > MOST_WIDTH:
        raise UsageError(
            f"--project {dim}: the fused vectors have {width:,} dimensions, and at most {MOST_WIDTH:,} can be reduced: "
            "drop it, or use fewer models"
        )
