"""Search in an embedded store, or in a collection of a server, by stages: dense vectors, sparse ones, their blend, and
tokens compared one by one.

Questions are encoded as the store's manifest says, or not at all. A question with several lists gets one order by
`combine`; how each list has a chunk is told with it.
"""

import heapq
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.compute.texts import HeldJobs, Progress, TextJobs, unheard
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import ModelSpec, name_of_output
from interlock.engine.search.ask import MAXSIM, Ask, Comparison, check_question, comparison_of, searched
from interlock.engine.search.combine import DEPTH, Hybrid, combined, shares_of
from interlock.engine.search.conditions import check_keys, filter_of, why_none
from interlock.engine.search.encoding import Meaning, check_texts, computed, encode, terms_in, vectors_of, words_of
from interlock.engine.search.hits import Answer, EncodedTexts, Hit, LateHit, Side, StageScore
from interlock.engine.search.served import Place, Searched
from interlock.engine.search.store_models import StoreModel, StoreModels
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.fusion import fused_width, shares
from interlock.engine.vectors.manifest import query_vectors, read_manifest
from interlock.engine.vectors.points import Terms, Vector
from interlock.engine.vectors.precision import FUSED

if TYPE_CHECKING:
    import qdrant_edge as edge

NEAR = 256
"""Points of each model that are looked at first, at least, where several models' own vectors are searched."""
TOGETHER = 64
"""Questions that are searched for together: of 50,000 points a dense search then takes a quarter for each."""
COUNTED = 10_000
"""Hits beyond which it is asked first how many there are."""


