"""Which defaults of a search hold on collections that had no part in choosing them, and what a cosine tells.

The share of BM25, the weights of the models, and half-centring (half of the collection's mean taken from texts and
queries of a model) are tried together on judged collections. Each collection in turn is left out: the rule picks by the
others, and the one that is left out reports. Then: how often the best threshold of the first hit's cosine errs in
telling queries that the collection answers from those that it does not.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import judged
import machine
import numpy as np
from numpy.typing import NDArray

from interlock.console.main import ENVIRONMENT
from interlock.engine.evaluation.encoding import TextEncoder, bm25_side, sides_of
from interlock.engine.evaluation.nearest import Postings, named
from interlock.engine.evaluation.report import differences
from interlock.engine.evaluation.weighing import DenseSide, parted
from interlock.engine.flows.evaluate import EvaluationRequest, subject_of
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.registry import usual_weights
from interlock.engine.search.combine import DEPTH, Hybrid, combined, shares_of
from interlock.engine.settings import load
from interlock.engine.vectors import SPARSE_SHARE

SOURCES = (
    "engine/search/combine.py",
    "engine/vectors/__init__.py",
    "engine/vectors/fusion.py",
    "engine/vectors/bm25.py",
    "engine/models/registry.py",
    "engine/evaluation/nearest.py",
)
ROSTER = "all-minilm-l6,all-mpnet-base-v2"
QUESTIONS = Path(__file__).parent / "questions"
Floats = NDArray[np.float64]


class Choice(NamedTuple):
    """What is tried: the weight of the first of two models, whether vectors are half-centred, and BM25's share."""

    first: float
    centred: bool
    share: float

    @property
    def told(self) -> str:
        weights = "equal" if self.first == 0.5 else f"{self.first:g}/{1 - self.first:g}"
        return f"{weights}{', half-centred' if self.centred else ''}, {self.share:g}"


FIRST = usual_weights(ROSTER.split(","))[0]
"""What the first of the two models counts where nobody gives a weight."""
WEIGHTS, SHARES = (0.5, 0.4, 0.3, 0.2), (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
BEFORE, DENSE = Choice(0.5, False, 0.2), Choice(0.5, False, 0.0)
CHOICES = [Choice(*each) for each in product(WEIGHTS, (False, True), SHARES)]


class Collection(NamedTuple):
    """A judged collection: the ids of its texts, what each model gives of texts and queries, and by query BM25's hits
    and the grades."""

    name: str
    ids: Sequence[str]
    sides: Sequence[DenseSide]
    words: Sequence[Mapping[str, float]]
    grades: Sequence[Mapping[str, int]]


def collected(request: EvaluationRequest) -> Collection:
    """Encode a collection, or read what was kept of it."""
    settings = load({"offline": "yes"})
    subject = subject_of(settings, request)
    parts = parted(subject.judged, None, 0)
    texts, queries = [*subject.judged.texts.values()], [subject.judged.queries[each] for each in parts.queries]
    encoder = TextEncoder(Lessor([CpuDevice()], *settings.settings.limits), lambda *_: None)
    sides, _ = sides_of(encoder, subject.models, [1.0, 1.0], texts, queries, subject.delivered)
    words, ids = bm25_side(texts, queries, "english"), [*subject.judged.texts]
    hits = [named(ids, *each) for each in Postings(words.documents).nearest(words.queries, DEPTH)]
    name = "the demo" if subject.delivered else subject.name
    return Collection(name, ids, sides, hits, [*subject.judged.splits["test"].values()])


def cosines(texts: NDArray[np.float32], queries: NDArray[np.float32], *, centred: bool) -> Floats:
    """The cosines [q, n] of unit vectors, half of the texts' mean taken from both where they are centred."""
    both = [texts.astype(np.float64), queries.astype(np.float64)]
    if centred:
        both = [each - both[0].mean(axis=0) / 2 for each in both]
        both = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in both]
    cosine: Floats = both[1] @ both[0].T
    return cosine


def fused(one: Collection, first: float, *, centred: bool, queries: Sequence[DenseSide] | None = None) -> Floats:
    pairs = zip((first, 1 - first), one.sides, queries or one.sides, strict=True)
    return np.sum([part * cosines(own.documents, asks.queries, centred=centred) for part, own, asks in pairs], axis=0)


def hits(one: Collection, scores: Floats) -> Iterator[dict[str, float]]:
    for row in scores:
        best = np.argsort(-row, kind="stable")[:DEPTH]
        yield {one.ids[at]: float(row[at]) for at in best}


def found(one: Collection) -> dict[Choice, Floats]:
    """nDCG@10 of every query by every choice."""
    values = {}
    for first, centred in product(WEIGHTS, (False, True)):
        dense = [*hits(one, fused(one, first, centred=centred))]
        for share in SHARES:
            counts = shares_of(["dense"], ["bm25"], share)
            each = zip(dense, one.words, one.grades, strict=True)
            values[Choice(first, centred, share)] = np.array(
                [judged.ndcg([*ordered(own, words, counts, share)], grades) for own, words, grades in each]
            )
    return values


