"""One vector out of the ensemble's vectors: concatenation, named vectors, or a weighted mean.

In: each model's unit vectors for the same rows, and the models' weights. Out: the fused unit vectors.
Pure numpy and row by row, so a window of rows gives exactly what the whole collection would; nothing
larger than the window is held. A parked row (NaN in any model) is NaN in the fused vectors: never dropped,
never invented.

Fused vectors are brought to fewer dimensions by the directions in which a collection has the most of their length: the
eigenvectors of `V^T V` with the largest eigenvalues (PCA that is not centred, since a cosine is about the origin), a
matrix [width, dim] of float32 with orthonormal columns. What is projected is made a unit vector again.
"""

import io
from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from interlock.engine.compute.parts.dense import UNIT_TOLERANCE
from interlock.engine.errors import UsageError
from interlock.engine.record.words import several

Vectors = NDArray[np.float32]

MAX_WIDTH = 65536  # the Qdrant server's limit; the embedded engine itself takes more
ZERO_NORM = 1e-7  # below float32's resolution of unit vectors a mean's direction is rounding noise


class Fusion(StrEnum):
    """How the models' vectors become what is delivered."""

    CONCAT = "concat"
    NAMED = "named"
    MEAN = "mean"


def fuse(method: Fusion, vectors: Sequence[Vectors], weights: Sequence[float], first_row: int = 0) -> Vectors | None:
    """Fuse K models' unit vectors, each [n, d_k] float32, into [n, `fused_width`] float32 unit vectors.

    - concat: `[sqrt(w1)*u1; sqrt(w2)*u2; ...]`, weights normalised to sum 1. The dot product of two such
      vectors is exactly the weighted mean of the models' cosines.
    - named: None; each model's vectors are delivered as they are and fused when a query comes.
    - mean: every `u_k` cut to D = the smallest d_k without re-normalising, weighted mean, renormalised to
      unit length. For a roster whose primary is its smallest model this is the predecessor's vector.

    `first_row` is the window's place in the collection, for messages. Raises UsageError for weights that
    are not all positive, ValueError for shapes that differ, a row that is not unit length, or a mean of
    zero length (which has no direction).
    """
    share = shares(weights)
    parked = _parked(vectors, share, first_row)
    match method:
        case Fusion.NAMED:
            return None
        case Fusion.CONCAT:
            # Roots, since a dot product multiplies the weight of a block with itself.
            blocks = [matrix * np.float32(np.sqrt(part)) for matrix, part in zip(vectors, share, strict=True)]
            fused = np.concatenate(blocks, axis=1, dtype=np.float32)
        case Fusion.MEAN:
            # Not normalised anew after the cut: this is what older pipelines computed.
            total = np.zeros((len(parked), min(matrix.shape[1] for matrix in vectors)), dtype=np.float64)
            for matrix, part in zip(vectors, share, strict=True):
                total += part * matrix[:, : total.shape[1]]
            fused = unit_rows(total, first_row)
    fused[parked] = np.nan
    return fused


def fused_width(method: Fusion, widths: Sequence[int], names: Sequence[str]) -> int | None:
    """Return the dimension of the fused vector (None for named) of models `names` with dimensions `widths`.

    Raises UsageError for an empty roster or a width that Qdrant cannot hold.
    """
    if not widths or len(widths) != len(names):
        raise UsageError(
            f"fusion: expected at least one model and a dimension for each, got {list(names)} and {list(widths)}"
        )
    for name, width in zip(names, widths, strict=True):
        if width < 1:
            raise UsageError(f"model {name} has {width} dimensions: expected at least 1")
    width = sum(widths)
    if method is Fusion.CONCAT and width > MAX_WIDTH:
        raise UsageError(
            f"concatenating {', '.join(names)} gives {width:,} dimensions, Qdrant allows {MAX_WIDTH:,}: use "
            f"--fusion {Fusion.NAMED}, or fewer models"
        )
    return {Fusion.NAMED: None, Fusion.MEAN: min(widths), Fusion.CONCAT: width}[method]


def shares(weights: Sequence[float]) -> NDArray[np.float64]:
    """Scale weights to sum 1, [K] float64. UsageError unless every weight is finite and positive."""
    given = np.asarray(weights, dtype=np.float64)
    if given.size == 0 or not np.all(np.isfinite(given) & (given > 0)):
        raise UsageError(
            f"fusion weights: expected positive numbers, got {list(weights)} (drop a model from the roster to "
            "exclude it)"
        )
    scaled = given / given.max()  # first to at most 1, so that the sum of huge weights stays finite
    return np.asarray(scaled / scaled.sum(), dtype=np.float64)


def truncate(vectors: Vectors, dim: int, first_row: int = 0) -> Vectors:
    """Cut [n, d] vectors to [n, dim] (Matryoshka) and renormalise them; only for models that declare it.

    A NaN row stays NaN. Raises UsageError unless 1 <= dim <= d, ValueError for a cut of zero length.
    """
    width = vectors.shape[1]
    if not 1 <= dim <= width:
        raise UsageError(f"cannot truncate vectors of {width} dimensions to {dim}: choose 1 to {width}")
    return unit_rows(vectors[:, :dim].astype(np.float64), first_row)


def _parked(vectors: Sequence[Vectors], share: NDArray[np.float64], first_row: int) -> NDArray[np.bool_]:
    """Rows [n] with a NaN in any model, after checking that shapes agree and all other rows are unit."""
    if len(vectors) != len(share) or len({matrix.shape[0] for matrix in vectors}) != 1:
        shapes = [matrix.shape for matrix in vectors]
        raise ValueError(
            f"fusion: expected the same rows of every model and one weight each, got {shapes} and {len(share)} weights"
        )
    parked = np.zeros(vectors[0].shape[0], dtype=np.bool_)
    for place, matrix in enumerate(vectors):
        norms = np.linalg.norm(matrix, axis=1)
        parked |= np.isnan(norms)
        _refuse_rows(np.abs(norms - 1) > UNIT_TOLERANCE, f"model {place}: not a unit vector", first_row)
    return parked


def unit_rows(rows: NDArray[np.float64], first_row: int = 0) -> Vectors:
    """Make every row [n, d] a unit vector of float32; ValueError for one that has no direction."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    _refuse_rows(norms[:, 0] < ZERO_NORM, "zero vector, which has no direction", first_row)
    unit: Vectors = (rows / norms).astype(np.float32)
    return unit


def _refuse_rows(refused: NDArray[np.bool_], why: str, first_row: int) -> None:
    if refused.any():
        raise ValueError(f"row {first_row + int(refused.argmax())}: {why} ({several(int(refused.sum()), 'such row')})")


PROJECTION = "projection.npy"
"""Its name beside a store's manifest, and among a run's files."""
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
