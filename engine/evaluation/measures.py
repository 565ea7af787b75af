"""How well ranked lists answer judged queries, as trec_eval measures it, and how sure a difference is. Pure."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from interlock.engine.corpus.questions import Grades
from interlock.engine.errors import UnavailableError

Values = npt.NDArray[np.float64]
Found = Mapping[str, float]
"""The hits of one query: a score by id, best first."""

MEASURES = ("nDCG@10", "R@100", "RR@10")
"""As ir-measures names them. Gains are the grades; recall and reciprocal rank count grades above 0 as answers."""
MAIN = MEASURES[0]
DEEPEST = 100
RESAMPLES = 10_000
FEWEST = 6
"""Queries that must all agree before a sign test tells a difference from chance at 5 %."""
CONFIDENCE = 0.95
BLOCK = 1 << 24
"""Numbers that resampling holds at once."""


class Interval(Struct, frozen=True, kw_only=True):
    """The mean of a paired difference over queries, and the bootstrap interval (95 %) about it."""

    mean: float
    low: float
    high: float
    significant: Annotated[bool, Meta(description="whether 0 lies outside of low..high; never for a few queries")]


def measured(lists: Sequence[Found], grades: Sequence[Mapping[str, int]]) -> dict[str, Values]:
    """Measure ranked lists [queries] against the grades of their queries; float64 [queries] by name of MEASURES.

    The order of a list counts and not its scores: of equal ones trec_eval would take another first. Raises
    UnavailableError without ir-measures.
    """
    try:
        import ir_measures
    except ModuleNotFoundError:
        raise UnavailableError("ir-measures is not installed: install it with pip install 'interlock[eval]'") from None
    names = [str(at) for at in range(len(lists))]
    run = {
        name: {text: float(-place) for place, text in enumerate(list(found)[:DEEPEST])}
        for name, found in zip(names, lists, strict=True)
        if found
    }
    judged: Grades = dict(zip(names, grades, strict=True))
    values = {measure: np.zeros(len(lists)) for measure in MEASURES}
    if run:
        for each in ir_measures.iter_calc(list(map(ir_measures.parse_measure, MEASURES)), judged, run):
            values[str(each.measure)][int(each.query_id)] = each.value
    return values


def differences(pairs: Sequence[Values], seed: int) -> list[Interval]:
    """Say of each array of paired differences [queries] how large their mean is and where it may lie: the quantiles of
    the means of `RESAMPLES` samples with replacement, the same ones for all. Of fewer than `FEWEST` queries resamples
    are too alike for any difference to be significant."""
    if not pairs:
        return []
    whole, generator = np.stack(pairs), np.random.default_rng(seed)
    count, size = len(pairs[0]), max(1, BLOCK // max(1, len(pairs[0])))
    means = []
    for first in range(0, RESAMPLES, size):
        picked = generator.integers(0, count, (min(size, RESAMPLES - first), count))
        weights = np.stack([np.bincount(row, minlength=count) for row in picked]).astype(np.float64)
        means.append(weights @ whole.T / count)
    tail = (1 - CONFIDENCE) / 2
    lows, highs = np.quantile(np.concatenate(means), (tail, 1 - tail), axis=0).tolist()
    return [
        Interval(mean=mean, low=low, high=high, significant=count >= FEWEST and (low > 0 or high < 0))
        for mean, low, high in zip(whole.mean(axis=1).tolist(), lows, highs, strict=True)
    ]
