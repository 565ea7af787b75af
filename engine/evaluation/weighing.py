"""What an evaluation is made of, and the best member and the weights of a roster, chosen by some of its judged queries
and judged by others. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.evaluation.judgements import Judged
from interlock.engine.evaluation.nearest import Rows, named, nearest
from interlock.engine.evaluation.report import DEEPEST, MAIN, MeasuredWeights, Values, differences, measured
from interlock.engine.vectors.fusion import Fusion, Vectors, fuse

STEPS = 10
"""Weights are tried in steps of 1 / STEPS."""
FOLDS = 5
POOL = 200
"""Texts of each model among which weights are tried: one outside of all of them is not in the first ten."""
Share = tuple[float, ...]


@dataclass(frozen=True)
class SideCost:
    """What a model takes: seconds of `device` for all texts, and CPU milliseconds for a query; None if not known."""

    seconds: float | None = None
    query_ms: float | None = None
    device: str = "CPU"


@dataclass(frozen=True)
class DenseSide:
    """A dense model with unit vectors of the texts [n, d] and of the queries [q, d], and the sizes that it was trained
    to be cut to."""

    name: str
    weight: float
    documents: Vectors
    queries: Vectors
    cost: SideCost = SideCost()
    sizes: tuple[int, ...] = ()
    tokens: TokenRows | None = None
    """Vectors of the texts' tokens, where they were asked for."""


@dataclass(frozen=True)
class SparseSide:
    """Sparse vectors of the texts [n] and of the queries [q]: a model's, or BM25's."""

    name: str
    documents: SparseRows
    queries: SparseRows
    cost: SideCost = SideCost()


@dataclass(frozen=True)
class Material:
    """Texts by id and queries by number, what the models give of them, and who judges: `tested` queries are what
    figures are of, `trained` ones choose weights and the best member; they share none, unless `trained` are a half of
    the tested ones (`halved`) because the collection has no split to train by."""

    ids: Sequence[str]
    grades: Sequence[Mapping[str, int]]
    tested: Rows
    trained: Rows
    halved: bool
    dense: Sequence[DenseSide]
    sparse: Sequence[SparseSide] = field(default_factory=tuple)
    queries: Sequence[str] = ()
    """The ids of the tested ones."""
    themselves: Mapping[int, str] = field(default_factory=dict)
    """The texts that some queries are themselves, and which are no hits of theirs."""

    @property
    def depth(self) -> int:
        """How many texts are looked for, so that lists are `DEEPEST` long."""
        return DEEPEST + bool(self.themselves)

    def hits(self, query: int, rows: Rows, scores: Vectors) -> dict[str, float]:
        """Write the hits of a query by the ids of the texts, best first, without the text that it is itself."""
        found = named(self.ids, rows, scores)
        found.pop(self.themselves.get(int(query), ""), None)
        return dict(list(found.items())[:DEEPEST])


class QueryParts(NamedTuple):
    """The ids of judged queries, those of the split `test` first: which of them are measured, which choose weights, and
    whether the latter are a half of the former."""

    queries: Sequence[str]
    tested: Rows
    trained: Rows
    halved: bool


