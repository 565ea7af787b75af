"""Every way to search that a roster allows, measured on judged queries: models, fusions, storage, hybrid, reranking.

In: the vectors of texts and queries. Out: one line a way with its measures, its difference from what it would replace
and what it costs. Lists are made by what a search uses too: `fusion.fuse`, `combine.combined`, `blend.reranked`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from interlock.engine.errors import UsageError
from interlock.engine.evaluation.material import DenseSide, Material, SparseSide
from interlock.engine.evaluation.measures import MAIN, Difference, Found, Values, differences, measured
from interlock.engine.evaluation.nearest import Postings, named, nearest
from interlock.engine.evaluation.storing import (
    SIZES,
    SMALLEST,
    StoredForm,
    in_bits,
    in_bytes,
    in_turned_bits,
    projected,
    whole,
)
from interlock.engine.evaluation.weighing import Share, best_member, fused
from interlock.engine.search.blend import reranked
from interlock.engine.search.combine import DEPTH, SPARSE_SHARE, Hybrid, combined, shares_of
from interlock.engine.vectors.fusion import Fusion, Vectors, truncate
from interlock.engine.vectors.precision import RESCORED
from interlock.engine.vectors.projection import MOST_WIDTH

SHARES = (0.1, SPARSE_SHARE, 0.3)
PAIRS = 4000
"""Random pairs of texts whose cosines say how far a model spreads them."""
TERM_BYTES = 8
WAYS = {*Fusion, "RRF", "int8", "binary"}
"""Names of ways that a model's key could be."""
Lists = Sequence[Found]


@dataclass(frozen=True)
class Way:
    """A way to search: what it found for each tested query, and what it is compared with."""

    group: str
    name: str
    found: Lists
    against: str = ""
    ms: float | None = None
    """CPU milliseconds a query; None if not known."""
    bytes: float = 0.0
    """Bytes a text takes of what is searched."""
    rescored_bytes: float = 0.0
    """Bytes it takes beside of what only the best hits are scored again by."""


@dataclass(frozen=True)
class JudgedWay:
    """A way with its measures, and its difference in nDCG@10 from the way that it would replace."""

    group: str
    name: str
    values: Mapping[str, float]
    against: str
    difference: Difference | None
    ms: float | None
    bytes: float
    rescored_bytes: float


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


