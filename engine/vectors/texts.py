"""BM25 of a compact store, which keeps no terms: they are made again of the texts in its payloads, number by number as
they were delivered, and searched in memory with the IDF of the store's engine.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from interlock.engine.vectors.bm25 import BM25, Words, WordWeights
from interlock.engine.vectors.points import Point, Terms


def made_of_texts(manifest: Mapping[str, object]) -> WordWeights | None:
    """Return what makes the terms of a store with this manifest; None where it keeps them, or has none. Raises
    msgspec.ValidationError for a damaged one."""
    if not manifest.get("compact") or not manifest.get("bm25"):
        return None
    run = manifest.get("run")
    average = run.get("bm25_average_length") if isinstance(run, Mapping) else None
    return WordWeights(words=msgspec.convert(manifest["bm25"], Words), average_length=msgspec.convert(average, float))


def without_terms(point: Point) -> Point:
    """Return a point as it is kept."""
    return replace(point, sparse={name: terms for name, terms in point.sparse.items() if name != BM25})


def with_terms(point: Point, weights: WordWeights) -> Point:
    """Return a point as it was delivered."""
    return replace(point, sparse={**point.sparse, **weights.of(str(point.payload.get("text", "")))})


class TextPostings:
    """Texts by the terms that BM25 gives them, to be searched."""

    def __init__(self, weights: WordWeights, texts: Iterable[tuple[str, str]]) -> None:
        """`texts` are ids with their texts, of which nothing but the terms stays in memory."""
        found = sorted((id, terms) for id, text in texts for terms in weights.of(text).values())
        self._ids = np.array([id for id, _ in found], np.str_)
        counts = [len(terms.indices) for _, terms in found]
        indices = np.concatenate([np.empty(0, np.int64), *(terms.indices for _, terms in found)])
        values = np.concatenate([np.empty(0, np.float32), *(terms.values for _, terms in found)])
        order = np.argsort(indices, kind="stable")
        self._rows = np.repeat(np.arange(len(found), dtype=np.int32), counts)[order]
        self._values, self._terms = values[order], indices[order].astype(np.uint32)

    def best(self, question: Terms, limit: int, among: Collection[str] | None = None) -> dict[str, float]:
        """Return the scores of the `limit` texts that answer best, by id, best first and of equals the lower id first:
        dot products with the terms of a question by their IDF; only texts that share one, and `among` these ids."""
        scores = np.zeros(len(self._ids))
        for term, weight in zip(question.indices.astype(np.uint32), question.values, strict=True):
            start, end = np.searchsorted(self._terms, term), np.searchsorted(self._terms, term, "right")
            rarity = np.log1p((len(self._ids) - (end - start) + 0.5) / (end - start + 0.5))
            scores[self._rows[start:end]] += weight * rarity * self._values[start:end]
        if among is not None:
            scores[~np.isin(self._ids, np.array([*among], np.str_))] = 0
        there = np.flatnonzero(scores > 0)
        best = there[np.argsort(-scores[there].astype(np.float32), kind="stable")[:limit]]
        return dict(zip(self._ids[best].tolist(), scores[best].astype(np.float32).tolist(), strict=True))
