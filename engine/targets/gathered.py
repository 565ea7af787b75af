"""What a delivery needs of texts and chunks beside the passes' vectors, taken as they are read; and all of it."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.corpus.features import features_of, no_features
from interlock.engine.corpus.reading import Beside
from interlock.engine.models.registry import name_of_output
from interlock.engine.record.facts import MissingModel, RosterEntry
from interlock.engine.targets.windows import ChunkSource, Delivery, ModelVectors, SparseSource, TokenSource
from interlock.engine.vectors.bm25 import WordCounts, Words, WordWeights
from interlock.engine.vectors.chunk_terms import ChunkTerms
from interlock.engine.vectors.form import VectorForm
from interlock.engine.vectors.fusion import Fusion


class Gathered:
    """How many words each text has, for BM25 of `language`, and what chunks bring as `chunk_sparse`; "" is neither."""

    def __init__(self, directory: Path, language: str, chunk_sparse: str) -> None:
        self.chunk_sparse = chunk_sparse
        self._counts = WordCounts(Words(language=language)) if language else None
        self._terms = ChunkTerms(directory) if chunk_sparse else None

    @property
    def beside(self) -> Beside:
        """What has to see the texts and chunks while they are read."""
        return Beside(
            self._counts.add if self._counts else lambda _: None,
            self._terms.add if self._terms else lambda _: None,
            features_of if self._terms else no_features,
        )

    def bm25(self, rows: Rows) -> WordWeights | None:
        """Return what makes the BM25 vectors of a collection, if it is to have any."""
        return self._counts.bm25(rows.texts) if self._counts else None

    def delivery(
        self,
        rows: Rows,
        corpus: Corpus,
        passes: Sequence[PassFiles],
        roster: Sequence[RosterEntry],
        fusion: Fusion,
        form: VectorForm,
        missing: Sequence[MissingModel] = (),
    ) -> Delivery:
        """Put together what is delivered of a collection: what its texts have in the `passes`, in the order of
        `roster`, kept in this form, and what was gathered; `missing` are the models that are in neither."""
        each = list(zip(roster, passes, strict=True))
        dense = [
            ModelVectors(entry.model, entry.weight, files.dense.array, entry.dim)
            for entry, files in each
            if files.dense
        ]
        sparse = [
            SparseSource(name_of_output(entry.model, "sparse", entry.kind), files.terms)
            for entry, files in each
            if files.terms
        ]
        tokens = [
            TokenSource(name_of_output(entry.model, "tokens", entry.kind), files.tokens)
            for entry, files in each
            if files.tokens
        ]
        brought = self._brought(rows, corpus)
        bm25, digests = self.bm25(rows), corpus.digests
        return Delivery(rows, digests, dense, fusion, [*brought, *sparse], tokens, bm25, form, missing=missing)

    def _brought(self, rows: Rows, corpus: Corpus) -> Sequence[ChunkSource]:
        """The terms that the chunks of a collection bring, if they are asked for."""
        first = sum(each.chunks for each in takewhile(lambda each: each is not rows, corpus.rows))
        return [ChunkSource(self.chunk_sparse, self._terms, first)] if self._terms else []

    @property
    def missed(self) -> str:
        """Tell of terms that are asked for and that no chunk brings; empty: there are some, or none are asked for."""
        if self._terms is None or self._terms.count:
            return ""
        return f"--chunk-sparse {self.chunk_sparse}: no chunk brings sparse_features, so these vectors are all empty"