class Judge:
    """Measures ways to search one collection; `fusion` is the one that is delivered."""

    def __init__(self, material: Material, fusion: Fusion, seed: int) -> None:
        """Raises UsageError for a model that has the name of a way."""
        if named := {side.model for side in material.dense} & WAYS:
            raise UsageError(
                f"model {min(named)!r} has the name of a way to search: give it another one in a [models.*] table"
            )
        self.material, self.seed = material, seed
        self.fusion = Fusion.CONCAT if fusion is Fusion.NAMED else fusion  # they rank alike
        self._grades = [material.grades[at] for at in material.tested]
        self._alone = {side.model: self._model(side) for side in material.dense}
        self.best = best_member(material)

    # Ways

    def models(self) -> list[Way]:
        """Each model alone, and cut where it was trained for that."""
        ways = [replace(way, against="" if name == self.best else self.best) for name, way in self._alone.items()]
        for side in self.material.dense:
            for size in (size for size in side.sizes if size < side.documents.shape[1]):
                form = whole(truncate(side.documents, size), truncate(side.queries, size))
                ways.append(self._way("models", f"{side.model}, {size}", form, side.model, self._encoding([side])))
        return ways

    def fusions(self) -> list[Way]:
        """Each fusion of all models, raw and calibrated, against the best member alone."""
        sides = self.material.dense
        if len(sides) < 2:
            return []
        given = tuple(side.weight for side in sides)
        calibrated = self.calibrated(given)
        other = Fusion.MEAN if self.fusion is Fusion.CONCAT else Fusion.CONCAT
        ways = [
            replace(self.base, against=self.best),
            self._fused(f"{Fusion.CONCAT}, calibrated", Fusion.CONCAT, calibrated),
            self._fused(str(other), other, given),
            self._combined("RRF", Hybrid.RRF, self._alone, {}, "fusions", self.best),
        ]
        if len(set(given)) > 1:
            ways.insert(1, self._fused(f"{Fusion.CONCAT}, equal weights", Fusion.CONCAT, (1.0,) * len(sides)))
        return ways

    @cached_property
    def base(self) -> Way:
        """The delivered dense search: the fusion by the roster's weights, or the only model."""
        sides = self.material.dense
        if len(sides) == 1:
            return self._alone[sides[0].model]
        return self._fused(str(self.fusion), self.fusion, tuple(side.weight for side in sides))

    def storage(self) -> list[Way]:
        """Smaller forms of what is delivered, against all of its numbers in float32."""
        base, encoding = self.base, self._encoding(self.material.dense)
        documents, queries = fused(self.material.dense, self.fusion, [side.weight for side in self.material.dense])
        width = documents.shape[1]
        sizes = [size for size in SIZES if size < width <= MOST_WIDTH and size <= len(documents)]  # as a run has it
        forms = {f"PCA {form.bytes // 4}": form for form in projected(documents, queries, sizes)}
        forms["int8"] = in_bytes(whole(documents, queries))
        if smallest := forms.get(f"PCA {SMALLEST}"):
            forms[f"PCA {SMALLEST}, int8"] = in_bytes(smallest)
        forms["binary"] = in_bits(documents, queries)
        ways = {name: self._way("storage", name, form, base.name, encoding) for name, form in forms.items()}
        rescored = [self._rescored(f"binary, {RESCORED} rescored", ways["binary"], forms["int8"])]
        if smallest:
            few = self._way("storage", "", in_turned_bits(smallest), base.name, encoding)
            rescored.append(self._rescored(f"PCA {SMALLEST}, bits rescored", few, forms[f"PCA {SMALLEST}, int8"]))
        return [*ways.values(), *rescored]

    @cached_property
    def sparse(self) -> list[Way]:
        """Each sparse list alone."""
        return [self._terms(side) for side in self.material.sparse]

    def hybrids(self) -> list[Way]:
        """The dense search with sparse lists beside it: each, and all of them, by every rule."""
        lists = {way.name: way for way in self.sparse}
        every = [(name,) for name in lists] + ([tuple(lists)] if len(lists) > 1 else [])
        return [way for names in every for way in self._hybrids({name: lists[name] for name in names})]

    @cached_property
    def hybrid(self) -> Way | None:
        """What a hybrid search gives where nobody says otherwise: every sparse list, sharing the default share."""
        lists = {way.name: way for way in self.sparse}
        name = f"{' + '.join(lists)}, {SPARSE_SHARE:.1g}"
        return next((way for way in self._hybrids(lists) if way.name == name), None) if lists else None

    def reranked(self, reranking: Reranking) -> list[Way]:
        """The dense and the hybrid search with a reranker behind them, each against itself without."""
        return [self._reranked(way, reranking) for way in (self.base, self.hybrid) if way]

    # What is said of them

    def lines(self, ways: Sequence[Way]) -> list[JudgedWay]:
        """Measure ways; those that others are compared with are among them, or are the delivered search."""
        others = [self.base, *self._alone.values(), *([self.hybrid] if self.hybrid else [])]
        named_ways = {way.name: way for way in [*others, *ways]}
        known = {name: measured(way.found, self._grades) for name, way in named_ways.items()}
        paired = {way.name: known[way.name][MAIN] - known[way.against][MAIN] for way in ways if way.against}
        said = dict(zip(paired, differences(list(paired.values()), self.seed), strict=True))
        return [
            JudgedWay(
                way.group,
                way.name,
                {measure: float(values.mean()) for measure, values in known[way.name].items()},
                way.against,
                said.get(way.name),
                way.ms,
                way.bytes,
                way.rescored_bytes,
            )
            for way in ways
        ]

    def calibrated(self, weights: Sequence[float]) -> Share:
        """Weights by which each model's cosines spread in the proportion of the given ones."""
        spreads = [self.spread(side.documents) for side in self.material.dense]
        return tuple(weight / max(spread, 1e-9) for weight, spread in zip(weights, spreads, strict=True))

    def spread(self, documents: Vectors) -> float:
        """The standard deviation of the cosines of random pairs of texts."""
        return float(pair_cosines(documents, self.seed).std())

    # How

    def _model(self, side: DenseSide) -> Way:
        return self._way("models", side.model, whole(side.documents, side.queries), "", self._encoding([side]))

    def _fused(self, name: str, fusion: Fusion, weights: Share) -> Way:
        form = whole(*fused(self.material.dense, fusion, weights))
        return self._way("fusions", name, form, self.best, self._encoding(self.material.dense))

    def _way(self, group: str, name: str, form: StoredForm, against: str, encoding: float | None) -> Way:
        queries, began = form.queries[self.material.tested], time.process_time()
        rows, scores = nearest(form.documents, queries, DEPTH)
        took = 1000 * (time.process_time() - began) / max(1, len(queries))
        found = [named(self.material.ids, *each) for each in zip(rows, scores, strict=True)]
        return Way(group, name, found, against, _plus(encoding, took), form.bytes)

    def _encoding(self, sides: Sequence[DenseSide | SparseSide]) -> float | None:
        """Milliseconds in which all of these encode a query."""
        each = [side.cost.query_ms for side in sides]
        return None if None in each else sum(one for one in each if one is not None)

    def _rescored(self, name: str, codes: Way, form: StoredForm) -> Way:
        """The first hits by binary codes in the order that another form gives them, then the others."""
        places, found = {id: at for at, id in enumerate(self.material.ids)}, []
        for at, hits in zip(self.material.tested, codes.found, strict=True):
            first, rest = list(hits)[:RESCORED], list(hits)[RESCORED:]
            scores = np.asarray(form.documents[[places[id] for id in first]], np.float32) @ form.queries[at]
            order = [first[best] for best in np.argsort(-scores, kind="stable")]
            found.append({id: float(-place) for place, id in enumerate([*order, *rest])})
        return replace(codes, name=name, found=found, rescored_bytes=form.bytes)

    def _terms(self, side: SparseSide) -> Way:
        postings = Postings(side.documents)
        queries, began = side.queries.taken(self.material.tested), time.process_time()
        hits = postings.nearest(queries, DEPTH)
        took = 1000 * (time.process_time() - began) / max(1, len(queries))
        found = [named(self.material.ids, *each) for each in hits]
        size = TERM_BYTES * len(side.documents.indices) / max(1, len(side.documents))
        return Way("sparse", side.name, found, self.base.name, _plus(self._encoding([side]), took), size)

    def _hybrids(self, lists: Mapping[str, Way]) -> Iterator[Way]:
        base = self.base
        name = " + ".join(lists)
        for share in SHARES:
            shares = shares_of([base.name], list(lists), share)
            yield self._combined(f"{name}, {share:.1g}", Hybrid.WEIGHTED, {base.name: base, **lists}, shares)
        shares = shares_of([base.name], list(lists), SPARSE_SHARE)
        yield self._combined(f"{name}, RRF", Hybrid.RRF, {base.name: base, **lists}, shares)
        yield self._combined(f"{name}, DBSF", Hybrid.DBSF, {base.name: base, **lists}, shares)

    def _combined(
        self,
        name: str,
        how: Hybrid,
        lists: Mapping[str, Way],
        shares: Mapping[str, float],
        group: str = "hybrid",
        against: str = "",
    ) -> Way:
        began, found = time.process_time(), []
        for at in range(len(self.material.tested)):
            own = {each: way.found[at] for each, way in lists.items()}
            floors = {each: 0.0 for each, way in lists.items() if way.group == "sparse" and len(own[each]) < DEPTH}
            found.append(combined(how, own, shares, floors))
        took = 1000 * (time.process_time() - began) / max(1, len(found))
        ms = None if any(way.ms is None for way in lists.values()) else sum(way.ms or 0.0 for way in lists.values())
        size = sum(way.bytes for way in lists.values())
        return Way(group, name, found, against or self.base.name, _plus(ms, took), size)

    def _reranked(self, way: Way, reranking: Reranking) -> Way:
        first = [dict(list(hits.items())[: reranking.depth]) for hits in way.found]
        rescored, found = reranking.rescore(first), []
        for hits, candidates, scores in zip(way.found, first, rescored.scores, strict=True):
            ids = list(candidates)
            lowest = min(scores.values(), default=0.0)
            second = [scores.get(id, lowest) for id in ids]
            order = [ids[each.before] for each in reranked(list(candidates.values()), second, reranking.share)]
            rest = list(hits)[reranking.depth :]
            found.append({id: float(-place) for place, id in enumerate([*order, *rest])})
        name = f"{reranking.name} after {way.name}"
        return Way("rerank", name, found, way.name, _plus(way.ms, rescored.ms), way.bytes + rescored.bytes)


def pair_cosines(documents: Vectors, seed: int) -> Values:
    """The cosines of `PAIRS` random pairs of different texts; the same pairs for every model of a corpus."""
    count, generator = len(documents), np.random.default_rng(seed)
    if count < 2:
        return np.zeros(1)
    one = generator.integers(0, count, PAIRS)
    other = (one + generator.integers(1, count, PAIRS)) % count
    cosines: Values = np.einsum("nd,nd->n", documents[one], documents[other], dtype=np.float64)
    return cosines


def _plus(ms: float | None, more: float) -> float | None:
    return None if ms is None else ms + more
