"""A way to search as it is judged: a name, what it is compared with, and what it found, as a run of TREC too."""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from interlock.engine.errors import UsageError
from interlock.engine.evaluation.judgements import Found, Lists
from interlock.engine.evaluation.report import DEEPEST, Group
from interlock.engine.evaluation.weighing import DenseSide, SparseSide
from interlock.engine.record import atomic
from interlock.engine.search.hits import trec_lines

RUNS = ".run"
"""How the names of runs of TREC end that are written."""


@dataclass(frozen=True)
class Way:
    """A way to search: its name and that of the way that it is compared with, and what it found for each tested query.

    `ms` are CPU milliseconds a query, None if not known; `bytes` those of a text in what is searched.
    """

    group: Group
    name: str
    against: str
    ms: float | None = None
    bytes: float = 0.0
    found: Lists = ()


@dataclass(frozen=True)
class Rescored:
    """New scores of each query's candidates by id, what a query took in CPU milliseconds, and the bytes of a text that
    are kept for it."""

    scores: Sequence[Mapping[str, float]]
    ms: float
    bytes: float = 0.0


@dataclass(frozen=True)
class Reranking:
    """A reranker that is to be judged: how it scores candidates anew, and how much that counts."""

    name: str
    rescore: Callable[[Lists], Rescored]
    share: float
    depth: int


def ranked(way: Way, rank: Callable[[], Lists]) -> Way:
    """Rank the texts for each query, which takes time beside what the query took before."""
    began = time.process_time()
    found = rank()
    took = 1000 * (time.process_time() - began) / max(1, len(found))
    return replace(way, found=found, ms=None if way.ms is None else way.ms + took)


def each_once(rescore: Callable[[Lists], Rescored]) -> Callable[[Lists], Rescored]:
    """Score a pair of a query and a text once, whatever ways found it; a query takes the time of its pairs."""
    known, made, pairs, took = dict[int, dict[str, float]](), Rescored((), 0.0), 0, 0.0

    def scored(first: Lists) -> Rescored:
        nonlocal made, pairs, took
        new = [{id: hits[id] for id in hits if id not in known.get(at, {})} for at, hits in enumerate(first)]
        if count := sum(map(len, new)):
            made = rescore(new)
            pairs, took = pairs + count, took + made.ms * len(first)
            for at, scores in enumerate(made.scores):
                known.setdefault(at, {}).update(scores)
        own = [{id: known[at][id] for id in hits if id in known[at]} for at, hits in enumerate(first)]
        return Rescored(own, took / max(1, pairs) * sum(map(len, first)) / max(1, len(first)), made.bytes)

    return scored


def placed(ids: Sequence[str]) -> Found:
    """Make a list of texts in their order."""
    return {id: float(-place) for place, id in enumerate(ids)}


def encoding(sides: Sequence[DenseSide | SparseSide]) -> float | None:
    """Milliseconds in which all of these encode a query."""
    return total(side.cost.query_ms for side in sides)


def total(each: Iterable[float | None]) -> float | None:
    """The sum of figures; None where one is not known."""
    found = [*each]
    return None if None in found else sum(one for one in found if one is not None)


def check_run_out(directory: Path, ids: Iterable[str]) -> None:
    """Raise UsageError where runs cannot be written into a directory, or not of these ids."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"--run-out: {directory} is not a directory: name another")
    if not directory.absolute().parent.is_dir():
        raise UsageError(f"--run-out: {directory.parent} does not exist: create it, or name another directory")
    if strange := [each.name for each in directory.glob("*") if each.suffix != RUNS]:
        raise UsageError(f"--run-out: {directory} has {strange[0]:.100} beside {RUNS} files: name another")
    if blank := next((id for id in ids if len(id.split()) != 1), None):
        raise UsageError(f"--run-out: trec_eval takes no ids with blanks, as in {blank!r:.60}: drop --run-out")
    there = directory if directory.exists() else directory.absolute().parent
    if not os.access(there, os.W_OK):
        raise UsageError(f"--run-out: {there} cannot be written to: name another directory")


def write_runs(directory: Path, ways: Mapping[str, Lists], queries: Sequence[str]) -> None:
    """Write what each way by its name found, as far as it is measured, as a run of TREC: trec_eval says the same of
    it."""
    with atomic.explaining(directory):
        directory.mkdir(exist_ok=True)
    for name, found in ways.items():
        tag = re.sub(r"[^\w.]+", "-", name)
        lists = ((query, dict(islice(hits.items(), DEEPEST))) for query, hits in zip(queries, found, strict=True))
        text = "".join(line for query, hits in lists for line in trec_lines(query, hits, tag))
        atomic.write_bytes(directory / f"{tag}{RUNS}", text.encode())
