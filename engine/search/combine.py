"""Several ranked lists of one question made into one order.

A weighted sum of min-max scores is the default. Qdrant's two rules are there as choices: ranks alone (RRF), and
distance from each list's mean (DBSF). Pure: ids and scores in, ids and scores out.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np

from interlock.engine.errors import UsageError

Scores = Mapping[str, float]
"""The hits of one list: a score by id, the higher the better."""

SPARSE_SHARE = 0.2
"""How much all sparse lists count beside the dense one where nobody says it."""
DEPTH = 100
"""How many hits of each list are combined, at least."""
RRF_K = 60
"""What reciprocal rank fusion adds to every rank; large enough that the first place does not decide alone."""
WIDTH = 3.0
"""Standard deviations about a list's mean that DBSF spreads over 0 to 1."""


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
    if how is Hybrid.RRF:
        parts = [_reciprocal(scores) for scores in lists.values()]
    elif how is Hybrid.DBSF:
        parts = [_times(shares[name], by_deviation(scores)) for name, scores in lists.items()]
    else:
        parts = [_times(shares[name], by_range(scores, floors.get(name))) for name, scores in lists.items()]
    total: dict[str, float] = {}
    for scores in lists.values():
        total |= dict.fromkeys(_ordered(scores), 0.0)
    for part in parts:
        for point, score in part.items():
            total[point] += score
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


def _reciprocal(scores: Scores) -> dict[str, float]:
    return {point: 1 / (RRF_K + rank) for rank, point in enumerate(_ordered(scores), 1)}


def _ordered(scores: Scores) -> list[str]:
    return sorted(scores, key=lambda point: -scores[point])


def _times(share: float, scores: Scores) -> dict[str, float]:
    return {point: share * score for point, score in scores.items()}
