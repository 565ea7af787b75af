"""Differences over several judged sets together: the sets are strata, each of which counts alike.

What is told holds for these sets, of which other queries might have been judged, and says nothing of other sets.
"""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from interlock.engine.errors import UsageError
from interlock.engine.evaluation.comparing import ComparedRun, PairedDifference, RunComparison
from interlock.engine.evaluation.report import MAIN, Evaluation, Interval, MeasuredWay, Values, differences
from interlock.engine.record import atomic


class PooledDifference(Struct, frozen=True, kw_only=True):
    """A run, or a way to search, minus another one over all sets."""

    measure: str
    run: str
    against: str
    difference: Interval
    sets: Annotated[list[float], Meta(description="the mean over the queries of each set")]


class PooledComparison(Struct, frozen=True, kw_only=True):
    """What evaluations or comparisons of several sets say together."""

    schema_version: Literal["1"] = "1"
    sets: Annotated[dict[str, int], Meta(description="judged queries of each set, by the name of its file")]
    differences: list[PooledDifference]
    notes: list[str]


class PooledEvaluation(PooledComparison, frozen=True, kw_only=True):
    """What a roster finds in several sets, and what they say together."""

    evaluations: list[Evaluation]


class _Told(Struct, frozen=True):
    """What is read of the JSON of an evaluation or a comparison."""

    query_ids: list[str]
    ways: list[MeasuredWay] = []
    runs: list[ComparedRun] = []
    differences: list[PairedDifference] = []

    def pairs(self) -> list[tuple[str, str, str]]:
        ways = [(next(iter(way.values), MAIN), way.name, way.against) for way in self.ways if way.against]
        return ways or [(each.measure, each.run, each.against) for each in self.differences]

    def values(self) -> dict[tuple[str, str], Values]:
        every: list[MeasuredWay | ComparedRun] = [*self.ways, *self.runs]
        return {(measure, one.name): np.array(each) for one in every for measure, each in one.values.items()}


def values_of(found: Evaluation | RunComparison | PooledEvaluation) -> str:
    """Write the value of each query as lines with tabs between under a line of heads; of several sets also which."""
    pooled, file = isinstance(found, PooledEvaluation), StringIO()
    sets = zip(found.sets, found.evaluations, strict=True) if isinstance(found, PooledEvaluation) else [("", found)]
    lines, own = csv.writer(file, delimiter="\t", lineterminator="\n"), slice(4 + pooled)
    lines.writerow(["run", "measure", "query", "value", "set"][own])
    lines.writerows(
        [one.name, measure, query, value, name][own]
        for name, each in sets
        for one in (each.ways if isinstance(each, Evaluation) else each.runs)
        for measure, values in one.values.items()
        for query, value in zip(each.query_ids, values, strict=True)
    )
    return file.getvalue()


def pool_files(files: Sequence[Path]) -> PooledComparison:
    """Pool what `eval --json` or `compare --json` wrote of several sets: each pair that the first file compares and
    all others have. Raises UsageError for files that cannot be pooled."""
    if len(files) < 2:
        raise UsageError(f"compare: {files[0]} is one set: name two or more, or TREC runs with --qrels")
    told = [_read(file) for file in files]
    for file, each in zip(files, told, strict=True):
        if told.count(each) > 1:
            raise UsageError(f"compare: {file} says what another file says: name each set once")
    return _pooled(dict(zip(map(str, files), told, strict=True)))


def pool_evaluations(found: Mapping[str, Evaluation]) -> PooledEvaluation:
    """Pool what one roster finds in several sets, by name, two judged queries or more of each."""
    together = _pooled({name: _Told(each.query_ids, each.ways) for name, each in found.items()})
    return PooledEvaluation(evaluations=[*found.values()], **msgspec.structs.asdict(together))


def _pooled(sets: Mapping[str, _Told]) -> PooledComparison:
    told = [*sets.values()]
    known, pairs = [each.values() for each in told], told[0].pairs()
    there = [pair for pair in pairs if all({(pair[0], name) for name in pair[1:]} <= each.keys() for each in known)]
    if not there:
        raise UsageError("compare: the files have no pair in common: name sets that were judged in the same ways")
    apart = [[each[how, run] - each[how, against] for each in known] for how, run, against in there]
    together = differences(*zip(*apart, strict=True))
    left = [
        f"{pair[0]} of {pair[1]} against {pair[2]} is left out: not all sets have both"
        for pair in pairs
        if pair not in there
    ]
    return PooledComparison(
        sets={name: len(each.query_ids) for name, each in sets.items()},
        differences=[
            PooledDifference(
                measure=how, run=run, against=against, difference=each, sets=[float(own.mean()) for own in sets]
            )
            for (how, run, against), each, sets in zip(there, together, apart, strict=True)
        ],
        notes=left,
    )


def _read(file: Path) -> _Told:
    try:
        told = msgspec.json.decode(atomic.content(file), type=_Told)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"compare: {file} is not what --json of eval or compare writes ({error}): name one") from None
    if len(told.query_ids) < 2 or any(len(each) != len(told.query_ids) for each in told.values().values()):
        raise UsageError(
            f"compare: {file} has fewer than two judged queries, or not the values of all: drop it, or judge it again"
        )
    return told
