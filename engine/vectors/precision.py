"""In what form and numbers dense vectors are kept: those of the models, the fused one, or both; in float32, float16,
eight bits with one scale for all, or one bit. Pure.

One scale spans the full range of all values (value = code * scale, codes from -127 to 127): cutting off what is rare
costs the ranking more than it gives in steps. Bits are packed as `numpy.packbits` does, 1 where a number is above 0.
What this costs is told by the nearest neighbours of some rows, before and after.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interlock.engine.errors import UsageError
from interlock.engine.vectors.fusion import Fusion, Vectors, check_width, fused_width

Precision = Literal["float32", "float16", "int8", "binary"]
Quantise = Literal["none", "int8", "binary"]
"""How a manifest and `--quantise` say it: `none` is float32."""
FilePrecision = Literal["float32", "float16", "int8"]
"""What `export --vectors` makes of files."""
PARKED = -128
"""Every code in int8 of a row that has no vector."""
RESCORED = 40
"""Rows found by bits that are scored again by int8, unless more are asked for."""
WINDOW = 4096
"""Rows whose bits are made numbers at a time."""
COUNT = 10
"""Neighbours of a row that are compared."""
TIE = 1e-6
"""Cosines that are no further apart are alike: a text that occurs twice has two neighbours in any order."""

Codes = NDArray[np.int8]
Bits = NDArray[np.uint8]
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
        return np.dtype({"int8": np.int8, "binary": np.uint8}.get(self.precision, self.precision))

    def width(self, dim: int) -> int:
        """Return how many numbers hold a vector of `dim` dimensions."""
        return -(-dim // 8) if self.precision == "binary" else dim

    def file(self, name: str) -> str:
        """Name the array of the vectors `name`."""
        return name + {"float32": "", "binary": ".bits"}.get(self.precision, f".{self.precision}") + ".npy"

    def encode(self, vectors: Vectors) -> NDArray[Any]:
        """Write vectors [n, dim] in these numbers [n, width]; of a parked row bits do not tell."""
        if self.precision == "int8":
            there = np.isfinite(vectors).all(axis=1)
            codes = np.full(vectors.shape, PARKED, np.int8)
            codes[there] = np.clip(np.rint(vectors[there] / self.scale), -127, 127)
            return codes
        return np.packbits(vectors > 0, axis=1) if self.precision == "binary" else vectors.astype(self.kind, copy=False)

    def decode(self, numbers: NDArray[Any]) -> Vectors:
        """Return the vectors [n, dim] in float32 that a reader has of them, NaN where a row is parked; not of bits."""
        if self.precision != "int8":
            return numbers.astype(np.float32)
        vectors: Vectors = numbers.astype(np.float32) * self.scale
        vectors[(numbers == PARKED).all(axis=1)] = np.nan
        return vectors


FLOAT32, FLOAT16, BITS = Encoding(), Encoding("float16"), Encoding("binary")


def int8_for(windows: Iterable[Vectors]) -> Encoding:
    """Return int8 with the scale of all rows of `windows` together, but for what is not finite; 1 is that of
    nothing."""
    largest = [float(np.nanmax(np.abs(vectors), initial=0.0, where=np.isfinite(vectors))) for vectors in windows]
    return Encoding("int8", np.float32(max(largest, default=0.0) / 127 or 1.0))


def signs(vectors: Vectors) -> Vectors:
    """Return 1 where a number of vectors [n, dim] is above 0 and -1 elsewhere: what bits say; NaN of a parked row."""
    return np.where(np.isfinite(vectors), np.where(vectors > 0, np.float32(1), np.float32(-1)), np.float32(np.nan))


def unpack(bits: Bits, codes: Codes) -> Vectors:
    """Make the `signs` [n, dim] of bits; whether a row without any is parked is known by its `codes` [n, dim]."""
    numbers = 2 * np.unpackbits(bits, axis=1, count=codes.shape[1]).astype(np.float32) - 1
    empty = np.flatnonzero(~bits.any(axis=1))  # of no other row are the codes read: they may be on a disk
    numbers[empty[codes[empty, 0] == PARKED]] = np.nan
    return numbers


def search(
    bits: Bits, codes: Codes, scale: np.float32, queries: Vectors, limit: int, rescored: int = RESCORED
) -> tuple[Places, Vectors]:
    """Find for each of `queries` [m, dim] the `limit` best rows by bits and codes, as `rescored_best` does.

    A query keeps its numbers: its product with the signs finds more than bits with bits at the same size.
    """
    places = (np.arange(start, min(start + WINDOW, len(bits))) for start in range(0, len(bits), WINDOW))
    windows = ((rows, unpack(bits[rows[0] : rows[-1] + 1], codes[rows[0] : rows[-1] + 1])) for rows in places)
    nobody, numbers = np.full(len(queries), -1, np.int64), Encoding("int8", scale)
    return rescored_best(windows, lambda rows: numbers.decode(codes[rows]), queries, nobody, limit, rescored)


def rescored_best(
    windows: Windows,
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
        if not len(kept := np.sort(found[found >= 0])):  # of equals the first row first
            continue
        scores = take(kept) @ query
        best = np.argsort(-scores, kind="stable")[:limit]
        rows[place, : len(best)], products[place, : len(best)] = kept[best], scores[best]
    return rows, products


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

    def by_bits(self, vectors: Callable[[Places], Vectors], codes: Encoding) -> float | None:
        """Return the share that is found by the bits of these vectors, the best of them scored again by their codes."""
        windows = ((rows, signs(vectors(rows))) for rows in self._windows)

        def decoded(rows: Places) -> Vectors:
            return codes.decode(codes.encode(vectors(rows)))

        rows, _ = rescored_best(windows, decoded, vectors(self.rows), self.rows, COUNT)
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
    brought, 0 for all, and `quantise` in what numbers a store keeps all of them and a file the fused ones. `binary` is
    of files alone, which have the fused ones in bits to search and in int8 to order what was found.

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

    def check(self, fusion: Fusion, *, arrays: bool, store: bool) -> None:
        """Raise UsageError for a form in which a collection of this fusion could not be asked, or cannot be kept where
        it is to be: in a file of its own for each name (`arrays`), in a `store`."""
        if self.quantise == "binary" and store:
            raise UsageError(
                "--quantise binary: a store keeps its vectors beside their bits, and only grows by these: use "
                "--quantise int8 for it, or leave the store out for files with bits"
            )
        if self.quantise == "binary" and (fusion is Fusion.NAMED or not arrays):
            raise UsageError(
                "--quantise binary: it is the fused vectors of .npy files that are kept in bits, and none are written: "
                f"use --fusion {Fusion.CONCAT} and --export npy, or drop it"
            )
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
    quantises; 0 where none keeps them so."""
    return (
        0 if quantise == "binary" else sum(width + 4 if quantise == "int8" else 4 * width for width in widths.values())
    )
