"""Every way to search that a roster allows, measured on judged queries: models, fusions, storage, hybrid, reranking.

In: the vectors of texts and queries. Out: an `Evaluation`. A way is a name and what ranks the texts for each query; its
lists are made by what a search uses too: `fusion.fuse`, `combine.combined`, `blend.reranked`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from interlock.engine.errors import UsageError
from interlock.engine.evaluation.comparing import judged_apart
from interlock.engine.evaluation.judgements import Found, Lists
from interlock.engine.evaluation.nearest import (
    SIZES,
    SMALLEST,
    Postings,
    StoredForm,
    in_bytes,
    nearest,
    projected,
    whole,
)
from interlock.engine.evaluation.report import (
    MAIN,
    MEASURES,
    Evaluation,
    Group,
    Interval,
    MeasuredModel,
    MeasuredWay,
    Values,
    bill,
    bounds,
    differences,
    few_queries,
    measured,
    verdict,
)
from interlock.engine.evaluation.ways import Reranking, Way, encoding, placed, ranked, total
from interlock.engine.evaluation.weighing import DenseSide, Material, Share, SparseSide, best_member, chosen, fused
from interlock.engine.search.combine import DEPTH, Hybrid, combined, reranked, shares_of
from interlock.engine.vectors import SPARSE_SHARE
from interlock.engine.vectors.fusion import MOST_WIDTH, Fusion, truncate

SHARES = {0.1, 0.2, 0.25, 0.3}
TERM_BYTES = 8
WAYS = {*Fusion, "RRF", "int8"}
"""Names of ways that a model's key could be."""


