"""In what form and numbers dense vectors are kept: those of the models, the fused one, or both; in float32, float16, or
eight bits with one scale for all. Pure.

One scale spans the full range of all values (value = code * scale, codes from -127 to 127): cutting off what is rare
costs the ranking more than it gives in steps. What this costs is told by the nearest neighbours of some rows, before
and after.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from interlock.engine.errors import UsageError
from interlock.engine.vectors.fusion import Fusion, Vectors, check_width, fused_width

Precision = Literal["float32", "float16", "int8"]
"""What `export --vectors` makes of files."""
Quantise = Literal["none", "int8"]
"""How a manifest and `--quantise` say it: `none` is float32."""
PARKED = -128
"""Every code in int8 of a row that has no vector."""
COUNT = 10
"""Neighbours of a row that are compared."""
TIE = 1e-6
"""Cosines that are no further apart are alike: a text that occurs twice has two neighbours in any order."""

Places = NDArray[np.int64]
Windows = Iterable[tuple[Places, Vectors]]


@dataclass(frozen=True)
class Encoding:
    """Vectors in numbers of one `precision`; in int8 each is a multiple of `scale`."""

    precision: Precision = "float32"
    scale: np.float32 = np.float32(1)

    @property
    def kind(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return np.dtype(self.precision)

    def file(self, name: str) -> str:
        """Name the array of the vectors `name`."""
        return name + ("" if self.precision == "float32" else f".{self.precision}") + ".npy"

    def encode(self, vectors: Vectors) -> NDArray[Any]:
        """Write vectors [n, dim] in these numbers."""
        if self.precision == "int8":
            there = np.isfinite(vectors).all(axis=1)
            codes = np.full(vectors.shape, PARKED, np.int8)
            codes[there] = np.clip(np.rint(vectors[there] / self.scale), -127, 127)
            return codes
        return vectors.astype(self.kind, copy=False)

    def decode(self, numbers: NDArray[Any]) -> Vectors:
        """Return the vectors [n, dim] in float32 that a reader has of them, NaN where a row is parked."""
        if self.precision != "int8":
            return numbers.astype(np.float32)
        vectors: Vectors = numbers.astype(np.float32) * self.scale
        vectors[(numbers == PARKED).all(axis=1)] = np.nan
        return vectors


FLOAT32, FLOAT16 = Encoding(), Encoding("float16")


def int8_for(windows: Iterable[Vectors]) -> Encoding:
    """Return int8 with the scale of all rows of `windows` together, but for what is not finite; 1 is that of
    nothing."""
    largest = [float(np.nanmax(np.abs(vectors), initial=0.0, where=np.isfinite(vectors))) for vectors in windows]
    return Encoding("int8", np.float32(max(largest, default=0.0) / 127 or 1.0))


def nearest(windows: Windows, queries: Vectors, own: Places, count: int = COUNT) -> tuple[Places, Vectors]:
    """Find the `count` rows with the highest dot product with each of `queries` [m, dim], but its `own` [m], best
    first: rows [m, count] and products [m, count], -1 and -inf where there are fewer.

    `windows` are places of rows [n] with their vectors [n, dim], so that memory does not grow with the collection; a
    vector that is not finite is nobody's neighbour.
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


class NeighbourSample:
    """Some rows of a collection and their nearest neighbours by whole vectors, to count those that others still
    find."""

    def __init__(self, vectors: Callable[[Places], Vectors], windows: Iterable[Places], sample: Places) -> None:
        """`vectors` gives those of rows, ascending; `windows` are all rows, some at a time, as often as they are gone
        through. Parked rows are left out."""
        whole = vectors(sample)
        there = np.isfinite(whole).all(axis=1)
        self._vectors, self._windows = vectors, windows
        self.rows, self.whole = sample[there], whole[there]
        _, self._before = nearest(((rows, vectors(rows)) for rows in windows), self.whole, self.rows)

    def by(self, vectors: Callable[[Places], Vectors]) -> float | None:
        """Return the share that is found where rows and questions have other vectors."""
        rows, _ = nearest(((rows, vectors(rows)) for rows in self._windows), vectors(self.rows), self.rows)
        return self.share(rows)

    def share(self, found: Iterable[Places]) -> float | None:
        """Return the share of neighbours that is among the rows `found` for each row of the sample, below 0 for
        none."""
        each = [rows[rows >= 0] for rows in found]
        every = np.unique(np.concatenate(each)) if each else np.empty(0, np.int64)
        if not len(every):
            return None
        vectors = self._vectors(every)
        after = [vectors[np.searchsorted(every, rows)] @ whole for rows, whole in zip(each, self.whole, strict=True)]
        return share_kept(self._before, after)


