"""Search in an embedded store by stages: dense vectors, sparse ones, their blend, and tokens compared one by one.

Questions are encoded as the store's manifest says, or not at all. A question with several lists gets one order by
`combine`; how each list has a chunk is told with it.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from interlock.engine.compute.job import GpuJobs, HostJobs, Job, JobExecutor, Progress, beyond_limit, by_table, unheard
from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import ModelSpec, name_of_output
from interlock.engine.search import lists
from interlock.engine.search.ask import MAXSIM, Ask, Comparison, check_question, comparison_of, searched
from interlock.engine.search.combine import DEPTH, Hybrid, combined, shares_of
from interlock.engine.search.conditions import check_keys, filter_of, why_none
from interlock.engine.search.hits import Answer, Hit, LateHit, StageScore
from interlock.engine.search.store_models import StoreModel, StoreModels
from interlock.engine.targets import stores
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.form import FUSED
from interlock.engine.vectors.fusion import fused_width, truncate
from interlock.engine.vectors.manifest import Member, query_vectors, read_manifest
from interlock.engine.vectors.points import Terms, Vector

if TYPE_CHECKING:
    import qdrant_edge as edge


@dataclass(frozen=True)
class _Question:
    """One question as the models made it: dense vectors by the name of what they are compared with, whose cosines count
    times `scale`, terms by theirs, and tokens [tokens, dim]."""

    text: str
    vectors: Mapping[str, Vector]
    scale: float
    terms: Mapping[str, Terms]
    tokens: Vectors | None


class Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count what happens inside for `stage`."""
        began = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - began


