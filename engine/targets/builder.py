"""Makes deliveries of what a session has read and computed: passes' vectors, words counted for BM25, and chunks' terms.

The terms that chunks bring along are kept from when they are read until they are delivered, in a file of the session's
scratch; a word is counted once for each distinct text.
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.compute.parts.terms import SparseFile
from interlock.engine.compute.parts.tokens import TokenFile
from interlock.engine.corpus.corpus import Beside, Corpus, Rows
from interlock.engine.corpus.features import features_of, no_features
from interlock.engine.models.registry import name_of_output
from interlock.engine.targets.windows import ChunkTerms, Delivery
from interlock.engine.vectors.bm25 import WordCounts, Words, WordWeights
from interlock.engine.vectors.fusion import Vectors
from interlock.engine.vectors.manifest import CollectionSpec


class DeliveryBuilder:
    """Sees texts and chunks while they are read, for BM25 of `language` and for what chunks bring as `chunk_sparse`; ""
    is neither."""

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

    def delivery(self, rows: Rows, corpus: Corpus, passes: Sequence[PassFiles], spec: CollectionSpec) -> Delivery:
        """Put together what is delivered of a collection: what its texts have in the `passes`, in the order of the
        roster of its `spec`, and what was seen."""
        dense, sparse, tokens = dict[str, Vectors](), dict[str, SparseFile](), dict[str, TokenFile]()
        for entry, files in zip(spec.roster, passes, strict=True):
            if files.dense:
                dense[entry.model] = files.dense.array
            if files.terms:
                sparse[name_of_output(entry.model, "sparse", entry.kind)] = files.terms
            if files.tokens:
                tokens[name_of_output(entry.model, "tokens", entry.kind)] = files.tokens
        first = sum(each.chunks for each in takewhile(lambda each: each is not rows, corpus.rows))
        return Delivery(rows, corpus.digests, spec, dense, sparse, tokens, self._terms, first)

    @property
    def missed(self) -> str:
        """Tell of terms that are asked for and that no chunk brings; empty: there are some, or none are asked for."""
        if self._terms is None or self._terms.count:
            return ""
        return f"--chunk-sparse {self.chunk_sparse}: no chunk brings sparse_features, so these vectors are all empty"
