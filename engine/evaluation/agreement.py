"""What models have in common where nobody has judged anything: texts are the queries, and nothing says who is right."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Struct

from interlock.engine.evaluation.judging import pair_cosines
from interlock.engine.evaluation.nearest import Rows, nearest
from interlock.engine.evaluation.report import says
from interlock.engine.evaluation.weighing import Share, grid
from interlock.engine.vectors.fusion import Fusion, Vectors, fuse

DEPTH = 10
ASKED = 200
"""Texts that are asked with where nobody says it."""


class ModelPair(Struct, frozen=True, kw_only=True):
    """What two models have in common."""

    one: str
    other: str
    overlap: Annotated[float, says("share of the ten nearest texts that both find, 0 to 1")]
    correlation: Annotated[float, says("of the cosines of random pairs of texts")]


class OtherWeights(Struct, frozen=True, kw_only=True):
    """What other weights would change."""

    weights: dict[str, float]
    overlap: Annotated[float, says("share of the ten nearest texts that the roster's weights find too, 0 to 1")]


class Agreement(Struct, frozen=True, kw_only=True):
    """What the models of a run have in common, without judgements."""

    schema_version: Literal["1"] = "1"
    data: str
    texts: int
    asked: Annotated[int, says("texts that were asked with")]
    seed: int
    pairs: list[ModelPair]
    weights: list[OtherWeights]


def agreement(
    data: str, models: Mapping[str, Vectors], weights: Sequence[float], asked: int | None, seed: int
) -> Agreement:
    """Compare models by their unit vectors of the same texts [n, dim], asked with up to `asked` of these."""
    (count,) = {len(vectors) for vectors in models.values()}
    rows = np.sort(np.random.default_rng(seed).permutation(count)[: min(asked or ASKED, count)])
    near = {model: _near(vectors, rows) for model, vectors in models.items()}
    cosines = {model: pair_cosines(vectors, seed) for model, vectors in models.items()}
    pairs = [
        ModelPair(
            one=one,
            other=other,
            overlap=_overlap(near[one], near[other]),
            correlation=float(np.corrcoef(cosines[one], cosines[other])[0, 1]),
        )
        for one, other in combinations(models, 2)
    ]
    own = _near(_fused(models, tuple(weights)), rows)
    others = [
        OtherWeights(
            weights=dict(zip(models, share, strict=True)), overlap=_overlap(own, _near(_fused(models, share), rows))
        )
        for share in grid(len(models))
        if len(models) == 2
    ]
    return Agreement(data=data, texts=count, asked=len(rows), seed=seed, pairs=pairs, weights=others)


def agreement_json(found: Agreement) -> bytes:
    """Write it as JSON, with a line end."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def _fused(models: Mapping[str, Vectors], share: Share) -> Vectors:
    used = [(vectors, part) for vectors, part in zip(models.values(), share, strict=True) if part > 0]
    if len(used) == 1:
        return used[0][0]
    fused = fuse(Fusion.CONCAT, [vectors for vectors, _ in used], [part for _, part in used])
    assert fused is not None, "concat makes a vector"
    return fused


def _near(vectors: Vectors, asked: Rows) -> Rows:
    """The `DEPTH` nearest of some texts [asked, DEPTH], themselves left out; -1 where there are fewer."""
    rows = nearest(vectors, vectors[asked], DEPTH + 1)[0]
    found = np.full((len(asked), DEPTH), -1, np.int64)
    for at, (own, others) in enumerate(zip(asked, rows, strict=True)):
        left = others[others != own][:DEPTH]
        found[at, : len(left)] = left
    return found


def _overlap(one: Rows, other: Rows) -> float:
    shared = [len(set(a) & set(b) - {-1}) / max(1, int((a >= 0).sum())) for a, b in zip(one, other, strict=True)]
    return float(np.mean(shared)) if shared else 0.0