@dataclass(frozen=True)
class _Asked:
    """Questions as the models made them: dense vectors by the name of what they are compared with, whose cosines count
    times `scales`, terms by theirs, and rows of tokens."""

    comparison: Comparison
    dense: Mapping[str, Vectors]
    scales: NDArray[np.float64]
    terms: Mapping[str, SparseRows | None]
    tokens: TokenRows | None


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Count the seconds inside for `stage`."""
    began = time.perf_counter()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - began


class StoreSearcher(AbstractContextManager["StoreSearcher"]):
    """One open collection of a store, and the models that questions to it go through; a context manager."""

    def __init__(
        self,
        place: Place,
        collection: str | None,
        registry: Mapping[str, ModelSpec],
        policy: Policy,
        lessor: Lessor,
        given: Mapping[str, Mapping[str, object]] = {},
        *,
        kept: bool = False,
        on: TextJobs | None = None,
    ) -> None:
        """`collection` is its own name or Qdrant's; None where there is one alone. `registry` and `given` are those of
        `StoreModels`; `kept` holds the models in memory, under one lease of the CPU that `lessor` lends, until
        this is closed; with `on` that computes all questions of one call.

        Raises UsageError for a store or collection that is not there, damaged or in use, and as `StoreModels` does.
        """
        with ExitStack() as stack:
            store: Searched = (
                Store.open_for_read(place, collection) if isinstance(place, Path) else place.open(collection)
            )
            stack.enter_context(store)
            self.store = store
            self.manifest = read_manifest(store.manifest, store.dims, store.sparse, store.tokens)
            self._on = on or stack.enter_context(HeldJobs(lessor, kept=kept))
            self._models = StoreModels(self.manifest, registry, policy, self._on.devices, given)
            if store.projection is not None:
                self._check_projection(len(store.projection))
            self._stack, self.closed = stack.pop_all(), False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let models, lease and store go."""
        self.closed = True
        self._stack.close()

    @property
    def resident(self) -> list[str]:
        """The models in memory."""
        return self._on.resident

    def check(self, ask: Ask) -> None:
        """Find what such questions go through, and load nothing. Raises as `answers` does."""
        check_keys(self.store, ask.where)
        self._serving(comparison_of(self.manifest, ask))

    def encode(self, texts: Iterable[str], side: Side = "query", only: str = "") -> EncodedTexts:
        """Make the vectors that the store's points have of texts, as `encode` of `encoding` does."""
        self._check_open()
        meaning = Meaning.of(self.manifest, self.store.projection)
        return encode(meaning, self._models, self._on, check_texts(texts), side, only)

    def search(self, texts: Sequence[str], ask: Ask) -> list[Answer]:
        """Answer each question with its best chunks, as `answers` does."""
        return [*self.answers(texts, ask)]

    def answers(self, texts: Sequence[str], ask: Ask, progress: Progress = unheard) -> Iterator[Answer]:
        """Encode all questions, one model after the other, and then yield the answer to each in turn: its best chunks,
        as `LateHit`s where tokens are to be compared. Seconds for all of them at once count to each by its share.

        Raises UsageError for a question that is no text, and for weights, models and token vectors that the store has
        none of; UnavailableError for a model that is not there or does not fit.
        """
        self._check_open()
        for text in texts:
            check_question(text)
        comparison, where, none, seconds = comparison_of(self.manifest, ask), None, "", dict[str, float]()
        if ask.where:
            check_keys(self.store, ask.where)
            where = filter_of(ask.where, self.store)
        if not texts:
            return
        if ask.limit > COUNTED:  # which takes as long as a third of a search; the engine takes no more than 64 bits
            ask = ask.to(min(ask.limit, max(1, self.store.count())))
        with _timed(seconds, "models"):
            models = self._serving(comparison)
        with _timed(seconds, "encoding"):
            outputs, cut, _ = computed(models, texts, self._on, progress)
        if not all(each.table for each in models) and (loading := self._on.loading):
            seconds |= {"loading": loading, "encoding": seconds.pop("encoding") - loading}
        asked = self._asked(comparison, texts, outputs)
        shared = {stage: each / len(texts) for stage, each in seconds.items()}
        for start in range(0, len(texts), TOGETHER):
            rows = range(start, min(start + TOGETHER, len(texts)))
            lists, took = self._lists(texts, rows, asked, ask, where)
            for row, found in zip(rows, lists, strict=True):
                answer = self._answer(texts[row], row, asked, ask, found, shared | took)
                if not answer.hits and ask.where:
                    none = none or why_none(self.store, ask.where)  # which every question shares
                yield replace(answer, cut=cut[row], why_none="" if answer.hits else none)

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError("the store was closed: use another Searcher")

    def _check_projection(self, width: int) -> None:
        """Raise UsageError where the fused vectors were projected from others than the manifest's fusion makes."""
        members = self.manifest.models
        wide = fused_width(self.manifest.fusion, [each.dim for each in members], [each.model for each in members])
        if width != wide:
            raise UsageError(
                f"{self.store.where} was projected from {width:,} dimensions, and its manifest has {wide or 'none'}: "
                "restore it from a copy, or deliver again"
            )

    def _serving(self, comparison: Comparison) -> list[StoreModel]:
        try:
            return self._models.serving({*comparison.weights, *comparison.sparse, comparison.tokens})
        except UnavailableError as error:
            raise UnavailableError(
                f"{error}\nuse --only with one of {searched(self.manifest)} to search without the others"
            ) from error

    def _asked(self, comparison: Comparison, texts: Sequence[str], outputs: Mapping[str, Outputs]) -> _Asked:
        """What each question is compared by."""
        members = {member.model: member for member in self.manifest.models}
        dense = {name: vectors_of(members[name], outputs[name], texts) for name in comparison.weights}
        scales = np.ones(len(texts))
        exact = dense.keys() <= self.store.dims.keys()  # where its members are, other weights need no projection
        given = {member.model: member.weight for member in self.manifest.models}
        if dense and FUSED in self.store.dims and not (exact and comparison.weights != given):
            fused, scales = query_vectors(self.manifest, dense, comparison.weights, self.store.projection)
            dense = {FUSED: fused}
        tokens = {name_of_output(key, "tokens"): each.tokens for key, each in outputs.items()}
        return _Asked(comparison, dense, scales, terms_in(outputs), tokens.get(comparison.tokens))

    def _lists(
        self, texts: Sequence[str], rows: range, asked: _Asked, ask: Ask, where: "edge.Filter | None"
    ) -> tuple[list[dict[str, dict[str, float]]], dict[str, float]]:
        """Find what each list has for the questions of these rows; and the seconds of each list, for one of them."""
        comparison, store, seconds = asked.comparison, self.store, dict[str, float]()
        found: list[dict[str, dict[str, float]]] = [{} for _ in rows]
        depth = comparison.depth(ask.limit)
        if asked.dense:
            with _timed(seconds, comparison.dense):
                if len(asked.dense) > 1:
                    for lists, row in zip(found, rows, strict=True):
                        own = {name: each[row] for name, each in asked.dense.items()}
                        lists[comparison.dense] = nearest_to_all(store, own, comparison.weights, depth, where)
                else:
                    ((name, vectors),) = asked.dense.items()
                    hits = store.queries(name, [*vectors[rows.start : rows.stop]], depth, where)
                    for lists, row, each in zip(found, rows, hits, strict=True):
                        scale = float(asked.scales[row])
                        lists[comparison.dense] = {point: score * scale for point, score in each.items()}
        for name in comparison.sparse:
            with _timed(seconds, name):
                terms = [self._terms(name, texts[row], row, asked) for row in rows]
                answered = iter(store.queries(name, [each for each in terms if len(each.indices)], depth, where))
                for lists, own_terms in zip(found, terms, strict=True):
                    scores = next(answered) if len(own_terms.indices) else {}
                    lists[name] = {point: score for point, score in scores.items() if score > 0}  # that share a term
        return found, {stage: each / len(rows) for stage, each in seconds.items()}

    def _terms(self, name: str, text: str, row: int, asked: _Asked) -> Terms:
        """The terms of the question of a row, by their list."""
        if name == BM25:
            assert self.manifest.bm25, "which is why it is asked"
            return words_of(self.manifest.bm25, text)
        rows = asked.terms[name]
        assert rows is not None, "a model that weighs terms has weighed some"
        cut = slice(*rows.starts[row : row + 2])
        return Terms(rows.indices[cut], rows.values[cut])

    def _answer(
        self,
        text: str,
        row: int,
        asked: _Asked,
        ask: Ask,
        found: Mapping[str, dict[str, float]],
        seconds: dict[str, float],
    ) -> Answer:
        """Answer the question of a row: by all its lists combined, and its tokens compared with the best."""
        comparison, store = asked.comparison, self.store
        own = {name: each[row] for name, each in asked.dense.items()}
        best, counts = next(iter(found.values())), dict[str, float]()
        if comparison.several:
            counts = shares_of(
                [comparison.dense] if comparison.weights else [], comparison.sparse, comparison.sparse_share
            )
            best = _blended(ask, found, counts, comparison.sparse)
        late, own_tokens, cosines = dict[str, float](), None, dict[str, float]()
        if asked.tokens and best:
            own_tokens = asked.tokens.taken(np.array([row])).to_float32()
            if len(own_tokens):
                with _timed(seconds, MAXSIM):
                    late = store.query(comparison.tokens, own_tokens, len(best), among=best.keys())
        stages: dict[str, dict[str, StageScore]] = {point: {} for point in best}
        for name, scores in found.items():
            for rank, (point, score) in enumerate(scores.items(), 1):
                if point in stages:
                    stages[point][name] = StageScore(rank, score)
        if own:
            with _timed(seconds, comparison.dense):
                cosines = found[comparison.dense] | self._cosines(
                    own, asked, row, best.keys() - found[comparison.dense]
                )
        with _timed(seconds, "payloads"):
            payloads = store.payloads([*best])
        made: list[Hit] = []
        for point, score in best.items():
            hit = Hit(point, score, payloads.get(point, {}), stages=stages[point], cosine=cosines.get(point))
            made.append(LateHit(**vars(hit), late=late.get(point)) if comparison.tokens else hit)
        counts = {} if ask.hybrid is Hybrid.RRF else counts
        return Answer(text, made, counts, seconds, comparison.weights if comparison.calibrated else {})

    def _cosines(self, own: Mapping[str, Vector], asked: _Asked, row: int, points: Collection[str]) -> dict[str, float]:
        """How near points that its dense list lacks are to the question of a row; one without a vector is left out."""
        if not points:
            return {}
        by = [float(asked.scales[row])] if len(own) == 1 else shares([asked.comparison.weights[name] for name in own])
        total: dict[str, float] = {}
        for (name, vector), share in zip(own.items(), by, strict=True):
            for point, score in self.store.query(name, vector, len(points), among=points).items():
                total[point] = total.get(point, 0.0) + float(share) * score
        return total