def parted(judged: Judged, most: int | None, seed: int) -> QueryParts:
    """Part the judged queries in those that are measured, `most` at most of each split, and those that choose weights:
    the split `train`, or where there is none a half of the measured ones."""
    generator = np.random.default_rng(seed)

    def some(split: str) -> list[str]:
        queries = list(judged.splits[split])
        if most is None or most >= len(queries):
            return queries
        return [queries[at] for at in sorted(generator.permutation(len(queries))[:most])]

    test = some("test")
    if "train" in judged.splits:
        train = some("train")
        queries = list(dict.fromkeys([*test, *train]))
        places = {query: at for at, query in enumerate(queries)}
        return QueryParts(queries, np.arange(len(test)), np.array([places[each] for each in train], np.int64), False)
    half = np.sort(generator.permutation(len(test))[: -(-len(test) // 2)])
    return QueryParts(test, np.arange(len(test)), half.astype(np.int64), True)


def material_of(
    judged: Judged, parts: QueryParts, dense: Sequence[DenseSide], sparse: Sequence[SparseSide]
) -> Material:
    """Put together what models give of a judged collection, and who judges it."""
    own, every = set(judged.themselves), {**judged.splits.get("train", {}), **judged.splits["test"]}
    return Material(
        list(judged.texts),
        [every[query] for query in parts.queries],
        parts.tested,
        parts.trained,
        parts.halved,
        dense,
        sparse,
        [parts.queries[at] for at in parts.tested],
        {at: query for at, query in enumerate(parts.queries) if query in own},
    )


def grid(members: int) -> list[Share]:
    """List every share of `members` in steps of 1 / STEPS that sums to 1; a share of 0 leaves a model out."""
    return [tuple(part / STEPS for part in parts) for parts in _parts(members, STEPS)]


def _parts(members: int, total: int) -> Iterator[tuple[int, ...]]:
    if members == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _parts(members - 1, total - first):
            yield (first, *rest)


def propose(members: int, quality: Callable[[Share], Values], seed: int) -> tuple[Share, float]:
    """Propose weights by `quality`, which says how well some weights do on each training query [n], and say what to
    expect of them: the mean of what each fold's choice gave on that fold.

    In each of `FOLDS` parts of the queries the best weights of the others are taken; the proposal is the mean of these
    choices, in whole steps: one choice by all queries would follow their chance more.
    """
    shares = grid(members)
    values = np.stack([quality(share) for share in shares])
    queries = np.random.default_rng(seed).permutation(values.shape[1])
    folds = [fold for fold in np.array_split(queries, FOLDS) if 0 < len(fold) < len(queries)] or [queries]
    best, reached = [], []
    for fold in folds:
        means = values[:, np.setdiff1d(queries, fold) if len(folds) > 1 else fold].mean(axis=1)
        equals = np.flatnonzero(means >= means.max() - 1e-12).tolist()
        best.append(min(equals, key=lambda at: max(shares[at])))  # of equals the one nearest to equal weights
        reached.append(values[best[-1], fold].mean())
    return _in_steps(np.mean([shares[at] for at in best], axis=0)), float(np.mean(reached))


def _in_steps(share: npt.NDArray[np.float64]) -> Share:
    """A share in whole steps that sum to 1: down, and what is left to those that lost most."""
    parts = np.floor(share * STEPS + 1e-9).astype(int)
    left = STEPS - int(parts.sum())
    parts[np.argsort(-(share * STEPS - parts), kind="stable")[:left]] += 1
    return tuple(float(part) / STEPS for part in parts)


def chosen(material: Material, best: str, seed: int) -> MeasuredWeights | None:
    """Propose weights by the training queries, and judge them by the others, also against the member `best`; None for
    one model, or one query."""
    sides = material.dense
    if len(sides) < 2 or len(material.trained) < 2:
        return None
    weights, expected = propose(len(sides), _pooled(material, material.trained), seed)
    held = np.setdiff1d(material.tested, material.trained) if material.halved else material.tested
    given, alone = [side.weight for side in sides], [float(side.name == best) for side in sides]
    value, by_roster, by_best = (_exact(material, each, held) for each in (weights, given, alone))
    against_roster, against_best = differences([value - by_roster, value - by_best])
    return MeasuredWeights(
        weights={side.name: part for side, part in zip(sides, weights, strict=True)},
        training=len(material.trained),
        held_out=len(held),
        expected=expected,
        value=float(value.mean()),
        against_roster=against_roster,
        against_best=against_best,
    )


def best_member(material: Material) -> str:
    """Name the model that finds most on the training queries."""
    sides = material.dense
    if len(sides) == 1:
        return sides[0].name
    alone = {each.name: [float(side is each) for side in sides] for each in sides}
    found = {name: _exact(material, weights, material.trained).mean() for name, weights in alone.items()}
    return max(found, key=lambda name: found[name])


def fused(sides: Sequence[DenseSide], fusion: Fusion, weights: Sequence[float]) -> tuple[Vectors, Vectors]:
    """Fuse texts [n, d] and queries [q, d] by these weights, of which those of 0 leave their model out."""
    used = [(side, weight) for side, weight in zip(sides, weights, strict=True) if weight > 0]
    if len(used) == 1:
        return used[0][0].documents, used[0][0].queries
    shares = [weight for _, weight in used]
    documents = fuse(fusion, [side.documents for side, _ in used], shares)
    queries = fuse(fusion, [side.queries for side, _ in used], shares)
    assert documents is not None and queries is not None, "named vectors are not fused"
    return documents, queries


def _exact(material: Material, weights: Sequence[float], queries: Rows) -> Values:
    """nDCG of some queries by the weighted mean of the models' cosines."""
    documents, asked = fused(material.dense, Fusion.CONCAT, weights)
    hits = zip(queries, *nearest(documents, asked[queries], material.depth), strict=True)
    found = [material.hits(*each) for each in hits]
    return measured(found, [material.grades[at] for at in queries])[MAIN]


def _pooled(material: Material, queries: Rows) -> Callable[[Share], Values]:
    """Say how well weights do on some queries, among the texts that any of the models has near them."""
    sides, grades = material.dense, [material.grades[at] for at in queries]
    near = [nearest(side.documents, side.queries[queries], POOL)[0] for side in sides]
    pools = [np.unique(np.concatenate(rows)) for rows in zip(*near, strict=True)]
    cosines = [
        np.stack([side.documents[pool] @ side.queries[query] for side in sides])
        for pool, query in zip(pools, queries, strict=True)
    ]

    def quality(share: Share) -> Values:
        found = []
        for query, pool, each in zip(queries, pools, cosines, strict=True):
            scores = np.asarray(share, np.float32) @ each
            best = np.argsort(-scores, kind="stable")[: material.depth]
            found.append(material.hits(query, pool[best], scores[best]))
        return measured(found, grades)[MAIN]

    return quality
