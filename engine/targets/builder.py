"""Makes deliveries of what a session has read and computed: passes' vectors, words counted for BM25, and chunks' terms.

The terms that chunks bring along are kept from when they are read until they are delivered, in a file of the session's
scratch; a word is counted once for each distinct text.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.chunks import Chunk
from interlock.engine.corpus.corpus import Beside, Corpus, Rows
from interlock.engine.corpus.features import TERM, features_of, no_features
from interlock.engine.corpus.ragged import places_of, starts_of
from interlock.engine.models.registry import name_of_output
from interlock.engine.record import atomic
from interlock.engine.record.facts import MissingModel, RosterEntry
from interlock.engine.targets.windows import Delivery, ModelVectors, Places, SparseSource, TermSource, TokenSource
from interlock.engine.vectors.bm25 import WordCounts, Words, WordWeights
from interlock.engine.vectors.form import VectorForm
from interlock.engine.vectors.fusion import Fusion, shares

BLOCK = 1 << 20


class ChunkTerms:
    """The terms of all chunks of a run, in the order in which they are read."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "chunk-terms.bin"
        self._ends, self._pending = array("q", [0]), bytearray()

    def add(self, chunk: Chunk) -> None:
        """Keep the terms of the next chunk. Raises InterlockError where the disk takes no more."""
        self._pending += chunk.features
        if len(self._pending) > BLOCK:
            self._write()
        self._ends.append(self._ends[-1] + len(chunk.features) // TERM.itemsize)

    @property
    def count(self) -> int:
        """How many terms all chunks have."""
        return self._ends[-1]

    def take(self, rows: Places) -> SparseRows:
        """Read the terms of `rows` [n], counted over all collections; a chunk that brings none has an empty row."""
        self._write()
        ends = np.frombuffer(self._ends, np.int64)
        counts = ends[rows + 1] - ends[rows]
        places = places_of(ends[rows], counts)
        terms = np.memmap(self.path, TERM, "r")[places] if len(places) else np.empty(0, TERM)
        starts = starts_of(counts)
        return SparseRows(starts, terms["index"].astype(np.int64), terms["value"].copy(), np.zeros(len(rows), bool))

    def _write(self) -> None:
        with atomic.explaining(self.path), self.path.open("ab") as out:
            out.write(self._pending)
        self._pending.clear()


@dataclass(frozen=True)
class ChunkSource:
    """The terms that the chunks of a collection bring: a row for each chunk, from `first` on of all that were read."""

    name: str
    terms: ChunkTerms
    first: int
    width: int = 2**32

    def take(self, rows: Places, _texts: Places) -> SparseRows:
        """Read the vectors of `rows` [n]."""
        return self.terms.take(self.first + rows)


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
        `roster`, kept in this form, and what was seen; `missing` are the models that are in neither."""
        dense, sparse, tokens = list[ModelVectors](), list[TermSource](), list[TokenSource]()
        if self._terms:
            first = sum(each.chunks for each in takewhile(lambda each: each is not rows, corpus.rows))
            sparse.append(ChunkSource(self.chunk_sparse, self._terms, first))
        for entry, files in zip(roster, passes, strict=True):
            if files.dense:
                dense.append(ModelVectors(entry.model, entry.weight, files.dense.array, entry.dim))
            if files.terms:
                sparse.append(SparseSource(name_of_output(entry.model, "sparse", entry.kind), files.terms))
            if files.tokens:
                tokens.append(TokenSource(name_of_output(entry.model, "tokens", entry.kind), files.tokens))
        return Delivery(
            rows,
            corpus.digests,
            dense,
            fusion,
            sparse,
            tokens,
            self.bm25(rows),
            form,
            missing=missing,
            chunk_sparse=self.chunk_sparse if self._terms else "",
        )

    @property
    def missed(self) -> str:
        """Tell of terms that are asked for and that no chunk brings; empty: there are some, or none are asked for."""
        if self._terms is None or self._terms.count:
            return ""
        return f"--chunk-sparse {self.chunk_sparse}: no chunk brings sparse_features, so these vectors are all empty"


def remaining(
    roster: Sequence[RosterEntry], without: Sequence[MissingModel], given: Sequence[float] = ()
) -> list[RosterEntry]:
    """Return the models that are left in their order, the dense ones with their shares of the fusion as if they were
    the whole roster; `given` are the weights of the first models, as they were asked for."""
    gone = {each.model_pass for each in without}
    left = {number: entry for number, entry in enumerate(roster) if number not in gone}
    asked = dict(enumerate(given)) if given else {number: entry.weight for number, entry in left.items()}
    dense = [number for number, entry in left.items() if entry.kind == "dense"]
    weights = dict(zip(dense, shares([asked[number] for number in dense]).tolist(), strict=True)) if dense else {}
    return [replace(entry, weight=weights.get(number, entry.weight)) for number, entry in left.items()]
