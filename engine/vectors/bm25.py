"""BM25 as a sparse vector of the store, which needs no model: what Qdrant calls `Qdrant/bm25`, by its own engine.

A document has a weight for each of its words, saturated and set against the average length; a query has 1 for each of
its own; how rare a word is (IDF) the store weighs in when it is searched. Words are runs of letters and digits in lower
case, without stop words, stemmed by Snowball; an index is the absolute value of a word's 32-bit MurmurHash3.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from interlock.engine.corpus.places import Spool, windows
from interlock.engine.vectors import NO_LANGUAGE
from interlock.engine.vectors.points import Terms

if TYPE_CHECKING:
    import qdrant_edge as edge

BM25 = "bm25"
"""The name of its vectors."""
LINEAR = 1e6  # as saturation it leaves counts all but as they are, well within what a float32 tells apart


class Words(Struct, frozen=True, kw_only=True):
    """What makes words of a text, for documents and queries alike, and what weighs them in a document.

    `language` is one of LANGUAGES, or `none`: no stop words then, and no stems.
    """

    model: Literal["Qdrant/bm25"] = "Qdrant/bm25"
    language: str
    tokenizer: Literal["word"] = "word"
    lowercase: Literal[True] = True
    k: Annotated[float, Meta(ge=0)] = 1.2
    b: Annotated[float, Meta(ge=0, le=1)] = 0.75

    def engine(self, k: float, b: float, average: float) -> "edge.Bm25":
        """Make the engine's own model of documents that have `average` words."""
        import qdrant_edge as edge

        stemmed = self.language != NO_LANGUAGE
        return edge.Bm25(
            edge.Bm25Config(
                k=k,
                b=b,
                avg_len=average,
                tokenizer=edge.TokenizerType.Word,
                lowercase=self.lowercase,
                language=self.language if stemmed else None,
                stemmer=None if stemmed else edge.DisabledStemmer(),
                stopwords=None if stemmed else edge.StopwordsSet(set(), set()),
            )
        )


class WordCounts:
    """How many words each distinct text of a corpus has, in the order in which they come."""

    def __init__(self, words: Words) -> None:
        self._words, self._counts = words, Spool(np.int32)
        self._engine = words.engine(k=LINEAR, b=0.0, average=1.0)

    def add(self, texts: Iterable[str]) -> None:
        """Count the words of further texts."""
        self._counts.add(np.array([*map(self.of, texts)], np.int32).tobytes())

    def of(self, text: str) -> int:
        """Count the words of a text."""
        weights = np.array(self._engine.embed_document(text).values)
        return int(np.rint(weights * LINEAR / (LINEAR + 1 - weights)).sum())

    def bm25(self, texts: NDArray[np.int32], elsewhere: Mapping[str, int] = {}) -> "WordWeights":
        """Make the vectors of a collection whose rows have these `texts` [n], by number; `elsewhere` are the `chunks`
        of other shards, and their `words`."""
        counts = self._counts.records
        every = windows(0, len(texts), counts, texts)
        words = sum(int(counts[texts[part]].sum(dtype=np.int64)) for part in every) + elsewhere.get("words", 0)
        chunks = len(texts) + elsewhere.get("chunks", 0)
        return WordWeights(words=self._words, average_length=words / max(1, chunks) or 1.0)


class WordWeights(Struct, frozen=True, kw_only=True, dict=True):
    """The vectors of a collection whose texts have `average_length` words on average; above 0."""

    words: Words
    average_length: float

    def of(self, text: str) -> Mapping[str, Terms]:
        """Return the vector of a text by its name; nothing where it has no words."""
        found = self._engine.embed_document(text)
        order = np.argsort(found.indices)
        if not len(order):
            return {}
        return {BM25: Terms(np.array(found.indices, np.int64)[order], np.array(found.values, np.float32)[order])}

    @cached_property
    def _engine(self) -> "edge.Bm25":
        return self.words.engine(self.words.k, self.words.b, self.average_length)
