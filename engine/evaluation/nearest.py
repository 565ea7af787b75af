"""The nearest texts of each query by brute force, in every form that vectors can be stored in: each score is computed,
and nothing is approximated. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.corpus.places import owners_of
from interlock.engine.vectors.fusion import fit, project
from interlock.engine.vectors.precision import int8_for

Rows = npt.NDArray[np.int64]
CHUNK = 16_384
"""Rows of texts whose scores are computed at once."""
QUERIES = 1024
"""Queries whose scores are computed at once."""
SIZES = (768, 384, 256)
"""Widths that vectors are projected to, where they are wider."""
SMALLEST = 384
"""The width that is quantised after projection."""
TOKENS = 8192
"""Tokens of texts that are compared at once, unless one text has more."""


def nearest(documents: npt.NDArray[np.generic], queries: Vectors, depth: int) -> tuple[Rows, Vectors]:
    """Find the `depth` rows of `documents` [n, d], of any number, with the largest dot products with each of `queries`
    [q, d]: rows and scores [q, depth], best first; of equals the first row first."""
    depth = min(depth, len(documents))
    parts = [_best(documents, queries[first : first + QUERIES], depth) for first in range(0, len(queries), QUERIES)]
    if not parts:
        return np.empty((0, depth), np.int64), np.empty((0, depth), np.float32)
    rows, scores = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(scores)


def _best(documents: npt.NDArray[np.generic], queries: Vectors, depth: int) -> tuple[Rows, Vectors]:
    rows = np.empty((len(queries), 0), np.int64)
    scores = np.empty((len(queries), 0), np.float32)
    for first in range(0, len(documents), CHUNK):
        chunk = np.asarray(documents[first : first + CHUNK], np.float32)
        new = np.broadcast_to(np.arange(first, first + len(chunk)), (len(queries), len(chunk)))
        rows, scores = np.hstack([rows, new]), np.hstack([scores, queries @ chunk.T])
        if rows.shape[1] > depth:
            kept = np.sort(np.argpartition(-scores, depth - 1, axis=1)[:, :depth], axis=1)
            rows, scores = np.take_along_axis(rows, kept, 1), np.take_along_axis(scores, kept, 1)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)


class Postings:
    """Texts by their terms: what a sparse query is compared with."""

    def __init__(self, documents: SparseRows) -> None:
        order = np.argsort(documents.indices, kind="stable")
        self._texts = owners_of(documents.counts)[order]
        self._values = documents.values[order]
        self._terms, self._starts = np.unique(documents.indices[order], return_index=True)
        self._ends = np.append(self._starts[1:], len(order))
        self._count = len(documents)

    def frequencies(self) -> tuple[npt.NDArray[np.signedinteger], Rows]:
        """Say which terms there are, ascending, and how many texts have each."""
        return self._terms, (self._ends - self._starts).astype(np.int64)

    def nearest(self, queries: SparseRows, depth: int) -> list[tuple[Rows, Vectors]]:
        """Find up to `depth` texts for each query that share a term with it: rows and scores, best first."""
        return [self._found(queries, at, depth) for at in range(len(queries))]

    def _found(self, queries: SparseRows, at: int, depth: int) -> tuple[Rows, Vectors]:
        own = slice(queries.starts[at], queries.starts[at + 1])
        scores = np.zeros(self._count, np.float32)
        places = np.searchsorted(self._terms, queries.indices[own])
        for term, place, weight in zip(queries.indices[own], places, queries.values[own], strict=True):
            if place < len(self._terms) and self._terms[place] == term:
                span = slice(self._starts[place], self._ends[place])
                scores[self._texts[span]] += weight * self._values[span]
        there = np.flatnonzero(scores > 0)
        best = there[np.argsort(-scores[there], kind="stable")[:depth]]
        return best, scores[best]


def named(ids: Sequence[str], rows: Rows, scores: Vectors) -> dict[str, float]:
    """Write the hits of one query [k] by the ids of the texts, best first."""
    return dict(zip([ids[row] for row in rows], scores.tolist(), strict=True))


def maxsim(query: Vectors, texts: TokenRows) -> Vectors:
    """Score `texts` [n] for the token vectors of a query [tokens, dim]; NaN for one that has no tokens.

    The score of a text is the sum, over the query's tokens, of the largest dot product with any token of the text
    (Khattab and Zaharia 2020, arXiv:2004.12832). Texts stand one after the other and are never padded to the longest.
    """
    scores = np.full(len(texts), np.nan, np.float32)
    there = np.flatnonzero(texts.counts)
    slices = texts.starts[there + 1] // TOKENS
    for rows in np.split(there, np.flatnonzero(np.diff(slices)) + 1):
        some = texts.taken(rows)
        if len(some):
            likeness = query @ some.to_float32().T
            scores[rows] = np.maximum.reduceat(likeness, some.starts[:-1], axis=1).sum(axis=0)
    return scores


@dataclass(frozen=True)
class StoredForm:
    """Vectors in one form: the texts' [n, d] in numbers of any kind, queries [q, d] to be multiplied with them, and
    the bytes of one stored vector. Scores are true up to a factor and a term that all texts of a query share."""

    documents: npt.NDArray[np.generic]
    queries: Vectors
    bytes: int


def whole(documents: Vectors, queries: Vectors) -> StoredForm:
    """Keep vectors as they are."""
    return StoredForm(documents, queries, 4 * documents.shape[1])


def projected(documents: Vectors, queries: Vectors, sizes: Sequence[int]) -> list[StoredForm]:
    """Project vectors to each of some numbers of dimensions as a run does, by the directions of the texts."""
    if not sizes:
        return []
    directions = fit(_windows(documents), documents.shape[1], max(sizes))  # the longest first, so that fewer are in it
    forms = []
    for size in sizes:
        kept = [project(window, directions[:, :size]) for window in _windows(documents)]
        forms.append(StoredForm(np.concatenate(kept), queries @ directions[:, :size], 4 * size))
    return forms


def _windows(documents: Vectors) -> Iterator[Vectors]:
    for first in range(0, len(documents), CHUNK):
        yield documents[first : first + CHUNK]


def in_bytes(form: StoredForm) -> StoredForm:
    """Keep each number in a byte as a run does, over the full range of the texts' numbers; queries stay as they are."""
    numbers = np.asarray(form.documents, np.float32)
    return StoredForm(int8_for(_windows(numbers)).encode(numbers), form.queries, numbers.shape[1])