class StoreSearcher:
    """One open collection of a store, and the models that questions to it go through; a context manager."""

    def __init__(
        self,
        directory: Path,
        collection: str | None,
        registry: Mapping[str, ModelSpec],
        policy: Policy,
        lessor: Lessor,
        given: Mapping[str, Mapping[str, object]] = {},
        *,
        kept: bool = False,
        passes: GpuJobs | None = None,
    ) -> None:
        """`collection` is its own name or Qdrant's; None where there is one alone. `registry` and `given` are those of
        `StoreModels`; `kept` holds the models in memory, under one lease of the CPU that `lessor` lends, until
        this is closed; with `passes` all questions of one call are computed on GPUs.

        Raises UsageError for a store or collection that is not there, damaged or in use, and as `StoreModels` does.
        """
        with ExitStack() as stack:
            self.store = stack.enter_context(Store.open_for_read(directory, _named(directory, collection)))
            store = self.store
            self.manifest = read_manifest(store.manifest, store.dims, store.sparse, store.tokens)
            devices = passes.devices if passes else lessor.devices
            self._models = StoreModels(self.manifest, registry, policy, devices, given)
            self._on: JobExecutor = passes or stack.enter_context(HostJobs(lessor, kept=kept))
            self._check_projection()
            self._stack, self.closed = stack.pop_all(), False

    def __enter__(self) -> Self:
        return self

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

    def search(self, texts: Sequence[str], ask: Ask) -> list[Answer]:
        """Answer each question with its best chunks, as `answers` does."""
        return [*self.answers(texts, ask)]

    def answers(self, texts: Sequence[str], ask: Ask, progress: Progress = unheard) -> Iterator[Answer]:
        """Encode all questions, one model after the other, and then yield the answer to each in turn: its best chunks,
        as `LateHit`s where tokens are to be compared. Seconds for all of them at once count to each by its share.

        Raises UsageError for a question that is no text, and for weights, models and token vectors that the store has
        none of; UnavailableError for a model that is not there or does not fit.
        """
        if self.closed:
            raise UsageError("the store was closed: use another Searcher")
        for text in texts:
            check_question(text)
        comparison, watch = comparison_of(self.manifest, ask), Stopwatch()
        check_keys(self.store, ask.where)
        where = filter_of(ask.where, self.store)
        limit = min(ask.limit, max(1, self.store.count()))  # the engine takes no more than 64 bits
        if not texts:
            return
        with watch.timed("models"):
            models = self._serving(comparison)
        cuts = _cuts(models, texts)
        with watch.timed("encoding"):
            outputs = self._encoded(models, texts, progress)
        if (loading := self._on.loading) and not all(model.table for model in models):
            encoding = watch.seconds.pop("encoding") - loading
            watch.seconds |= {"loading": loading, "encoding": encoding}
        shared = {stage: seconds / len(texts) for stage, seconds in watch.seconds.items()}
        none = None
        for cut, question in zip(cuts, self._questions(comparison, texts, outputs), strict=True):
            answer = replace(self._answer(question, comparison, ask, where, limit, shared), cut=cut)
            if not answer.hits and ask.where:
                none = why_none(self.store, ask.where) if none is None else none  # which every question shares
                answer = replace(answer, why_none=none)
            yield answer

    def _encoded(self, models: Sequence[StoreModel], texts: Sequence[str], progress: Progress) -> dict[str, Outputs]:
        """What each model gives of the questions, by its key: by its table, or as a job."""
        found = {each.card.key: Outputs(terms=by_table(each.card, each.table, texts)) for each in models if each.table}
        if jobs := [Job(each.card, each.member.query_prompt, texts) for each in models if not each.table]:
            for job, done in zip(jobs, self._on.compute(jobs, progress), strict=True):
                found[job.card.key] = done.rows
        return found

    def _check_projection(self) -> None:
        """Raise UsageError where the fused vectors were projected from others than the manifest's fusion makes."""
        members, projection = self.manifest.models, self.store.projection
        wide = fused_width(self.manifest.fusion, [each.dim for each in members], [each.model for each in members])
        if projection is not None and projection.shape[0] != wide:
            raise UsageError(
                f"{self.store.path} was projected from {projection.shape[0]:,} dimensions, and its manifest has "
                f"{wide or 'none'}: restore it from a copy, or deliver again"
            )

    def _serving(self, comparison: Comparison) -> list[StoreModel]:
        try:
            return self._models.serving(comparison.names)
        except UnavailableError as error:
            raise UnavailableError(
                f"{error}\nuse --only with one of {searched(self.manifest)} to search without the others"
            ) from error

    def _questions(
        self, comparison: Comparison, texts: Sequence[str], outputs: Mapping[str, Outputs]
    ) -> Iterator[_Question]:
        """What each question is compared by."""
        members = {member.model: member for member in self.manifest.models}
        dense = {name: vectors_of(members[name], outputs[name], texts) for name in comparison.weights}
        scales = np.ones(len(texts))
        exact = dense.keys() <= self.store.dims.keys()  # where its members are, other weights need no projection
        given = {member.model: member.weight for member in self.manifest.models}
        if dense and FUSED in self.store.dims and not (exact and comparison.weights != given):
            fused, scales = query_vectors(self.manifest, dense, comparison.weights, self.store.projection)
            dense = {FUSED: fused}
        terms = {name_of_output(key, "sparse"): each.terms for key, each in outputs.items()}
        terms |= {key: each.terms for key, each in outputs.items() if each.dense is None}
        tokens = {name_of_output(key, "tokens"): each.tokens for key, each in outputs.items()}.get(comparison.tokens)
        for row, text in enumerate(texts):
            own = {name: self._terms(name, text, row, terms) for name in comparison.sparse}
            late = tokens.taken(np.array([row])).to_float32() if tokens else None
            yield _Question(text, {name: each[row] for name, each in dense.items()}, float(scales[row]), own, late)

    def _terms(self, name: str, text: str, row: int, terms: Mapping[str, SparseRows | None]) -> Terms:
        if name == BM25:
            assert self.manifest.bm25, "which is why it is asked"
            return lists.words_of(self.manifest.bm25, text)
        rows = terms[name]
        assert rows is not None, "a model that weighs terms has weighed some"
        cut = slice(*rows.starts[row : row + 2])
        return Terms(rows.indices[cut], rows.values[cut])

    def _answer(
        self,
        question: _Question,
        comparison: Comparison,
        ask: Ask,
        where: "edge.Filter | None",
        limit: int,
        shared: Mapping[str, float],
    ) -> Answer:
        watch, several = Stopwatch(), len(comparison.lists) > 1
        depth = max(DEPTH, limit) if several else limit
        found: dict[str, dict[str, float]] = {}
        if question.vectors:
            with watch.timed(comparison.dense):
                found[comparison.dense] = self._nearest(question, comparison.weights, depth, where)
        for name, terms in question.terms.items():
            with watch.timed(name):
                found[name] = lists.matching(self.store, name, terms, depth, where)
        best, shares = next(iter(found.values())), dict[str, float]()
        if several:
            shares = shares_of([comparison.dense] if comparison.weights else [], comparison.sparse, ask.sparse_share)
            # Who shares no term with a question has 0 of it, and a list that is not full has all who share one.
            floors = {name: 0.0 for name in comparison.sparse if len(found[name]) < depth}
            best = dict([*combined(ask.hybrid, found, shares, floors).items()][:limit])
        late: Mapping[str, float] = {}
        if question.tokens is not None and len(question.tokens) and best:
            with watch.timed(MAXSIM):
                late = self.store.query(comparison.tokens, question.tokens, len(best), among=best.keys())
        with watch.timed("payloads"):
            hits = self._hits(best, _stages(found), late if comparison.tokens else None)
        told = {} if ask.hybrid is Hybrid.RRF else shares
        calibrated = comparison.weights if comparison.calibrated else {}
        return Answer(question.text, hits, told, {**shared, **watch.seconds}, calibrated)

    def _hits(
        self,
        scores: Mapping[str, float],
        stages: Mapping[str, Mapping[str, StageScore]],
        late: Mapping[str, float] | None,
    ) -> list[Hit]:
        payloads, hits = self.store.payloads([*scores]), list[Hit]()
        for point, score in scores.items():
            told, by = (point, score, payloads.get(point, {})), stages[point]
            hits.append(Hit(*told, stages=by) if late is None else LateHit(*told, late.get(point), stages=by))
        return hits

    def _nearest(
        self, question: _Question, weights: Mapping[str, float], depth: int, where: "edge.Filter | None"
    ) -> dict[str, float]:
        if len(question.vectors) > 1:
            return lists.nearest_to_all(self.store, question.vectors, weights, depth, where)
        ((name, vector),) = question.vectors.items()
        found = lists.nearest(self.store, name, vector, depth, where)
        return {point: score * question.scale for point, score in found.items()}


