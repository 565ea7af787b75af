"""The best member and the weights of a roster, chosen by some judged queries and judged by others. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from interlock.engine.evaluation.material import DenseSide, Material, Rows
from interlock.engine.evaluation.measures import DEEPEST, MAIN, Difference, Values, differences, measured
from interlock.engine.evaluation.nearest import named, nearest
from interlock.engine.vectors.fusion import Fusion, Vectors, fuse

STEPS = 10
"""Weights are tried in steps of 1 / STEPS."""
FOLDS = 5
POOL = 200
"""Texts of each model among which weights are tried: one outside of all of them is not in the first ten."""
Share = tuple[float, ...]


@dataclass(frozen=True)
class Proposal:
    """The weights that did best on the training queries, and the mean of what each fold's choice gave on that fold."""

    weights: Share
    expected: float


@dataclass(frozen=True)
class Chosen:
    """The proposed weights by model: what cross-validation expects of them, and what they give on the held-out queries
    against the roster's weights and against the best member."""

    weights: Mapping[str, float]
    training: int
    held_out: int
    expected: float
    value: float
    against_weights: Difference
    against_best: Difference


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


def propose(members: int, quality: Callable[[Share], Values], seed: int) -> Proposal:
    """Propose weights by `quality`, which says how well some weights do on each training query [n].

    In each of `FOLDS` parts of the queries the best weights of the others are taken; the proposal is the mean of these
    choices, in whole steps: one choice by all queries would follow their chance more.
    """
    shares = grid(members)
    values = np.stack([quality(share) for share in shares])
    queries = np.random.default_rng(seed).permutation(values.shape[1])
    folds = [fold for fold in np.array_split(queries, FOLDS) if 0 < len(fold) < len(queries)]
    if not folds:
        folds = [queries]
    chosen, reached = [], []
    for fold in folds:
        others = np.setdiff1d(queries, fold) if len(folds) > 1 else fold
        best = _middle(shares, values[:, others].mean(axis=1))
        chosen.append(shares[best])
        reached.append(values[best, fold].mean())
    return Proposal(_in_steps(np.mean(chosen, axis=0)), float(np.mean(reached)))


def _middle(shares: Sequence[Share], means: Values) -> int:
    """The best of the shares; of equals the one nearest to equal weights."""
    best = np.flatnonzero(means >= means.max() - 1e-12)
    return min(best.tolist(), key=lambda at: max(shares[at]))


def _in_steps(share: npt.NDArray[np.float64]) -> Share:
    """A share in whole steps that sum to 1: down, and what is left to those that lost most."""
    parts = np.floor(share * STEPS + 1e-9).astype(int)
    left = STEPS - int(parts.sum())
    parts[np.argsort(-(share * STEPS - parts), kind="stable")[:left]] += 1
    return tuple(float(part) / STEPS for part in parts)


def chosen(material: Material, best: str, seed: int) -> Chosen | None:
    """Propose weights by the training queries, and judge them by the others, also against the member `best`; None for
    one model, or one query."""
    sides = material.dense
    if len(sides) < 2 or len(material.trained) < 2:
        return None
    proposal = propose(len(sides), _pooled(material, material.trained), seed)
    held = np.setdiff1d(material.tested, material.trained) if material.halved else material.tested
    given, alone = [side.weight for side in sides], [float(side.model == best) for side in sides]
    value, by_roster, by_best = (_exact(material, weights, held) for weights in (proposal.weights, given, alone))
    against = differences([value - by_roster, value - by_best], seed)
    weights = {side.model: part for side, part in zip(sides, proposal.weights, strict=True)}
    return Chosen(weights, len(material.trained), len(held), proposal.expected, float(value.mean()), *against)


def best_member(material: Material) -> str:
    """Name the model that finds most on the training queries."""
    sides = material.dense
    if len(sides) == 1:
        return sides[0].model
    alone = {each.model: [float(side is each) for side in sides] for each in sides}
    by_training = {name: _exact(material, weights, material.trained).mean() for name, weights in alone.items()}
    return max(by_training, key=lambda name: by_training[name])


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
    rows, scores = nearest(documents, asked[queries], DEEPEST)
    found = [named(material.ids, *each) for each in zip(rows, scores, strict=True)]
    return measured(found, [material.grades[at] for at in queries])[MAIN]


def _pooled(material: Material, queries: Rows) -> Callable[[Share], Values]:
    """Say how well weights do on some queries, among the texts that any of the models has near them."""
    sides, grades = material.dense, [material.grades[at] for at in queries]
    near = [nearest(side.documents, side.queries[queries], POOL)[0] for side in sides]
    pools = [np.unique(np.concatenate([rows[at] for rows in near])) for at in range(len(queries))]
    cosines = [
        np.stack([side.documents[pool] @ side.queries[query] for side in sides])
        for pool, query in zip(pools, queries, strict=True)
    ]

    def quality(share: Share) -> Values:
        found = []
        for pool, each in zip(pools, cosines, strict=True):
            scores = np.asarray(share, np.float32) @ each
            best = np.argsort(-scores, kind="stable")[:DEEPEST]
            found.append(named(material.ids, pool[best], scores[best]))
        return measured(found, grades)[MAIN]

    return quality