def ordered(dense: Mapping[str, float], words: Mapping[str, float], counts: Mapping[str, float], share: float) -> Any:
    if not share:
        return dense
    floors = {"bm25": 0.0} if len(words) < DEPTH else {}
    return combined(Hybrid.WEIGHTED, {"dense": dense, "bm25": words}, counts, floors)


def best(values: Sequence[Mapping[Choice, Floats]]) -> Choice:
    """The rule: of the choices that are on none of the collections significantly below the dense search, that with the
    highest mean of the collections' nDCG@10, each collection counting alike."""
    safe = [choice for choice in CHOICES if all(against(each, choice, DENSE)["high"] >= 0 for each in values)]
    return max(safe, key=lambda choice: np.mean([each[choice].mean() for each in values]))


def against(values: Mapping[Choice, Floats], choice: Choice, other: Choice) -> dict[str, Any]:
    """What a choice finds more than another: mean, and its interval."""
    (found,) = differences([values[choice] - values[other]])
    return {"mean": found.mean, "low": found.low, "high": found.high}


def told(name: str, values: Mapping[Choice, Floats], choice: Choice) -> dict[str, Any]:
    """What a choice finds on a collection, against the default before and against the dense search."""
    differ = {"before": against(values, choice, BEFORE), "dense": against(values, choice, DENSE)}
    return {"collection": name, "choice": choice.told, "nDCG@10": float(values[choice].mean()), **differ}


def error(yes: Floats, no: Floats, threshold: float) -> float:
    """How often a threshold errs, where half of the queries can be answered."""
    return float(((yes < threshold).mean() + (no >= threshold).mean()) / 2)


def threshold_of(yes: Floats, no: Floats) -> float:
    return float(min(np.concatenate([yes, no]), key=lambda each: error(yes, no, each)))


def unanswered(every: Sequence[Collection]) -> list[dict[str, Any]]:
    """How often a cosine of the first hit errs: with queries of other collections as those without an answer, and with
    a collection's own from which all that answers them is taken; by a collection's own best threshold, and by that of
    the others."""
    firsts: list[dict[str, tuple[Floats, Floats]]] = []
    for one in every:
        scores, places = fused(one, FIRST, centred=False), {id: at for at, id in enumerate(one.ids)}
        foreign = [fused(one, FIRST, centred=False, queries=other.sides).max(axis=1) for other in every if other != one]
        bare = scores.copy()
        for row, grades in zip(bare, one.grades, strict=True):
            row[[places[id] for id, grade in grades.items() if grade > 0 and id in places]] = -1
        yes = scores.max(axis=1)
        firsts.append({"others": (yes, np.concatenate(foreign)), "own": (yes, bare.max(axis=1))})
    made = []
    for at, one in enumerate(every):
        row: dict[str, Any] = {"collection": one.name}
        for kind, (yes, no) in firsts[at].items():
            rest = [each[kind] for other, each in enumerate(firsts) if other != at]
            elsewhere = threshold_of(*(np.concatenate(each) for each in zip(*rest, strict=True)))
            row[kind] = {"best": error(yes, no, threshold_of(yes, no)), "elsewhere": error(yes, no, elsewhere)}
        made.append(row)
    return made


def measure(options: argparse.Namespace) -> dict[str, Any]:
    requests = [EvaluationRequest(directory) for directory in options.collections]
    if options.demo:
        asked = {"queries": QUESTIONS / "queries.jsonl", "qrels": QUESTIONS / "qrels.tsv"}
        requests.append(EvaluationRequest(options.demo, collection="Python-Stdlib", **asked))
    every = [collected(request) for request in requests]
    values, now = [found(one) for one in every], Choice(FIRST, False, SPARSE_SHARE)
    folds = []
    for at, one in enumerate(every):
        chosen = best([each for other, each in enumerate(values) if other != at])
        folds.append(told(one.name, values[at], chosen))
    rows = [told(one.name, each, now) for one, each in zip(every, values, strict=True)]
    return {
        "machine": machine.describe(),
        "queries": {one.name: len(one.grades) for one in every},
        "folds": folds,
        "default": rows,
        "tried": {choice.told: [float(each[choice].mean()) for each in values] for choice in CHOICES},
        "unanswered": unanswered(every),
        "goals": {"collections on which the default is below the dense search": machine.goal(
            sum(row["dense"]["high"] < 0 for row in rows), 0, at_most=True
        )},
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    machine.goals(result["goals"])
    for name in ("folds", "default"):
        heads = ["collection", "choice", "nDCG@10", "against .2 at equal weights", "against dense"]
        rows = [[each["collection"], each["choice"], f"{each['nDCG@10']:.3f}", each["before"], each["dense"]]
                for each in result[name]]  # fmt: skip
        machine.table(heads, rows)
    for each in result["unanswered"]:
        print(each)


def main() -> None:
    os.environ.update(ENVIRONMENT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="directories of judged collections")
    parser.add_argument("--demo", type=Path, metavar="RUN", help="a run of the demo, asked bench/questions")
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