def _stages(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, StageScore]]:
    """Where each list has each point that it has."""
    stages: dict[str, dict[str, StageScore]] = defaultdict(dict)
    for name, scores in found.items():
        for rank, (point, score) in enumerate(scores.items(), 1):
            stages[point][name] = StageScore(rank, score)
    return stages


def _cuts(models: Sequence[StoreModel], texts: Sequence[str]) -> list[dict[str, int]]:
    """The tokens of each text that each model leaves out."""
    networks = [model for model in models if not model.table]
    beyond = {model.card.key: beyond_limit(Job(model.card, model.member.query_prompt, texts)) for model in networks}
    return [{key: own[at] for key, own in beyond.items() if own[at]} for at in range(len(texts))]


def vectors_of(member: Member, outputs: Outputs, texts: Sequence[str]) -> Vectors:
    """Return the vectors [n, dim] of questions, as wide as those of the store. Raises UsageError, naming it, for a
    question of which the model makes none."""
    whole = outputs.dense
    assert whole is not None, "a dense model has vectors"
    if not (finite := np.isfinite(whole).all(axis=1)).all():
        wrong = texts[int(finite.argmin())]
        raise UsageError(f"{member.model} makes no vector of {wrong!r:.100}: use --only with another, or ask otherwise")
    return truncate(whole, member.dim) if member.dim < whole.shape[1] else np.asarray(whole, np.float32)


def _named(directory: Path, collection: str | None) -> str:
    """The name in Qdrant of the collection that is meant; that of the only one where none is named."""
    names = stores.named(directory, collection)
    if len(names) > 1:
        raise UsageError(f"{directory} has {len(names)} collections: choose one with --collection ({', '.join(names)})")
    return names[0]