@dataclass(frozen=True)
class Loss:
    """What narrower numbers cost the vectors `name`: the cosine to float32 of `sampled` rows, at the least and in the
    mean, and the share of their ten nearest neighbours that is kept; None for no row with a vector or a neighbour."""

    name: str
    least_cosine: float | None
    mean_cosine: float | None
    neighbours: float | None
    sampled: int


def loss_of(name: str, sample: NeighbourSample, vectors: Callable[[Places], Vectors], numbers: Encoding) -> Loss:
    """Measure what the vectors `name` lose in these numbers, by a sample against all of them."""

    def decoded(rows: Places) -> Vectors:
        return numbers.decode(numbers.encode(vectors(rows)))

    before, after = sample.whole, decoded(sample.rows)
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosines = (before.astype(np.float64) * after).sum(axis=1) / np.maximum(lengths, 1e-30)
    least, mean = (float(cosines.min()), float(cosines.mean())) if len(cosines) else (None, None)
    return Loss(name, least, mean, sample.by(decoded), len(sample.rows))


FUSED = "fused"
"""The name of the fused vectors."""
Keep = Literal["fused", "members", "both"]


@dataclass(frozen=True)
class VectorForm:
    """How a collection's dense vectors are kept: `keep` says which, `project` to how many dimensions the fused ones are
    brought, 0 for all, and `quantise` in what numbers a store keeps all of them and a file the fused ones.

    Nothing is lost of what other weights need where only the fused ones of `concat` are: they hold every model's own,
    scaled. A row that was parked for one model has none, so that what others made of it is in the files alone.
    """

    keep: Keep = "both"
    project: int = 0
    quantise: Quantise = "none"

    @property
    def told(self) -> str:
        """What asks for it, but for the projection."""
        return f"--keep {self.keep}" + (f" --quantise {self.quantise}" if self.quantise != "none" else "")

    def of(self, fusion: Fusion) -> "VectorForm":
        """Return the form for a fusion: `named` makes no fused vector, so it has its members in any case."""
        return replace(self, keep=ALL.keep) if fusion is Fusion.NAMED else self

    def check(self, fusion: Fusion) -> None:
        """Raise UsageError for a form in which a collection of this fusion could not be asked."""
        if self.keep == "members" and fusion is Fusion.MEAN:
            raise UsageError(
                f"--keep members has nothing of --fusion {Fusion.MEAN}, whose means would not be kept: use --fusion "
                f"{Fusion.NAMED}, or drop --keep"
            )
        if self.project and (fusion is Fusion.NAMED or self.keep == "members"):
            raise UsageError(
                f"--project {self.project}: it is the fused vectors that are projected, and none are kept: drop it, or "
                f"use --fusion {Fusion.CONCAT} with --keep fused"
            )

    def widths(self, fusion: Fusion, members: Mapping[str, int]) -> dict[str, int]:
        """Return the width of every dense vector that is kept, by name; `members` are the models' own."""
        fused = fused_width(fusion, list(members.values()), list(members))
        if fused is None:
            return {**members}
        kept = {} if self.keep == "fused" else {**members}
        if self.project:
            check_width(self.project, fused)
        return kept if self.keep == "members" else {**kept, FUSED: self.project or fused}

    def files(self, fusion: Fusion, members: Mapping[str, int]) -> dict[str, int]:
        """Return the width of every `.npy` by name: the models' own and the fused one, whatever a store keeps;
        those of a lone model once where they are the fused ones too."""
        once = len(members) == 1 and not self.project and self.quantise == "none"
        return (self if once else replace(self, keep="both")).widths(fusion, members)


ALL = VectorForm()
"""Everything: the form of older stores."""


def stored_bytes(widths: Mapping[str, int], quantise: Quantise) -> int:
    """Return the bytes of a chunk's dense vectors of these `widths` in a store, which adds a number to each that it
    quantises."""
    return sum(width + 4 if quantise == "int8" else 4 * width for width in widths.values())


class Reduced(Struct, frozen=True, kw_only=True):
    """How fused vectors were brought to `dim` dimensions: by the matrix in `projection.npy`, of this SHA-256."""

    dim: Annotated[int, Meta(ge=1)]
    sha256: str
