"""Texts and queries of a judged collection as the models give them, what was computed once being read thereafter.

Texts are computed on GPUs where there are some, everything else on the CPU, under leases, slice by slice. A slice is
found again by its texts, the model's fingerprint, its precision, its limit and the prompt: a killed evaluation begins
where it was, and a corpus that changed in one place is computed there alone.
"""

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.term_table import table_of
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.compute.texts import Encoded, GpuJobs, HeldJobs, TextJobs, weigh_queries
from interlock.engine.corpus.places import starts_of
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.evaluation.delivered import DeliveredCollection
from interlock.engine.evaluation.judgements import Lists
from interlock.engine.evaluation.nearest import Postings, maxsim
from interlock.engine.evaluation.ways import Rescored
from interlock.engine.evaluation.weighing import DenseSide, SideCost, SparseSide
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import ModelSpec, name_of_output
from interlock.engine.models.roster import card_for
from interlock.engine.models.sources import model_cache
from interlock.engine.record import atomic
from interlock.engine.vectors.bm25 import BM25, WordCounts, Words
from interlock.engine.vectors.fusion import Vectors, truncate

SLICE = 256
"""Texts that are encoded, kept and told of together."""
TOGETHER = 64
"""Slices of one pass on GPUs: what a kill costs, against how often a model is loaded."""
TRIED = 9
"""Texts that a model is tried on, to say how long all of them will take: on a CPU; a slice on GPUs."""
FORM = 1
"""Of what is kept; another number makes all of it anew."""
Tell = Callable[[str, int, int], object]
"""Hears a model, how many of its texts are done, and of how many."""


@dataclass(frozen=True)
class Amount:
    """How much is still to be encoded by a model: texts, their tokens, and about how many seconds."""

    model: str
    texts: int
    missing: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class TextEncoder:
    """Encodes texts, on `gpus` if there are any, and queries, on the CPU that `lessor` lends; cards are the CPU's."""

    lessor: Lessor
    tell: Tell
    gpus: GpuJobs | None = None

    @property
    def device(self) -> str:
        """What texts are computed on, for people."""
        if not self.gpus:
            return "CPU"
        return "GPU" if self.gpus.devices[0].kind == "cuda" else "simulated GPU"

    def amount(self, spec: ModelSpec, card: ModelCard, texts: Sequence[str]) -> Amount:
        """Count what `documents` has yet to do, and try the model on a few texts of it to say how long that takes."""
        gpus, card = self.gpus, self._card(spec, card)
        slices = [(part, _file(card, part, card.document_prompt, gpus)) for _, part in _slices(texts)]
        missing = [text for part, file in slices if not file.exists() for text in part]
        if not missing:
            return Amount(card.key, len(texts), 0, 0, 0.0)
        places = np.linspace(0, len(missing) - 1, min(SLICE if gpus else TRIED, len(missing))).astype(int).tolist()
        with HeldJobs(self.lessor, kept=True) as host:
            on: TextJobs = gpus or host
            lengths = on.job(card, card.document_prompt, missing).tokens.lengths(card.max_tokens)
            tried = [missing[at] for at in places]
            if on is host:  # what is loaded only now is no part of its pace
                host.compute([host.job(card, card.document_prompt, tried)])
            began, (found,) = time.monotonic(), on.compute([on.job(card, card.document_prompt, tried)])
            seconds = time.monotonic() - began if on is host else found.seconds / len(on.devices)
        tokens = int(lengths.sum())
        return Amount(card.key, len(texts), len(lengths), tokens, seconds * tokens / int(lengths[places].sum()))

    def documents(self, spec: ModelSpec, card: ModelCard, texts: Sequence[str]) -> Encoded:
        """Encode texts."""
        return self._encoded(self._card(spec, card), texts, card.document_prompt, self.gpus)

    def encode(self, card: ModelCard, texts: Sequence[str], prompt: str) -> Encoded:
        """Encode a few texts, mostly queries, on the CPU."""
        return self._encoded(card, texts, prompt, None)

    def _card(self, spec: ModelSpec, card: ModelCard) -> ModelCard:
        return card_for(spec, card.snapshot, self.gpus.devices) if self.gpus else card

    def _encoded(self, card: ModelCard, texts: Sequence[str], prompt: str, gpus: GpuJobs | None) -> Encoded:
        """Encode `texts` [n] behind `prompt`, cut at the model's limit."""
        slices = [(first, part, _file(card, part, prompt, gpus)) for first, part in _slices(texts)]
        known = {file: found for _, _, file in slices if (found := _kept(file)) is not None}
        missing = {file: part for _, part, file in slices if file not in known}
        done = len(texts) - sum(len(part) for part in missing.values())
        for file, found in self._computed(card, missing, prompt, gpus):
            known[file] = found
            with suppress(InterlockError):  # it can be computed again
                if not found.rows.refused(card.dim):
                    _keep(file, found)
            self.tell(card.key, done := done + len(found.rows), len(texts))
        pieces = [(np.arange(first, first + len(part)), known[file].rows) for first, part, file in slices]
        return Encoded(pieces[0][1].joined(len(texts), pieces), sum(known[file].seconds for _, _, file in slices))

    def _computed(
        self, card: ModelCard, missing: Mapping[Path, Sequence[str]], prompt: str, gpus: GpuJobs | None
    ) -> Iterator[tuple[Path, Encoded]]:
        """Encode slices: on GPUs in passes of `TOGETHER` of them, on the CPU one by one under one lease. What a job
        took counts to each slice by its share of the texts."""
        left = iter(missing.items())
        with HeldJobs(self.lessor, kept=True) as host:
            on: TextJobs = gpus or host
            while group := dict(islice(left, TOGETHER if gpus else 1)):
                texts = [text for part in group.values() for text in part]
                (found,) = on.compute([on.job(card, prompt, texts)])
                start = 0
                for file, part in group.items():
                    rows = found.rows.taken(np.arange(start, start + len(part)))
                    yield file, Encoded(rows, found.seconds * len(part) / len(texts))
                    start += len(part)


