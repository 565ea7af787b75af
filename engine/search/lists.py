"""The ranked lists of one question, each the nearest points by one kind of vector that a store has."""

import heapq
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.bm25 import Words
from interlock.engine.vectors.fusion import shares
from interlock.engine.vectors.points import Terms, Vector

if TYPE_CHECKING:
    import qdrant_edge as edge

NEAR = 256
"""Points of each model that are looked at first, at least, where several models' own vectors are searched."""


def nearest(store: Store, name: str, vector: Vector, limit: int, where: "edge.Filter | None") -> dict[str, float]:
    """Return the cosines of the `limit` points that are nearest to `vector` [dim], by id, best first."""
    return _ordered(store.query(name, vector, limit, where))


def nearest_to_all(
    store: Store,
    vectors: Mapping[str, Vector],
    weights: Mapping[str, float],
    limit: int,
    where: "edge.Filter | None",
) -> dict[str, float]:
    """Return the weighted mean cosines of the `limit` points where that is highest, by id, best first.

    Each model gives its nearest points, the union is scored by every model, and the depth grows until no point outside
    the union can reach the last hit (Fagin's threshold). A point parked for a model scores 0 there.
    """
    share = dict(zip(vectors, shares([weights[name] for name in vectors]).tolist(), strict=True))
    total, depth = store.count(), max(NEAR, 16 * limit)
    while True:
        near = {name: store.query(name, vector, depth, where) for name, vector in vectors.items()}
        union = set().union(*near.values())
        # A point that no model has among its nearest is for each at most as near as the last of these.
        beyond = sum(share[n] * max(0.0, min(scores.values(), default=0.0)) for n, scores in near.items())
        for name, scores in near.items():
            if rest := union - scores.keys():
                scores |= store.query(name, vectors[name], len(rest), among=rest)
        means = {i: sum(share[n] * scores.get(i, 0.0) for n, scores in near.items()) for i in union}
        best = heapq.nsmallest(limit, means.items(), key=lambda pair: (-pair[1], pair[0]))
        if depth >= total or (best and best[-1][1] >= beyond):
            return dict(best)
        depth *= 4


def matching(store: Store, name: str, terms: Terms, limit: int, where: "edge.Filter | None") -> dict[str, float]:
    """Return the `limit` points whose terms have the largest dot product with `terms`, by id, best first; only those
    that share one, and nothing where the question has none."""
    if not len(terms.indices):
        return {}
    return {point: score for point, score in _ordered(store.query(name, terms, limit, where)).items() if score > 0}


def words_of(words: Words, text: str) -> Terms:
    """Return the words of a question for BM25, 1 for each that is not a stop word."""
    found = words.engine(words.k, words.b, 1.0).embed_query(text)
    order = np.argsort(found.indices)
    return Terms(np.array(found.indices, np.int64)[order], np.array(found.values, np.float32)[order])


def _ordered(scores: Mapping[str, float]) -> dict[str, float]:
    """Best first, of equals in the order of their ids: the engine's own order of them may change."""
    pairs: Iterable[tuple[str, float]] = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
    return dict(pairs)