def _blended(
    ask: Ask, found: Mapping[str, Mapping[str, float]], counts: Mapping[str, float], sparse: Sequence[str]
) -> dict[str, float]:
    """Combine the first hits of lists, as many whatever the limit is, which would else order them; where more are
    asked for, what only the rest of the lists has follows in the order of the whole."""

    def of(depth: int) -> dict[str, float]:
        lists = {name: dict(islice(scores.items(), depth)) for name, scores in found.items()}
        # Who shares no term with a question has 0 of it, and a list that is not full has all who share one.
        floors = {name: 0.0 for name in sparse if len(lists[name]) < depth}
        return combined(ask.hybrid, lists, counts, floors)

    best = of(DEPTH)
    if ask.limit > DEPTH:
        rest = {point: score for point, score in of(ask.limit).items() if point not in best}
        below = min(best.values(), default=0.0) - max(rest.values(), default=0.0)
        best |= {point: score + below for point, score in rest.items()}
    return dict(islice(best.items(), ask.limit))


def nearest_to_all(
    store: Searched,
    vectors: Mapping[str, Vector],
    weights: Mapping[str, float],
    limit: int,
    where: "edge.Filter | None",
) -> dict[str, float]:
    """Return the weighted mean cosines of the `limit` points where that is highest, by id, best first.

    Each model gives its nearest points, the union is scored by every model, and the depth grows until no point outside
    the union can reach the last hit (Fagin's threshold). A point parked for a model scores 0 there.
    """
    share = dict(zip(vectors, shares([weights[name] for name in vectors]).tolist(), strict=True))
    total, depth = store.count(), max(NEAR, 16 * limit)
    while True:
        near = {name: store.query(name, vector, depth, where) for name, vector in vectors.items()}
        union = set().union(*near.values())
        # A point that no model has among its nearest is for each at most as near as the last of these.
        beyond = sum(share[n] * max(0.0, min(scores.values(), default=0.0)) for n, scores in near.items())
        for name, scores in near.items():
            if rest := union - scores.keys():
                scores |= store.query(name, vectors[name], len(rest), among=rest)
        means = {i: sum(share[n] * scores.get(i, 0.0) for n, scores in near.items()) for i in union}
        best = heapq.nsmallest(limit, means.items(), key=lambda pair: (-pair[1], pair[0]))
        if depth >= total or (best and best[-1][1] >= beyond):
            return dict(best)
        depth *= 4