def _slices(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for first in range(0, len(texts), SLICE):
        yield first, texts[first : first + SLICE]


def _file(card: ModelCard, texts: Sequence[str], prompt: str, gpus: GpuJobs | None) -> Path:
    heads = {str(head): digest for head, digest in card.snapshot.head_digests.items()}
    about = [
        *filter(None, [card.tokens_digest]),
        FORM,
        card.snapshot.fingerprint,
        card.dtype,
        card.max_tokens,
        card.outputs,
        heads,
        prompt,
    ]
    about += [card.tokens_digest] if card.tokens_digest else []
    about = [gpus.devices[0].label, *about] if gpus else about
    said = hashlib.sha256(json.dumps([*about, str(card.by_token), str(card.terms)]).encode())
    for text in texts:
        said.update(hashlib.sha256(text.encode()).digest())
    return model_cache() / "judged" / card.snapshot.fingerprint[:16] / f"{said.hexdigest()}.npz"


def _keep(file: Path, found: Encoded) -> None:
    arrays: dict[str, Any] = {"seconds": np.array(found.seconds)}
    if found.rows.dense is not None:
        arrays["dense"] = found.rows.dense
    if (terms := found.rows.terms) is not None:
        arrays |= {"starts": terms.starts, "indices": terms.indices, "values": terms.values, "empty": terms.parked}
    if (tokens := found.rows.tokens) is not None:
        arrays |= {"token_starts": tokens.starts, "records": tokens.records, "without": tokens.parked}
    with atomic.explaining(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(file) as partial, partial.open("wb") as handle:
        np.savez(handle, **arrays)


def _kept(file: Path) -> Encoded | None:
    """What was kept in `file`; None where that is nothing whole."""
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(file) as found:
        terms = tokens = None
        if "starts" in found:
            terms = SparseRows(found["starts"], found["indices"], found["values"], found["empty"])
        if "records" in found:
            tokens = TokenRows(found["token_starts"], found["records"], found["without"])
        return Encoded(Outputs(found.get("dense"), terms, tokens), float(found["seconds"]))
    return None


def sides_of(
    encoder: TextEncoder,
    models: Sequence[tuple[ModelSpec, ModelCard]],
    weights: Sequence[float],
    texts: Sequence[str],
    queries: Sequence[str],
    delivered: DeliveredCollection | None,
    asking: Mapping[str, ModelCard] = {},  # never written to
) -> tuple[list[DenseSide], list[SparseSide]]:
    """Encode queries (by the cards that are `asking`, if any), and texts unless a run has delivered what these models
    give of them; `weights` are those of the dense ones. Raises UsageError where a dense model has no vector of one."""
    dense, sparse = list[DenseSide](), list[SparseSide]()
    for spec, card in models:
        name = name_of_output(spec.key, "sparse", spec.kind)
        tokens = None
        if delivered:
            vectors, terms = delivered.dense.get(card.key), delivered.sparse.get(name)
            cost = delivered.costs[card.key]
        else:
            made = encoder.documents(spec, card, texts)
            vectors, terms, tokens = made.rows.dense, made.rows.terms, made.rows.tokens
            cost = SideCost(made.seconds, device=encoder.device)
        if spec.gives == ("sparse",) and table_of(card):
            asked = Encoded(Outputs(terms=weigh_queries(card, queries, encoder.lessor)), 0.0)
        else:
            asked = encoder.encode(asking.get(card.key, card), queries, card.query_prompt)
        cost = replace(cost, query_ms=1000 * asked.seconds / max(1, len(queries)))
        if "dense" in spec.gives:
            documents, own = (_finite(card.key, each) for each in (vectors, asked.rows.dense))
            width = documents.shape[1]
            own = truncate(own, width) if width < own.shape[1] else own
            dense.append(DenseSide(card.key, weights[len(dense)], documents, own, cost, spec.matryoshka, tokens))
        if "sparse" in spec.gives:
            assert terms is not None and asked.rows.terms is not None, "a sparse model weighs terms"
            sparse.append(SparseSide(name, terms, asked.rows.terms, cost))
    return dense, sparse


def _finite(model: str, vectors: Vectors | None) -> Vectors:
    assert vectors is not None, "a dense model has vectors"
    if wrong := int((~np.isfinite(vectors).all(axis=1)).sum()):
        raise UsageError(f"{model} gives no finite vector for {wrong} of the texts: drop it from --roster")
    return vectors


def bm25_side(texts: Sequence[str], queries: Sequence[str], language: str) -> SparseSide:
    """Weigh the words of texts and queries as a store's BM25 vectors and its IDF do."""
    words = Words(language=language)
    counts = WordCounts(words)
    counts.add(texts)
    weights = counts.bm25(np.arange(len(texts), dtype=np.int32))
    rows = [weights.of(text).get(BM25) for text in texts]
    documents = _rows([each.indices if each else [] for each in rows], [each.values if each else [] for each in rows])
    terms, frequencies = Postings(documents).frequencies()
    # The inverse document frequency as Qdrant counts it; a query's words that no text has weigh nothing.
    idf = np.log1p((len(texts) - frequencies + 0.5) / (frequencies + 0.5))
    known = dict(zip(terms.tolist(), idf.tolist(), strict=True))
    engine = words.engine(words.k, words.b, 1.0)
    own = [sorted({*engine.embed_query(query).indices} & known.keys()) for query in queries]
    asked = _rows(own, [[known[term] for term in each] for each in own])
    return SparseSide(BM25, documents, asked, SideCost(0.0, 0.0))


def _rows(indices: Sequence[Any], values: Sequence[Any]) -> SparseRows:
    starts = starts_of([len(each) for each in indices])
    terms = np.concatenate([np.empty(0, np.int64), *(np.asarray(each, np.int64) for each in indices)])
    weights = np.concatenate([np.empty(0, np.float32), *(np.asarray(each, np.float32) for each in values)])
    return SparseRows(starts, terms, weights, np.zeros(len(indices), np.bool_))


def late_scores(tokens: TokenRows, places: Mapping[str, int], asked: TokenRows, first: Lists) -> Rescored:
    """Score each query's candidates by late interaction, as a store with int8 token vectors does; `places` are those of
    texts in `tokens`."""
    began, scored = time.process_time(), list[dict[str, float]]()
    for at, hits in enumerate(first):
        own = asked.taken(np.array([at])).to_float32()
        scores = maxsim(own, tokens.taken(np.array([places[id] for id in hits], np.int64)))
        scored.append({id: float(score) for id, score in zip(hits, scores, strict=True) if np.isfinite(score)})
    took = 1000 * (time.process_time() - began) / max(1, len(first))
    return Rescored(scored, took, tokens.records.nbytes / max(1, len(tokens)))
