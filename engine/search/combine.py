"""Several ranked lists of one question made into one order, and a reranker's scores blended with those before it.

Lists: a weighted sum of min-max scores is the default. Qdrant's two rules are there as choices: ranks alone (RRF), and
distance from each list's mean (DBSF). Rerankers: both kinds of score are brought to one scale, query by query, their
distance from the mean of the candidates in standard deviations; a share of 0 keeps the first stage's order, a share of
1 replaces it. Pure: ids and scores in, ids and scores out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from interlock.engine.errors import UsageError

Scores = Mapping[str, float]
"""The hits of one list: a score by id, the higher the better."""

DEPTH = 100
"""How many hits of each list are combined, at least."""
RRF_K = 60
"""What reciprocal rank fusion adds to every rank; large enough that the first place does not decide alone."""
WIDTH = 3.0
"""Standard deviations about a list's mean that DBSF spreads over 0 to 1."""
SHARE = 0.2
"""How much a reranker counts where nobody says it. Of the shares tried on four judged sets with a small cross-encoder
(30 candidates, this very scale) it gained .005 to .013 nDCG@10 on three and lost .010 on the fourth; .35 lost .032
there, and 1 lost on all four."""
LATE_SHARE = 0.3
"""How much late interaction counts: of the shares tried (.3, .5) it helped or did no harm on every judged set."""
CANDIDATES = 50
"""How many candidates are scored where nobody says it."""
ALIKE = 1e-6
"""Scores that differ by less than this share of the largest say nothing of their order."""


class Hybrid(StrEnum):
    """How the lists of several stages become one."""

    WEIGHTED = "weighted"
    RRF = "rrf"
    DBSF = "dbsf"
    OFF = "off"


def combined(
    how: Hybrid, lists: Mapping[str, Scores], shares: Mapping[str, float], floors: Mapping[str, float] = {}
) -> dict[str, float]:
    """Combine lists of hits into one, best first; of equals the one that an earlier list has higher stands first.

    `shares` say how much each list counts (WEIGHTED and DBSF). `floors` are scores that nothing outside of a list
    exceeds where that is known: 0 for a sparse list which has every text that shares a term with the question.
    """
    total: dict[str, float] = {}
    for scores in lists.values():
        total |= dict.fromkeys(sorted(scores, key=lambda point: -scores[point]), 0.0)
    for name, scores in lists.items():
        share = shares.get(name, 1.0)
        if how is Hybrid.RRF:
            ranks = enumerate(sorted(scores, key=lambda point: -scores[point]), 1)
            share, scaled = 1.0, {point: 1 / (RRF_K + rank) for rank, point in ranks}
        else:
            scaled = by_deviation(scores) if how is Hybrid.DBSF else by_range(scores, floors.get(name))
        for point, score in scaled.items():
            total[point] += share * score
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))


def by_range(scores: Scores, floor: float | None = None) -> dict[str, float]:
    """Bring scores to 0..1 between `floor` (None: the lowest of them) and the highest; to 1 where they are alike."""
    if not scores:
        return {}
    lowest, highest = min(scores.values()) if floor is None else floor, max(scores.values())
    if not highest > lowest:
        return dict.fromkeys(scores, 1.0)
    return {point: (score - lowest) / (highest - lowest) for point, score in scores.items()}


def by_deviation(scores: Scores) -> dict[str, float]:
    """Bring scores to 0..1 over `WIDTH` standard deviations about their mean; all to 0.5 where they are alike."""
    values = np.fromiter(scores.values(), np.float64, len(scores))
    spread = float(values.std()) if len(values) else 0.0
    if not spread > 0:
        return dict.fromkeys(scores, 0.5)
    placed = np.clip((values - values.mean()) / (2 * WIDTH * spread) + 0.5, 0, 1)
    return dict(zip(scores, placed.tolist(), strict=True))


def shares_of(dense: Sequence[str], sparse: Sequence[str], sparse_share: float) -> dict[str, float]:
    """Say how much each list counts: the sparse ones share `sparse_share` alike, the dense ones the rest; where there
    is one kind alone it has all. Raises UsageError for a share that is not from 0 to 1."""
    if not 0 <= sparse_share <= 1:
        raise UsageError(f"--sparse-share: expected a number from 0 to 1, got {sparse_share!r:.100}")
    if not dense:
        sparse_share = 1.0
    if not sparse:
        sparse_share = 0.0
    parts = {name: (1 - sparse_share) / len(dense) for name in dense}
    return parts | {name: sparse_share / len(sparse) for name in sparse}


@dataclass(frozen=True)
class Ranked:
    """A candidate in its new place: which it was, from 0, by the first stage, and its scores."""

    before: int
    first: float
    rerank: float
    blended: float


def reranked(first: Sequence[float], second: Sequence[float], share: float) -> list[Ranked]:
    """Order candidates by the blend of two scores each, best first; of equals the one that stood first stays first.

    Raises ValueError for scores that are not finite.
    """
    before, after = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise ValueError("scores that are not finite cannot be blended")
    mixed = (1 - share) * standardised(before) + share * standardised(after)
    order = np.argsort(-mixed, kind="stable")
    return [Ranked(int(at), float(before[at]), float(after[at]), float(mixed[at])) for at in order]


def standardised(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bring scores [n] to mean 0 and standard deviation 1; all of them to 0 where none says more than another."""
    if not len(scores) or np.ptp(scores) <= ALIKE * np.abs(scores).max():
        return np.zeros_like(scores)
    whole: npt.NDArray[np.float64] = (scores - scores.mean()) / scores.std()
    return whole
