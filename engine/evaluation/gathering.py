"""Texts and queries of a judged collection as the models give them: what `judging` works on.

Texts are computed on GPUs where there are some, everything else on the CPU, under leases; or read where it was computed
before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.job import Encoded, GpuJobs, weigh_queries
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.term_table import table_of
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.judged import Judged
from interlock.engine.corpus.ragged import starts_of
from interlock.engine.errors import UsageError
from interlock.engine.evaluation.delivered import DeliveredCollection
from interlock.engine.evaluation.encoding import Amount, amount_of, encode_all
from interlock.engine.evaluation.judging import Lists, Rescored
from interlock.engine.evaluation.material import DenseSide, Rows, SideCost, SparseSide
from interlock.engine.evaluation.nearest import Postings
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import card_for
from interlock.engine.search.maxsim import maxsim
from interlock.engine.vectors.bm25 import BM25, WordCounts, Words
from interlock.engine.vectors.fusion import truncate

Numbers = npt.NDArray[np.float32]
Tell = Callable[[str, int, int], object]
"""Hears a model, how many of its texts are done, and of how many."""


@dataclass(frozen=True)
class QueryParts:
    """The judged queries that figures are of, and those that choose; numbers in the order of `queries`."""

    queries: Sequence[str]
    tested: Rows
    trained: Rows
    halved: bool


@dataclass(frozen=True)
class TextEncoder:
    """Encodes texts and queries by the models of an evaluation."""

    lessor: Lessor
    """Of the CPU."""
    tell: Tell
    gpus: GpuJobs | None = None

    @property
    def device(self) -> str:
        """What texts are computed on, for people."""
        if not self.gpus:
            return "CPU"
        return "GPU" if self.gpus.devices[0].kind == "cuda" else "simulated GPU"

    def amount(self, spec: ModelSpec, card: ModelCard, texts: Sequence[str]) -> Amount:
        card = self._card(spec, card)
        return amount_of(card, texts, card.document_prompt, self.lessor, self.gpus)

    def documents(self, spec: ModelSpec, card: ModelCard, texts: Sequence[str]) -> Encoded:
        """Encode texts; `card` is that of the CPU."""
        card = self._card(spec, card)
        told = partial(self._tell, card.key, len(texts))
        return encode_all(card, texts, card.document_prompt, self.lessor, told, self.gpus)

    def encode(self, card: ModelCard, texts: Sequence[str], prompt: str) -> Encoded:
        """Encode a few texts, mostly queries, on the CPU."""
        return encode_all(card, texts, prompt, self.lessor, partial(self._tell, card.key, len(texts)))

    def _card(self, spec: ModelSpec, card: ModelCard) -> ModelCard:
        return card_for(spec, card.snapshot, self.gpus.devices) if self.gpus else card

    def _tell(self, model: str, of: int, done: int) -> None:
        self.tell(model, done, of)


def parted(judged: Judged, most: int | None, seed: int) -> QueryParts:
    """Part the judged queries in those that are measured, `most` at most of each split, and those that choose weights:
    the split `train`, or where there is none a half of the measured ones."""
    generator = np.random.default_rng(seed)
    test = _some(list(judged.splits["test"]), most, generator)
    if "train" in judged.splits:
        train = _some(list(judged.splits["train"]), most, generator)
        queries = list(dict.fromkeys([*test, *train]))
        places = {query: at for at, query in enumerate(queries)}
        return QueryParts(queries, np.arange(len(test)), np.array([places[query] for query in train], np.int64), False)
    half = np.sort(generator.permutation(len(test))[: -(-len(test) // 2)])
    return QueryParts(test, np.arange(len(test)), half.astype(np.int64), True)


def _some(queries: list[str], most: int | None, generator: np.random.Generator) -> list[str]:
    if most is None or most >= len(queries):
        return queries
    return [queries[at] for at in sorted(generator.permutation(len(queries))[:most])]


def grades_of(judged: Judged, parts: QueryParts) -> list[Mapping[str, int]]:
    """The grades of each query of `parts`; those of the split `test` before those of `train`."""
    every = {**judged.splits.get("train", {}), **judged.splits["test"]}
    return [every[query] for query in parts.queries]


def dense_side(
    encoder: TextEncoder, spec: ModelSpec, card: ModelCard, weight: float, texts: Sequence[str], queries: Sequence[str]
) -> DenseSide:
    """Encode texts and queries by a dense model. Raises UsageError where the model has no vector of one."""
    documents = encoder.documents(spec, card, texts)
    asked = encoder.encode(card, queries, card.query_prompt)
    both = [_dense(card.key, each.rows) for each in (documents, asked)]
    cost = _cost(encoder, documents, asked, len(queries))
    return DenseSide(card.key, weight, both[0], both[1], cost, spec.matryoshka)


def sparse_side(
    encoder: TextEncoder, spec: ModelSpec, card: ModelCard, name: str, texts: Sequence[str], queries: Sequence[str]
) -> SparseSide:
    """Weigh the terms of texts and queries by a sparse model."""
    documents = encoder.documents(spec, card, texts)
    asked = _asked(encoder, card, queries)
    return SparseSide(name, _terms(documents), _terms(asked), _cost(encoder, documents, asked, len(queries)))


def delivered_dense(
    encoder: TextEncoder,
    spec: ModelSpec,
    card: ModelCard,
    weight: float,
    delivered: DeliveredCollection,
    queries: Sequence[str],
) -> DenseSide:
    """Take the vectors of texts from a run, and encode the queries as wide as these."""
    documents, asked = delivered.dense[card.key], encoder.encode(card, queries, card.query_prompt)
    vectors, width = _dense(card.key, asked.rows), documents.shape[1]
    vectors = truncate(vectors, width) if width < vectors.shape[1] else vectors
    cost = replace(delivered.costs[card.key], query_ms=1000 * asked.seconds / max(1, len(queries)))
    return DenseSide(card.key, weight, documents, vectors, cost, spec.matryoshka)


def delivered_sparse(
    encoder: TextEncoder, card: ModelCard, name: str, delivered: DeliveredCollection, queries: Sequence[str]
) -> SparseSide:
    """Take the weights of terms of texts from a run, and weigh those of the queries."""
    asked = _asked(encoder, card, queries)
    cost = replace(delivered.costs[card.key], query_ms=1000 * asked.seconds / max(1, len(queries)))
    return SparseSide(name, delivered.sparse[name], _terms(asked), cost)


def _asked(encoder: TextEncoder, card: ModelCard, queries: Sequence[str]) -> Encoded:
    if table_of(card):
        return Encoded(Outputs(terms=weigh_queries(card, queries, encoder.lessor)), 0.0)
    return encoder.encode(card, queries, card.query_prompt)


def _terms(found: Encoded) -> SparseRows:
    assert found.rows.terms is not None, "a sparse model weighs terms"
    return found.rows.terms


def bm25_side(texts: Sequence[str], queries: Sequence[str], language: str) -> SparseSide:
    """Weigh the words of texts and queries as a store's BM25 vectors and its IDF do."""
    words = Words(language=language)
    counts = WordCounts(words)
    counts.add(texts)
    weights = counts.bm25(np.arange(len(texts), dtype=np.int32))
    rows = [weights.of(text).get(BM25) for text in texts]
    documents = _rows([(each.indices, each.values) if each else _NOTHING for each in rows])
    engine = words.engine(words.k, words.b, 1.0)
    found = [engine.embed_query(query) for query in queries]
    terms, frequencies = Postings(documents).frequencies()
    asked = [np.unique(np.array(each.indices, np.int64)) for each in found]
    own = _rows([_weighed(words_of, terms, frequencies, len(texts)) for words_of in asked])
    return SparseSide(BM25, documents, own, SideCost(0.0, 0.0))


