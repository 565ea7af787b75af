"""Ranked lists beside each other and beside what people judged: runs of TREC compared in pairs, the queries that are
answered worst, and lists of which the judgements know too little. Pure, but for `compare_files`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from interlock.engine.errors import UsageError
from interlock.engine.evaluation import report
from interlock.engine.evaluation.judgements import Found, Grades, Lists, read_grades, read_queries, read_run

TOP = 10
"""The first hits, of which some may not be judged; also how many queries are told of."""
APART = 0.1
"""How much less of them may be judged of one way than of another before a difference may be due to that."""
WRONG = 3
BEGINS = 160
"""Characters of a text that are told."""


class ComparedRun(Struct, frozen=True, kw_only=True):
    """A run of TREC against the judgements."""

    name: str
    measures: Annotated[dict[str, float], Meta(description="means over the judged queries")]
    values: Annotated[dict[str, list[float]], Meta(description="of each query, in the order of `query_ids`")]
    intervals: report.Bounds = {}
    unanswered: Annotated[int, Meta(description="judged queries without a hit, which count 0")]
    unjudged: Annotated[int, Meta(description="queries of the run that nobody judged, which do not count")]


class PairedDifference(Struct, frozen=True, kw_only=True):
    """A run minus another one, query by query."""

    measure: str
    run: str
    against: str
    difference: report.Interval
    wins: int
    ties: int
    losses: int


class ApartQuery(Struct, frozen=True, kw_only=True):
    """A query whose answers differ in the first measure more than those of others."""

    query: str
    text: str
    values: dict[str, float]


class RunComparison(Struct, frozen=True, kw_only=True):
    """Runs of TREC by one file of judgements, each against the first."""

    schema_version: Literal["1"] = "1"
    queries: int
    query_ids: list[str]
    runs: list[ComparedRun]
    differences: list[PairedDifference]
    apart: list[ApartQuery]
    notes: list[str]


def compared(
    runs: Mapping[str, Mapping[str, Found]],
    grades: Grades,
    measures: Sequence[str],
    texts: Mapping[str, str],
    notes: Sequence[str],
) -> RunComparison:
    """Measure runs by name on the judged queries, one without hits counting 0, and compare each with the first in every
    measure; `texts` are those of the queries that are known. Raises UsageError for a run that answers none of them."""
    ids, judged, (first, *others) = list(grades), list(grades.values()), list(runs)
    lists = {name: [run.get(query, {}) for query in ids] for name, run in runs.items()}
    if strange := [name for name, own in lists.items() if not any(own)]:
        raise UsageError(f"{strange[0]} answers no judged query: name judgements of its own queries with --qrels")
    values = {name: report.measured(own, judged, measures, None) for name, own in lists.items()}
    pairs = [(measure, name) for measure in measures for name in others]
    apart = [values[name][measure] - values[first][measure] for measure, name in pairs]
    whole = np.stack([values[name][measures[0]] for name in runs])
    spread = whole.max(axis=0) - whole.min(axis=0)
    return RunComparison(
        queries=len(ids),
        query_ids=ids,
        runs=[
            ComparedRun(
                name=name,
                measures={measure: float(each.mean()) for measure, each in values[name].items()},
                values={measure: each.round(6).tolist() for measure, each in values[name].items()},
                intervals=report.bounds(values[name]),
                unanswered=sum(not hits for hits in lists[name]),
                unjudged=len(run.keys() - grades.keys()),
            )
            for name, run in runs.items()
        ],
        differences=[
            PairedDifference(measure=measure, run=name, against=first, difference=told, **_outcomes(each))
            for (measure, name), told, each in zip(pairs, report.differences(apart), apart, strict=True)
        ],
        apart=[
            ApartQuery(
                query=ids[at], text=texts.get(ids[at], ""), values=dict(zip(runs, whole[:, at].tolist(), strict=True))
            )
            for at in np.argsort(-spread, kind="stable")[:TOP]
            if spread[at] > 0
        ],
        notes=[
            report.reach(len(ids), max(map(_spread, apart[: len(others)]), default=0.0), measures[0], len(pairs) or 1),
            *report.few_queries(len(ids)),
            *_depths(lists, measures),
            *judged_apart(lists, [(name, first) for name in others], judged),
            *notes,
        ],
    )


def compare_files(
    runs: Sequence[Path],
    qrels: Path,
    queries: Path | None,
    measures: Sequence[str],
    names: Sequence[str] = (),
    baseline: str | None = None,
) -> RunComparison:
    """Compare runs of TREC by what their files have, as `compared` does, under `names` or those of the files, with the
    one named `baseline` or the first; without measures by the usual ones, where no list has more than ten hits by those
    that look at ten. Raises UsageError for a file that cannot be used, UnavailableError without ir-measures."""
    wanted = report.measures_of(measures, None)
    texts = read_queries(queries) if queries else {}
    judged = read_grades(qrels, None, None)
    stems = [file.name.removesuffix(".gz").rpartition(".")[0] or file.name for file in runs]
    told = names or (stems if len({*stems}) == len(stems) else [str(file) for file in runs])
    if not told:
        raise UsageError("compare: no run is named: give one or more")
    if twice := [name for name in dict.fromkeys(told) if list(told).count(name) > 1]:
        raise UsageError(f"compare: {twice[0]} is named twice: name each run once")
    if baseline and baseline not in told:
        raise UsageError(f"--baseline: no run is named {baseline:.60}: name one of {', '.join(told):.300}")
    lists = {name: read_run(file) for name, file in zip(told, runs, strict=True)}
    lists = dict(sorted(lists.items(), key=lambda named: named[0] != baseline))
    short = all(len(hits) <= TOP for own in lists.values() for hits in own.values())
    deeper = report.looking_deeper(report.MEASURES, TOP) if short else []
    wanted = wanted or tuple(measure for measure in report.MEASURES if measure not in deeper)
    made = compared(lists, judged.grades, wanted, texts, judged.notes)
    hits = [(query, found) for each in lists.values() for query, found in each.items()]
    if not any(judged.grades.get(query, {}).keys() & found for query, found in hits):
        raise UsageError(f"compare: no run has a text that {qrels} judges: pass judgements of the same ids")
    return made


def _spread(apart: report.Values) -> float:
    return float(apart.std(ddof=1)) if len(apart) > 1 else 0.0


def _depths(lists: Mapping[str, Lists], measures: Sequence[str]) -> list[str]:
    """Warn of measures that look deeper than the lists of some run go, which another run's may."""
    depths = {name: max(map(len, own)) for name, own in lists.items()}
    short, long = (by(depths, key=lambda name: depths[name]) for by in (min, max))
    deeper = report.looking_deeper(measures, depths[short])
    if depths[short] == depths[long]:
        deeper = [name for name in deeper if "@" in name]  # the others are of all hits, of each alike
    if not deeper:
        return []
    beside = f", those of {long} after {depths[long]}" if depths[short] < depths[long] else ""
    return [f"the lists of {short} end after {depths[short]} hits{beside}: {', '.join(deeper)} find nothing beyond"]


