"""How well ranked lists answer judged queries, as trec_eval measures it, how sure a difference is, and what `interlock
eval --json` writes of that, with sentences that say no more than the figures do. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from interlock.engine.corpus.questions import Grades
from interlock.engine.errors import UnavailableError
from interlock.engine.record.words import duration, several

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
FEW = 30
"""Judged queries below which every interval is wide, or says nothing: where none of a few differ it is from 0 to 0."""
ALIKE = 0.01
"""Two ways whose difference lies within this are told to find the same."""
Group = Literal["models", "fusions", "storage", "sparse", "hybrid", "rerank"]


def _says(text: str) -> Meta:
    return Meta(description=text)


class Interval(Struct, frozen=True, kw_only=True):
    """The mean of a paired difference over queries, and the bootstrap interval (95 %) about it."""

    mean: float
    low: float
    high: float
    significant: Annotated[bool, _says("whether 0 lies outside of low..high; never for a few queries")]


class MeasuredWay(Struct, frozen=True, kw_only=True):
    """One way to search."""

    group: Group
    name: str
    measures: Annotated[dict[str, float], _says("nDCG@10, R@100, RR@10: means over the judged queries")]
    against: Annotated[str, _says("the way that the difference is from; empty for none")]
    difference: Interval | None
    ms: Annotated[float | None, _says("CPU milliseconds a query, encoding included; null if not known")]
    bytes: Annotated[float, _says("bytes that a text takes in what is searched")]
    rescored_bytes: Annotated[
        float, _says("bytes that it takes beside, of what only the best hits are scored again by")
    ] = 0.0


class MeasuredWeights(Struct, frozen=True, kw_only=True):
    """The weights that cross-validation proposes, and what they give on queries that had no part in it."""

    weights: dict[str, float]
    training: Annotated[int, _says("queries that chose them")]
    held_out: Annotated[int, _says("queries that judge them")]
    expected: Annotated[float, _says("nDCG@10 that cross-validation expects")]
    value: Annotated[float, _says("nDCG@10 on the held-out queries")]
    against_roster: Annotated[Interval, _says("against the roster's own weights")]
    against_best: Annotated[Interval, _says("against the best member alone")]


class MeasuredModel(Struct, frozen=True, kw_only=True):
    """A dense model of the roster."""

    weight: float
    dim: int
    spread: Annotated[float, _says("standard deviation of the cosines of random pairs of texts")]
    seconds: Annotated[float | None, _says("seconds of `device` that encoding all texts took; null if not known")]
    device: str
    query_ms: Annotated[float | None, _says("CPU milliseconds that encoding a query takes")]


class Evaluation(Struct, frozen=True, kw_only=True):
    """What an ensemble finds, by judged queries."""

    schema_version: Literal["1"] = "1"
    data: str
    texts: int
    queries: Annotated[int, _says("judged queries that the figures are of")]
    training: Annotated[int, _says("judged queries that chose the best member and the weights")]
    halved: Annotated[bool, _says("whether the training queries are a half of the judged ones")]
    seed: int
    fusion: str
    best_member: Annotated[str, _says("the model that finds most on the training queries")]
    models: dict[str, MeasuredModel]
    ways: list[MeasuredWay]
    weights: MeasuredWeights | None
    verdict: str
    cost: str
    notes: list[str]
    roster: Annotated[str, _says("the proposed weights as `--roster` takes them; empty for one model")] = ""

    def __repr__(self) -> str:
        judged = f"{several(self.texts, 'text')}, {_judged(self.queries)}"
        return f"<evaluation of {self.data}: {judged}; {self.verdict or f'{self.best_member} alone'}>"


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


def dumps(found: Evaluation) -> bytes:
    """Write an evaluation as JSON, with a line end."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def verdict(name: str, best: str, difference: Interval, queries: int) -> str:
    """Say in one sentence what the interval of `name` minus `best`, over so many queries, carries."""
    lies = f"the difference in {MAIN} lies between {signed(difference.low)} and {signed(difference.high)}"
    judged = _judged(queries)
    if difference.significant and difference.low > 0:
        return f"{name} finds more than its best member, {best}, alone: {lies} (95 %, {judged})"
    if difference.significant:
        return f"{name} finds less than its best member, {best}, alone, which will do: {lies} (95 %, {judged})"
    if queries >= FEW and max(-difference.low, difference.high) <= ALIKE:
        return f"{name} and its best member, {best}, alone find the same: {lies} (95 %, {judged})"
    return f"cannot tell with {judged} whether {name} finds more than its best member, {best}, alone: {lies}"


def bill(best: str, models: Mapping[str, MeasuredModel]) -> str:
    """Say what all models take for the texts and for a query, and what the best member takes alone; empty where no
    model's time is known."""
    known = {name: each.seconds for name, each in models.items() if each.seconds is not None}
    if len(known) < len(models):
        return ""
    (device, *others) = {each.device for each in models.values()}
    whose = f"{device} time" if not others else "time on its devices"
    texts = f"the texts took {duration(sum(known.values()))} of {whose}, {best} alone {duration(known[best])}"
    queries = {name: each.query_ms for name, each in models.items() if each.query_ms is not None}
    if len(queries) < len(models):
        return texts
    return f"{texts}; a query {sum(queries.values()):.0f} ms of CPU time, {best} alone {queries[best]:.0f}"


def few_queries(queries: int) -> list[str]:
    """Warn of a number of judged queries by which little can be told; nothing for enough."""
    few = f"only {_judged(queries)}: intervals are wide, and what has no * here may have one with {FEW} or more"
    return [few] if queries < FEW else []


def signed(value: float) -> str:
    """Write a difference in three digits, with its sign: +.012."""
    text = f"{value:+.3f}".replace("0.", ".", 1)
    return "0" if text in ("+.000", "-.000") else text


def _judged(queries: int) -> str:
    return several(queries, "judged query", "judged queries")