class Judge:
    """Measures ways to search one collection; `fusion` is the one that is delivered, and `sparse_share` what its sparse
    lists count together where nobody says it."""

    def __init__(
        self,
        material: Material,
        fusion: Fusion,
        seed: int,
        measures: Sequence[str] = MEASURES,
        sparse_share: float = SPARSE_SHARE,
    ) -> None:
        """Raises UsageError for a model that has the name of a way."""
        if named := {side.name for side in material.dense} & WAYS:
            raise UsageError(
                f"model {min(named)!r} has the name of a way to search: give it another one in a [models.*] table"
            )
        self.material, self.seed, self.measures = material, seed, measures
        self.fusion = Fusion.CONCAT if fusion is Fusion.NAMED else fusion  # they rank alike
        self.best, self._share = best_member(material), sparse_share
        self._weights = tuple(side.weight for side in material.dense)
        self._alone = {side.name: self._model(side, side.documents.shape[1]) for side in material.dense}

    def ways(self) -> list[Way]:
        """Every way but those with a reranker."""
        return [*self.models(), *self.fusions(), *self.storage(), *self.sparse, *self.hybrids]

    def models(self) -> Iterator[Way]:
        """Each model alone, and cut where it was trained for that."""
        yield from self._alone.values()
        for side in self.material.dense:
            for size in (size for size in side.sizes if size < side.documents.shape[1]):
                yield self._model(side, size)

    def fusions(self) -> Iterator[Way]:
        """Each fusion of all models against the best member alone."""
        if len(self._alone) < 2:
            return
        yield self.base
        if len(set(self._weights)) > 1:
            yield self._fused(f"{Fusion.CONCAT}, equal weights", Fusion.CONCAT, (1.0,) * len(self._alone))
        other = Fusion.MEAN if self.fusion is Fusion.CONCAT else Fusion.CONCAT
        yield self._fused(str(other), other, self._weights)
        yield self._combined("fusions", "RRF", Hybrid.RRF, [*self._alone.values()], {}, self.best)

    @cached_property
    def base(self) -> Way:
        """The delivered dense search: the fusion by the roster's weights, or the only model."""
        if len(self._alone) == 1:
            return self._alone[self.best]
        return self._fused(str(self.fusion), self.fusion, self._weights)

    def storage(self) -> Iterator[Way]:
        """Smaller forms of what is delivered, against all of its numbers in float32."""
        documents, queries = fused(self.material.dense, self.fusion, self._weights)
        width = documents.shape[1]
        sizes = [size for size in SIZES if size < width <= MOST_WIDTH and size <= len(documents)]  # as a run has it
        forms = {f"PCA {form.bytes // 4}": form for form in projected(documents, queries, sizes)}
        forms["int8"] = in_bytes(whole(documents, queries))
        if smallest := forms.get(f"PCA {SMALLEST}"):
            forms[f"PCA {SMALLEST}, int8"] = in_bytes(smallest)
        yield from (self._stored("storage", name, form, self.base.name) for name, form in forms.items())

    @cached_property
    def sparse(self) -> list[Way]:
        """Each sparse list alone."""
        return [self._terms(side) for side in self.material.sparse]

    @cached_property
    def hybrids(self) -> list[Way]:
        """The dense search with sparse lists beside it: each, and all of them, by every rule."""
        ways = list[Way]()
        for lists in [*([way] for way in self.sparse), *([self.sparse] if len(self.sparse) > 1 else [])]:
            names, every = [way.name for way in lists], [self.base, *lists]
            rules = [(f"{share:g}", Hybrid.WEIGHTED, share) for share in sorted({*SHARES, self._share})]
            for said, how, share in [*rules, ("RRF", Hybrid.RRF, self._share), ("DBSF", Hybrid.DBSF, self._share)]:
                shares = shares_of([self.base.name], names, share)
                name = f"{' + '.join(names)}, {said}"
                ways.append(self._combined("hybrid", name, how, every, shares, self.base.name))
        return ways

    @cached_property
    def hybrid(self) -> Way | None:
        """What a hybrid search gives where nobody says otherwise: every sparse list, sharing the default share."""
        name = f"{' + '.join(way.name for way in self.sparse)}, {self._share:g}"
        return next((way for way in self.hybrids if way.name == name), None)

    def reranked(self, reranking: Reranking) -> list[Way]:
        """The dense and the hybrid search with a reranker behind them, each against itself without."""
        return [self._reranked(way, reranking) for way in (self.base, self.hybrid) if way]

    def lines(self, ways: Sequence[Way]) -> list[MeasuredWay]:
        """Measure ways; those that others are compared with are among them, or are the delivered search."""
        known = self._known([self.base, *self._alone.values(), *([self.hybrid] if self.hybrid else []), *ways])
        paired = {way.name: known[way.name][MAIN] - known[way.against][MAIN] for way in ways if way.against}
        intervals = dict(zip(paired, differences(list(paired.values())), strict=True))
        return [
            MeasuredWay(
                group=way.group,
                name=way.name,
                measures={each: float(known[way.name][each].mean()) for each in self.measures},
                values={each: known[way.name][each].round(6).tolist() for each in self.measures},
                intervals=bounds({each: known[way.name][each] for each in self.measures}),
                against=way.against,
                difference=intervals.get(way.name),
                ms=way.ms,
                bytes=way.bytes,
            )
            for way in ways
        ]

    def _known(self, ways: Iterable[Way]) -> dict[str, dict[str, Values]]:
        grades = [self.material.grades[at] for at in self.material.tested]
        wanted = (MAIN, *self.measures)
        return {name: measured(way.found, grades, wanted) for name, way in {way.name: way for way in ways}.items()}

    def _gains(self) -> dict[str, Interval]:
        """The delivered search minus each member alone, in nDCG@10."""
        known = self._known([self.base, *self._alone.values()])
        found = differences([known[self.base.name][MAIN] - known[name][MAIN] for name in self._alone])
        return dict(zip(self._alone, found, strict=True))

    def evaluation(self, data: str, ways: Sequence[Way], notes: Sequence[str], names: Sequence[str]) -> Evaluation:
        """Measure `ways` and word the verdict; `names` are what `--roster` calls the dense models."""
        material, lines = self.material, self.lines(ways)
        models = {
            side.name: MeasuredModel(
                weight=side.weight,
                dim=side.documents.shape[1],
                seconds=side.cost.seconds,
                device=side.cost.device,
                query_ms=side.cost.query_ms,
            )
            for side in material.dense
        }
        weights, count = chosen(material, self.best, self.seed), len(material.tested)
        shares = zip(names, weights.weights.values(), strict=True) if weights else []
        gains = self._gains() if len(models) > 1 else {}
        return Evaluation(
            data=data,
            texts=len(material.ids),
            queries=count,
            training=len(material.trained),
            halved=material.halved,
            seed=self.seed,
            fusion=str(self.fusion),
            best_member=self.best,
            models=models,
            ways=lines,
            weights=weights,
            verdict=verdict(self.base.name, self.best, gains, count) if gains else "",
            cost=bill(self.best, models) if gains else "",
            notes=[*few_queries(count), *self._apart(ways), *notes],
            query_ids=[*material.queries],
            roster=",".join(f"{name}={share:g}" for name, share in shares if share > 0),
        )

    def _apart(self, ways: Sequence[Way]) -> list[str]:
        found = {way.name: way.found for way in [self.base, *self._alone.values(), *ways]}
        pairs = [(way.name, way.against) for way in ways if way.against]
        return judged_apart(found, pairs, [self.material.grades[at] for at in self.material.tested])

    def _model(self, side: DenseSide, size: int) -> Way:
        """A model alone, against the best one; cut to fewer dimensions than it has, against itself."""
        if size == side.documents.shape[1]:
            against, name = "" if side.name == self.best else self.best, side.name
            return self._stored("models", name, whole(side.documents, side.queries), against, [side])
        form = whole(truncate(side.documents, size), truncate(side.queries, size))
        return self._stored("models", f"{side.name}, {size}", form, side.name, [side])

    def _fused(self, name: str, fusion: Fusion, weights: Share) -> Way:
        return self._stored("fusions", name, whole(*fused(self.material.dense, fusion, weights)), self.best)

    def _stored(
        self, group: Group, name: str, form: StoredForm, against: str, sides: Sequence[DenseSide] | None = None
    ) -> Way:
        """What is nearest by vectors in some form, of queries that `sides` (None: all dense models) encode."""

        def rank() -> Lists:
            tested, own = self.material.tested, self.material
            hits = zip(tested, *nearest(form.documents, form.queries[tested], own.depth), strict=True)
            return [own.hits(*each) for each in hits]

        return ranked(Way(group, name, against, encoding(sides or self.material.dense), form.bytes), rank)

    def _terms(self, side: SparseSide) -> Way:
        postings, size = Postings(side.documents), TERM_BYTES * len(side.documents.indices) / len(self.material.ids)

        def rank() -> Lists:
            tested, own = self.material.tested, self.material
            hits = postings.nearest(side.queries.taken(tested), own.depth)
            return [own.hits(at, *each) for at, each in zip(tested, hits, strict=True)]

        return ranked(Way("sparse", side.name, self.base.name, encoding([side]), size), rank)

    def _combined(
        self, group: Group, name: str, how: Hybrid, ways: Sequence[Way], shares: Mapping[str, float], against: str
    ) -> Way:
        def rank() -> Iterator[Found]:
            for at in range(len(self.material.tested)):
                own = {way.name: way.found[at] for way in ways}
                short = [way.name for way in ways if way.group == "sparse" and len(way.found[at]) < DEPTH]
                yield combined(how, own, shares, dict.fromkeys(short, 0.0))

        ms, size = total(way.ms for way in ways), sum(way.bytes for way in ways)
        return ranked(Way(group, name, against, ms, size), lambda: [*rank()])

    def _reranked(self, way: Way, reranking: Reranking) -> Way:
        first = [dict(list(hits.items())[: reranking.depth]) for hits in way.found]
        rescored = reranking.rescore(first)

        def rank() -> Iterator[Found]:
            for hits, candidates, scores in zip(way.found, first, rescored.scores, strict=True):
                ids, lowest = list(candidates), min(scores.values(), default=0.0)
                second = [scores.get(id, lowest) for id in ids]
                order = [ids[each.before] for each in reranked(list(candidates.values()), second, reranking.share)]
                yield placed([*order, *list(hits)[reranking.depth :]])

        name, ms = f"{reranking.name} after {way.name}", total([way.ms, rescored.ms])
        return ranked(Way("rerank", name, way.name, ms, way.bytes + rescored.bytes), lambda: [*rank()])