def _outcomes(apart: report.Values) -> dict[str, int]:
    signs = np.sign(apart.round(9))  # what differs by less is the rounding of sums
    return {name: int((signs == sign).sum()) for name, sign in (("wins", 1), ("ties", 0), ("losses", -1))}


def judged_apart(
    found: Mapping[str, Lists], pairs: Sequence[tuple[str, str]], grades: Sequence[Mapping[str, int]]
) -> list[str]:
    """Warn of the pair of ways whose first hits are judged most unlike, if that is much; nothing where only answers
    were judged, of which a better way has more."""
    if not any(grade <= 0 for own in grades for grade in own.values()):
        return []
    shares = {name: _judged_share(lists, grades) for name, lists in found.items()}
    less, more = max(
        (sorted(pair, key=lambda name: shares[name]) for pair in pairs),
        key=lambda pair: shares[pair[1]] - shares[pair[0]],
        default=("", ""),
    )
    if not less or shares[more] - shares[less] < APART:
        return []
    return [
        f"of the first {TOP} hits {shares[less]:.0%} are judged of {less}, {shares[more]:.0%} of {more}: what nobody "
        f"judged counts as wrong, and part of their difference may be that (--measures Judged@{TOP})"
    ]


def _judged_share(lists: Lists, grades: Sequence[Mapping[str, int]]) -> float:
    firsts = [(list(hits)[:TOP], own) for hits, own in zip(lists, grades, strict=True) if hits]
    return float(np.mean([sum(id in own for id in ids) / len(ids) for ids, own in firsts] or [0.0]))


def hardest(
    lists: Lists,
    ids: Sequence[str],
    grades: Sequence[Mapping[str, int]],
    queries: Mapping[str, str],
    texts: Mapping[str, str],
) -> list[report.HardQuery]:
    """Name the queries with the lowest nDCG@10 of a way's lists, with the first hits of each that are no answers."""
    values = report.measured(lists, grades)[report.MAIN]
    return [
        report.HardQuery(
            query=ids[at],
            text=queries[ids[at]],
            value=float(values[at]),
            wrong=[
                report.WrongHit(id=id, rank=rank, grade=grades[at].get(id), text=texts[id][:BEGINS])
                for rank, id in enumerate(lists[at], 1)
                if grades[at].get(id, 0) <= 0
            ][:WRONG],
        )
        for at in np.argsort(values, kind="stable")[:TOP]
    ]