def late_scores(
    encoder: TextEncoder, card: ModelCard, texts: Mapping[str, str], queries: Sequence[str], first: Lists
) -> Rescored:
    """Score each query's candidates by late interaction, as a store with int8 token vectors does."""
    wanted = sorted({id for hits in first for id in hits})
    places = {id: at for at, id in enumerate(wanted)}
    tokens = encoder.encode(card, [texts[id] for id in wanted], card.document_prompt).rows.tokens
    asked = encoder.encode(card, queries, card.query_prompt).rows.tokens
    if tokens is None or asked is None:
        raise UsageError(f"--rerank: {card.key} gives no token vectors here: name another model of --roster")
    began, scored = time.process_time(), list[dict[str, float]]()
    for at, hits in enumerate(first):
        own = asked.taken(np.array([at])).to_float32()
        scores = maxsim(own, tokens.taken(np.array([places[id] for id in hits], np.int64)))
        scored.append({id: float(score) for id, score in zip(hits, scores, strict=True) if np.isfinite(score)})
    took = 1000 * (time.process_time() - began) / max(1, len(first))
    return Rescored(scored, took, tokens.records.nbytes / max(1, len(wanted)))


def giving_tokens(spec: ModelSpec) -> ModelSpec:
    """The same model with vectors of tokens, as a store keeps them."""
    return replace(spec, outputs=("dense", "tokens"), token_precision="int8")  # noqa: S106  # no password


_NOTHING = (np.empty(0, np.int64), np.empty(0, np.float32))


def _weighed(own: Rows, terms: Rows, frequencies: Rows, count: int) -> tuple[Rows, Numbers]:
    """The words of a query that any text has, each with its inverse document frequency as Qdrant counts it."""
    places = np.minimum(np.searchsorted(terms, own), max(0, len(terms) - 1))
    there = terms[places] == own if len(terms) else np.zeros(len(own), np.bool_)
    many = frequencies[places[there]] if len(terms) else np.empty(0)
    return own[there], np.log1p((count - many + 0.5) / (many + 0.5)).astype(np.float32)


def _rows(rows: Sequence[tuple[Rows, Numbers]]) -> SparseRows:
    starts = starts_of(np.array([len(indices) for indices, _ in rows], np.int64))
    indices = np.concatenate([*(each for each, _ in rows), _NOTHING[0]])
    values = np.concatenate([*(each for _, each in rows), _NOTHING[1]]).astype(np.float32)
    return SparseRows(starts, indices, values, np.zeros(len(rows), np.bool_))


def _dense(model: str, rows: Outputs) -> Numbers:
    vectors = rows.dense
    assert vectors is not None, "a dense model has vectors"
    if wrong := int((~np.isfinite(vectors).all(axis=1)).sum()):
        raise UsageError(f"{model} gives no finite vector for {wrong} of the texts: drop it from --roster")
    return vectors


def _cost(encoder: TextEncoder, documents: Encoded, asked: Encoded, queries: int) -> SideCost:
    return SideCost(documents.seconds, 1000 * asked.seconds / max(1, queries), encoder.device)
