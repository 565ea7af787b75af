"""Search for notebooks and scripts: one question, or a store and its models that stay open between questions."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from interlock.api import DEFAULTS, Settings, configured, warned
from interlock.console.answering import Answering, ask_of, rerank_of
from interlock.console.text.answer_text import cut_text
from interlock.engine.errors import UsageError
from interlock.engine.record.inputs import store_of
from interlock.engine.record.words import several
from interlock.recorded import AnyPath, RecordedRun
from interlock.wording import path_of, telling

if TYPE_CHECKING:
    from interlock.engine.search.hits import Answer, Hit


Conditions = str | Sequence[str] | Mapping[str, str | float | list[str | float]]
"""Conditions on payloads: "metadata.lang=en", several of these, or the value (or one of a list) by key."""


class Searcher:
    """Holds a store and the models that questions to it go through, under one lease; a context manager.

    The models are loaded with the first question: the next ones find them in memory. The store can be opened by nobody
    else meanwhile.
    """

    def __init__(
        self,
        store: RecordedRun | AnyPath,
        *,
        collection: str | None = None,
        weights: Mapping[str, float] | None = None,
        only: str | None = None,
        hybrid: Literal["weighted", "rrf", "dbsf", "off"] | None = None,
        sparse_share: float | None = None,
        where: Conditions = (),
        rerank: str | Sequence[str] = (),
        rerank_share: float | None = None,
        rerank_depth: int | None = None,
        settings: Settings = DEFAULTS,
        keep: bool = True,
    ) -> None:
        """Open a store, or the one that a run wrote; without `keep` models come and go with each question.

        `collection` is needed where the store holds several: its name, or the one that Qdrant has of it. Questions are
        encoded as the store's texts were; rows of `settings.models` say where models are.

        `weights` are those of the dense models (those of the run), `only` names one model's vectors or terms, or
        "bm25". A store with sparse vectors is searched by them too: their list and the dense one become one by `hybrid`
        ("weighted": scores from 0 to 1, of which the sparse ones count `sparse_share`, 0.2). `where` has conditions on
        payloads: "metadata.lang=en", several of these, or `{"metadata.lang": "en"}`, with values as they are.

        With `rerank`, a cross-encoder or several in the order in which they are tried, the best `rerank_depth` chunks
        (50) are scored anew and come as `RankedHit`s: their scores are blended, the new ones counting `rerank_share`
        (0.2). `rerank="maxsim"`, or a model whose token vectors the store has, compares those with the question's
        tokens (0.3). Where no cross-encoder can score them a RuntimeWarning says why, and the order is that of the
        search.

        Raises UsageError for a store or collection that is not there or in use and for a row that says something else
        than the store, UnavailableError for a model that is not there. A store that was delivered without some models
        (`Settings.allow_missing`) is told of in a RuntimeWarning.
        """
        configuration = configured(settings)
        directory = _directory(store)
        names = [rerank] if isinstance(rerank, str) else list(rerank)
        with telling():
            self._ask = ask_of(1, weights, only, hybrid, sparse_share, where)
            blended = rerank_of(configuration, names, rerank_share, rerank_depth)
            self._answering = Answering(
                configuration, directory, collection, blended, warned, settings.models, kept=keep
            )
        if gap := self._answering.searcher.manifest.gap:
            warnings.warn(gap, RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        searcher = self._answering.searcher
        if searcher.closed:
            return f"<searcher of {searcher.store.path}: closed>"
        models = ", ".join(f"{name} {weight:.2g}" for name, weight in searcher.manifest.weights.items())
        loaded = f"{', '.join(self.resident)} in memory" if self.resident else "no model in memory"
        return f"<searcher of {searcher.store.path}: {several(searcher.store.count(), 'chunk')}, {models}; {loaded}>"

    def close(self) -> None:
        """Let models and store go."""
        self._answering.close()

    @property
    def resident(self) -> list[str]:
        """The store's models that are in memory."""
        return self._answering.searcher.resident

    def search(self, query: str, limit: int = 5) -> "Sequence[Hit]":
        """Return the `limit` best chunks for a question, best first. Raises as this does when it is made, and
        UsageError for an empty question."""
        (answer,) = self.answers([query], limit)
        return answer.hits

    def answers(self, queries: Sequence[str], limit: int = 5) -> "Iterator[Answer]":
        """Encode all questions, one model after the other, and yield the answer to each in turn."""
        if isinstance(queries, str):
            raise UsageError("queries: expected a list of texts: pass one text to `search`")
        with telling():
            windows = self._answering.windows(list(queries), self._ask.to(limit))
            for answer in (answer for found in windows for answer in found.answers):
                if answer.cut:
                    warnings.warn(cut_text([answer.cut], 1), RuntimeWarning, stacklevel=2)
                yield answer


def search(
    store: RecordedRun | AnyPath,
    query: str,
    *,
    collection: str | None = None,
    limit: int = 5,
    weights: Mapping[str, float] | None = None,
    only: str | None = None,
    hybrid: Literal["weighted", "rrf", "dbsf", "off"] | None = None,
    sparse_share: float | None = None,
    where: Conditions = (),
    rerank: str | Sequence[str] = (),
    rerank_share: float | None = None,
    rerank_depth: int | None = None,
    settings: Settings = DEFAULTS,
) -> "Sequence[Hit]":
    """Return the `limit` best chunks for `query` in a store, or in the store that a run wrote, best first.

    Arguments and errors are those of `Searcher`, which is the better one for several questions.
    """
    with Searcher(
        store,
        collection=collection,
        weights=weights,
        only=only,
        hybrid=hybrid,
        sparse_share=sparse_share,
        where=where,
        rerank=rerank,
        rerank_share=rerank_share,
        rerank_depth=rerank_depth,
        settings=settings,
        keep=False,
    ) as searcher:
        return searcher.search(query, limit)


def _directory(store: RecordedRun | AnyPath) -> Path:
    if not isinstance(store, RecordedRun):
        return path_of(store, "store")
    if directory := store_of(store.summary, store.path):
        return directory
    raise UsageError(f"run {store.id} wrote no store: use Settings(qdrant=...)")
