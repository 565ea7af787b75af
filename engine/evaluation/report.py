"""How well ranked lists answer judged queries, as trec_eval measures it, how sure a difference is, and what `interlock
eval --json` writes of that, with sentences that say no more than the figures do. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.evaluation.judgements import Found, Grades
from interlock.engine.record.words import duration, several

Values = npt.NDArray[np.float64]
MEASURES = ("nDCG@10", "R@100", "RR@10")
"""As ir-measures names them. Gains are the grades; recall and reciprocal rank count grades above 0 as answers."""
KINDS = ("nDCG", "P", "R", "AP", "RR", "Judged")
"""What else may be measured, to any depth."""
_TREC = re.compile(r"(map|ndcg)(_cut[_.]\d+)?$|(P|recall)[_.]\d+$|recip_rank$")
"""Measures as trec_eval names them."""
MAIN = MEASURES[0]
DEEPEST = 100
CONFIDENCE = 0.95
FEWEST = 20
"""Judged queries below which nothing is told from chance, whatever its interval: a handful is no sample of a corpus."""
LEAST = 5
"""Judged queries of one of several sets below which no difference over them is: of two or three the spread says too
little, and one table of equal ways in ten had a star (bench/intervals.py)."""
SPREAD, POWER = 0.15, 0.8
"""A standard deviation over queries that a difference in nDCG@10 may have (bench/intervals.py: .06 to .23; of ways of
one roster .07 to .09 at the median of three sets), and how often it is to be found."""
BESIDE = 10
"""Ways that a table mostly compares, where it is not made yet."""
MOST = 1000
"""Judged queries beyond which nobody is sent to judge more: ways that differ so little find the same."""
FEW = 30
"""Judged queries below which every interval is wide, or says nothing: where none of a few differ it is from 0 to 0."""
ALIKE = 0.01
"""Two ways whose difference lies within this are told to find the same."""
Group = Literal["models", "fusions", "storage", "sparse", "hybrid", "rerank"]
Bounds = Annotated[dict[str, tuple[float, float]], Meta(description="the interval about each mean (95 %, Student's t)")]


def _says(text: str) -> Meta:
    return Meta(description=text)


class Interval(Struct, frozen=True, kw_only=True):
    """The mean of a paired difference over queries, the interval (95 %, Student's t) about it, and its p-value."""

    mean: float
    low: float
    high: float
    significant: Annotated[
        bool, _says("whether it is told from 0 beside all that are compared (Holm, 5 %); never for a few queries")
    ]
    adjusted_p: Annotated[float | None, _says("p-value by Holm's procedure over the same; null for one query")] = None


class MeasuredWay(Struct, frozen=True, kw_only=True):
    """One way to search."""

    group: Group
    name: str
    measures: Annotated[dict[str, float], _says("nDCG@10, R@100, RR@10, or --measures: means over the judged queries")]
    values: Annotated[dict[str, list[float]], _says("the same of each query, in the order of `query_ids`")]
    intervals: Bounds = {}
    against: Annotated[str, _says("the way that the difference is from; empty for none")]
    difference: Interval | None
    ms: Annotated[float | None, _says("CPU milliseconds a query, encoding included; null if not known")]
    bytes: Annotated[float, _says("bytes that a text takes in what is searched")]


class MeasuredWeights(Struct, frozen=True, kw_only=True):
    """The weights that cross-validation proposes, and what they give on queries that had no part in it."""

    weights: dict[str, float]
    training: Annotated[int, _says("queries that chose them")]
    held_out: Annotated[int, _says("queries that judge them")]
    expected: Annotated[float, _says("nDCG@10 that cross-validation expects")]
    value: Annotated[float, _says("nDCG@10 on the held-out queries")]
    against_roster: Annotated[Interval, _says("against the roster's own weights")]
    against_best: Annotated[Interval, _says("against the best member alone")]

    @property
    def supported(self) -> bool:
        """Whether the held-out queries tell that they find more than the roster's."""
        return self.against_roster.significant and self.against_roster.mean > 0


class MeasuredModel(Struct, frozen=True, kw_only=True):
    """A dense model of the roster."""

    weight: float
    dim: int
    seconds: Annotated[float | None, _says("seconds of `device` that encoding all texts took; null if not known")]
    device: str
    query_ms: Annotated[float | None, _says("CPU milliseconds that encoding a query takes")]


class WrongHit(Struct, frozen=True, kw_only=True):
    """A text that was found and is no answer."""

    id: str
    rank: int
    grade: Annotated[int | None, _says("its grade; null where nobody judged it")]
    text: Annotated[str, _says("how it begins")]


class HardQuery(Struct, frozen=True, kw_only=True):
    """A query that is answered worse than others."""

    query: str
    text: str
    value: Annotated[float, _says("its nDCG@10")]
    wrong: Annotated[list[WrongHit], _says("the first hits that are no answers")]


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
    query_ids: Annotated[list[str], _says("the judged queries, in the order of every way's `values`")] = []
    worst_of: Annotated[str, _says("the way that `worst` is about: what a search does by default")] = ""
    worst: Annotated[list[HardQuery], _says("the ten queries with the lowest nDCG@10")] = []

    def __repr__(self) -> str:
        judged = f"{several(self.texts, 'text')}, {_judged(self.queries)}"
        return f"<evaluation of {self.data}: {judged}; {self.verdict or f'{self.best_member} alone'}>"


def measures_of(names: Sequence[str], deepest: int | None) -> tuple[str, ...]:
    """Read measures as ir-measures or trec_eval name them, of lists that are `deepest` deep (None: as deep as they
    are). Raises UsageError for one that is not among `KINDS`, or needs longer lists, and UnavailableError without
    ir-measures."""
    library, found = _library(), list[str]()
    for name in (each for given in names for each in given.split() or [given]):
        try:
            measure = library.parse_trec_measure(name)[0] if _TREC.match(name) else library.parse_measure(name)
            measure.validate_params()
        except (ValueError, NameError, AssertionError):
            measure = None
        cutoff = measure and measure.params.get("cutoff")
        if not measure or measure.NAME not in KINDS or measure.params.keys() - {"cutoff", "rel"} or cutoff == 0:
            few = "nDCG@10, P@5, R@100, AP, RR or Judged@10"
            raise UsageError(f"--measures: {name!r:.60} is not a measure that is known here: use {few}")
        if deepest and cutoff and cutoff > deepest:
            raise UsageError(f"--measures: {name!r:.60} is of longer lists than are made: use {deepest} at most")
        found.append(str(measure))
    return tuple(dict.fromkeys(found))


def looking_deeper(measures: Sequence[str], depth: int) -> list[str]:
    """Name the measures, as `measures_of` has them, that look at more than the first `depth` hits."""
    parsed = {name: _library().parse_measure(name).params.get("cutoff") for name in measures}
    return [name for name, cutoff in parsed.items() if cutoff is None or cutoff > depth]


def measured(
    lists: Sequence[Found],
    grades: Sequence[Mapping[str, int]],
    measures: Sequence[str] = MEASURES,
    deepest: int | None = DEEPEST,
) -> dict[str, Values]:
    """Measure ranked lists [queries], `deepest` hits of each (None: all), against the grades of their queries; float64
    [queries] by name of `measures`.

    The order of a list counts and not its scores: of equal ones trec_eval would take another first. Raises
    UnavailableError without ir-measures.
    """
    library = _library()
    names = [str(at) for at in range(len(lists))]
    run = {
        name: {text: float(-place) for place, text in enumerate(islice(found, deepest))}
        for name, found in zip(names, lists, strict=True)
        if found
    }
    judged: Grades = dict(zip(names, grades, strict=True))
    values = {measure: np.zeros(len(lists)) for measure in measures}
    if run:
        for each in library.iter_calc([library.parse_measure(name) for name in values], judged, run):
            values[str(each.measure)][int(each.query_id)] = each.value
    return values


def _library() -> Any:
    try:
        import ir_measures
    except ModuleNotFoundError:
        raise UnavailableError("ir-measures is not installed: install it with pip install 'interlock[eval]'") from None
    return ir_measures


def differences(*sets: Sequence[Values]) -> list[Interval]:
    """Say of each paired difference, an array [queries] in each of one or more sets, how large the mean of the sets'
    means is and where it may lie, from -1 to 1, by Student's t with the degrees of freedom of Welch and Satterthwaite:
    with few queries the quantiles of resamples cover too little (bench/intervals.py). Significant are those that Holm's
    procedure leaves of all of them, of `FEWEST` queries or more, and `LEAST` of each set."""
    from scipy.special import stdtr, stdtrit

    if not all(sets):
        return []
    wholes = [np.stack(pairs) for pairs in sets]
    counts = np.array([[whole.shape[1]] for whole in wholes])
    means = np.mean([whole.mean(axis=1) for whole in wholes], axis=0)
    if counts.min() < 2:
        return [Interval(mean=mean, low=-1.0, high=1.0, significant=False) for mean in means.tolist()]
    parts = np.array([whole.std(axis=1, ddof=1) for whole in wholes]) / np.sqrt(counts)  # [sets, pairs]
    together = np.sqrt((parts**2).sum(axis=0))
    shares, free = np.divide(parts, together, out=np.ones_like(parts), where=together > 0), counts - 1
    freedom = free.sum() / (shares**4 * free.sum() / free).sum(axis=0)  # of one set exactly what is free in it
    errors = together / len(sets)
    sizes = np.divide(np.abs(means), errors, out=np.where(means == 0, 0.0, np.inf), where=errors > 0)
    chances, wide = 2 * stdtr(freedom, -sizes), stdtrit(freedom, (1 + CONFIDENCE) / 2) * errors
    order, adjusted = np.argsort(chances), np.ones(len(means))
    adjusted[order] = np.minimum(np.maximum.accumulate(chances[order] * np.arange(len(order), 0, -1)), 1)
    told = (adjusted <= 1 - CONFIDENCE) & (counts.sum() >= FEWEST) & (counts.min() >= LEAST)
    every = zip(means, np.maximum(means - wide, -1), np.minimum(means + wide, 1), adjusted, strict=True)
    return [
        Interval(mean=float(mean), low=float(low), high=float(high), significant=sure, adjusted_p=float(chance))
        for (mean, low, high, chance), sure in zip(every, told.tolist(), strict=True)
    ]


def bounds(values: Mapping[str, Values]) -> Bounds:
    """Say from where to where the mean of each measure may lie, as `differences` does of what it is above 0."""
    found = zip(values, differences([*values.values()]), strict=True)
    return {measure: (max(each.low, 0.0), each.high) for measure, each in found}


def smallest_told(queries: int, spread: float = SPREAD, pairs: int = 1) -> float:
    """Return the difference in nDCG@10 that so many judged queries tell from chance `POWER` of the time, as the largest
    of `pairs` by Holm's procedure; 1 for fewer than `FEWEST`."""
    from scipy.special import stdtrit

    if queries < FEWEST:
        return 1.0
    both = stdtrit(queries - 1, 1 - (1 - CONFIDENCE) / 2 / pairs) + stdtrit(queries - 1, POWER)
    return float(both * spread / np.sqrt(queries))


def queries_to_tell(difference: float, spread: float = SPREAD, pairs: int = 1) -> int | None:
    """Return how many judged queries tell such a difference in nDCG@10 from chance `POWER` of the time, as
    `smallest_told` does; None where `MOST` are too few."""
    enough = (many for many in range(FEWEST, MOST + 1) if smallest_told(many, spread, pairs) <= abs(difference))
    return next(enough, None)


def dumps(found: Struct) -> bytes:
    """Write an evaluation or a comparison as JSON, with a line end."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def verdict(name: str, best: str, gains: Mapping[str, Interval], queries: int) -> str:
    """Say in one sentence what the intervals of `name` minus each member alone, over so many queries, carry; `best` is
    the member that found most on the training queries, and need not be the best."""

    def lies(member: str) -> str:
        found = gains[member]
        return f"the difference in {MAIN} from {member} lies between {signed(found.low)} and {signed(found.high)}"

    judged = _judged(queries)
    closest = min(gains, key=lambda member: gains[member].low)
    better = min(gains, key=lambda member: gains[member].high)
    if queries >= FEWEST and gains[closest].low > 0:  # more than all: none of them is one of many that were tried
        return f"{name} finds more than each of its members alone: {lies(closest)} (95 %, {judged})"
    if gains[better].significant and gains[better].high < 0:
        return f"{name} finds less than its member {better} alone, which will do: {lies(better)} (95 %, {judged})"
    if queries >= FEW and max(-gains[best].low, gains[best].high) <= ALIKE:
        return f"{name} and its member {best} alone find the same: {lies(best)} (95 %, {judged})"
    return f"cannot tell with {judged} whether {name} finds more than each of its members alone: {lies(closest)}"


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
    few = f"only {_judged(queries)}: intervals are wide, and what has no * here may have one with more: judge {FEW}"
    return [few] if queries < FEW else []


def reach(queries: int, spread: float = 0.0, measure: str = MAIN, pairs: int = 0) -> str:
    """Say how small a difference so many judged queries tell from chance beside the other `pairs` (0: it is not known
    how many), by the standard deviation that it has over them (0: it is not known yet)."""
    if queries < FEWEST:
        return f"{_judged(queries)} tell no difference from chance: judge {FEWEST} or more"
    least, among, wide = (
        _figure(each)
        for each in (
            smallest_told(queries, spread or SPREAD, pairs or 1),
            smallest_told(queries, spread or SPREAD, BESIDE),
            spread or SPREAD,
        )
    )
    beside = f" beside {several(pairs - 1, 'other')}" * (pairs > 1) if pairs else f", {among} as one of {BESIDE}"
    known = wide if spread else f"{wide} (ways that are alike have about half of it, and tell half the difference)"
    told = f"{_judged(queries)} tell a difference of {least} in {measure} from chance 8 times in 10{beside}"
    return f"{told}, where its standard deviation over them is {known}"


def signed(value: float) -> str:
    """Write a difference in three digits, with its sign: +.012; -.000 for a small one, 0 for none."""
    return f"{value:+.3f}".replace("0.", ".", 1) if abs(value) > 1e-9 else "0"


def _figure(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)


def _judged(queries: int) -> str:
    return several(queries, "judged query", "judged queries")
