"""Questions from notebooks and scripts: a store and its models, or a cross-encoder, which stay open between them, until
their caller closes them, lets them go or the process ends.
"""

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Literal, Self, TypedDict, Unpack

from interlock.api import DEFAULTS, Settings, check_kind, check_side, configured, names_in, warned
from interlock.console.text.answer_text import cut_text
from interlock.engine.corpus.tokens import texts_in
from interlock.engine.errors import UsageError
from interlock.engine.parsers import path_of
from interlock.engine.record.events import RunResumed, RunStarted
from interlock.engine.record.inputs import store_of
from interlock.engine.record.words import several
from interlock.engine.search.options import Conditions, SearchRules
from interlock.engine.targets.connection import is_address
from interlock.recorded import AnyPath, RecordedRun
from interlock.wording import in_python, python_wording

if TYPE_CHECKING:
    from interlock.engine.flows.search import Answers
    from interlock.engine.search.hits import Answer, EncodedTexts, Hit
    from interlock.engine.search.served import ServerPlace


class OpenResource:
    """What one process holds open, and its threads use one after the other; a context manager."""

    _holds = ""

    def __init__(self, release: Callable[[], object]) -> None:
        self._process, self._lock, self._closed = os.getpid(), RLock(), False
        self._release = weakref.finalize(self, _let_go, release, self._process, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> object:
        raise TypeError(f"a {type(self).__name__} is open in one process: make another where it is needed")

    def close(self) -> None:
        """Let what is held go, once no thread is at it. A fork of the process leaves it to that."""
        if os.getpid() == self._process:
            with self._lock:
                self._closed = True
                self._release()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other thread is at it. Raises UsageError where it is not open, or not in this process."""
        self._check()  # at first without the lock, which another thread may have had in the moment of the fork
        with self._lock, python_wording():
            self._check()
            yield

    def _check(self) -> None:
        name = type(self).__name__
        if os.getpid() != self._process:
            raise UsageError(
                f"the {self._holds} is open in the process that this one was forked from: use a {name} of its own"
            )
        if self._closed:
            raise UsageError(f"the {self._holds} was closed: use another {name}")


def _let_go(release: Callable[[], object], process: int, lock: "RLock") -> None:
    """Let go what nobody holds any more, or has left open at the end of its process, unless a thread is at it."""
    if os.getpid() == process and lock.acquire(blocking=False):
        try:
            release()
        finally:
            lock.release()


class ServerOptions(TypedDict, total=False):
    """How a Qdrant server is asked, where a URL names one; `Searcher` says what each means."""

    api_key_file: AnyPath | None
    patience: float
    projection: AnyPath | None
    exact: bool


class SearchOptions(ServerOptions, SearchRules, total=False):
    """What a search may be told beside its store; `Searcher` says what each means."""

    collection: str | None
    copy: bool


class Searcher(OpenResource):
    """Holds a store and the models that questions to it go through, under one lease; a context manager.

    The models are loaded with the first question: the next ones find them in memory. Other Searchers of this process
    may hold the store too, another process only a copy of it. Threads may share one, and are answered one after the
    other; a fork may not. One that is left open is closed at the end of its process.
    """

    _holds = "store"

    def __init__(
        self,
        store: RecordedRun | AnyPath,
        *,
        settings: Settings = DEFAULTS,
        keep: bool = True,
        **options: Unpack[SearchOptions],
    ) -> None:
        """Open a store, or the one that a run wrote; without `keep` models come and go with each question. With `copy`
        a copy of it in TMPDIR is opened, so that others may read it and a run may write to it, which is not seen here.

        `collection` is needed where the store holds several: its name, or the one that Qdrant has of it. Questions are
        encoded as the store's texts were; rows of `settings.models` say where models are.

        `weights` are those of the dense models (those of the run), `only` names one model's vectors or terms, or
        "bm25". A store with sparse vectors is searched by them too: their list and the dense one become one by `hybrid`
        ("weighted": scores from 0 to 1, of which the sparse ones count `sparse_share`, None for the store's: 0.25,
        or 0.2 of one of an earlier version). `where` has conditions on payloads: "metadata.lang=en", several of these,
        or `{"metadata.lang": "en"}`: a text is that text alone, a number or a truth also the text that says it.

        With `rerank`, a cross-encoder or several in the order in which they are tried, the best `rerank_depth` chunks
        (50) are scored anew and come as `RankedHit`s: their scores are blended, the new ones counting `rerank_share`
        (0.2). `rerank="maxsim"`, or a model whose token vectors the store has, compares those with the question's
        tokens (0.3). Where no cross-encoder can score them a RuntimeWarning says why, and the order is that of the
        search.

        `store` may be the URL of a Qdrant server with a collection that `interlock.upload` made. The key comes from
        QDRANT_API_KEY or from `api_key_file`; a server that does not answer is asked for `patience` seconds (10). It
        answers by its indexes, or with `exact` looks at every point; `projection` is the run's `projection.npy`, where
        its fused vectors were projected.

        Raises UsageError for a store or collection that is not there or in use and for a row that says something else
        than the store, UnavailableError for a model that is not there. A store that was delivered without some models
        (`Settings.allow_missing`) is told of in a RuntimeWarning.
        """
        if unknown := options.keys() - SearchOptions.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        from interlock.engine.flows.rerank import rerank_of  # loads torch
        from interlock.engine.flows.search import Answering
        from interlock.engine.search.ask import ask_of
        from interlock.engine.search.served import StoreCopy

        configuration = configured(settings)
        place = _served(store, options) or (StoreCopy if options.get("copy") else Path)(_directory(store))
        if options.get("copy") and not isinstance(place, StoreCopy):
            raise UsageError("copy: a server has many readers: drop it")
        check_kind(str, "a text", collection=options.get("collection"))
        check_kind(Real, "a number", sparse_share=options.get("sparse_share"))
        names = names_in(options.get("rerank") or (), "rerank")
        with python_wording():
            ways = options.get("weights"), options.get("only"), options.get("hybrid"), options.get("sparse_share")
            self._ask = ask_of(1, *ways, options.get("where", ()))
            reranking = rerank_of(configuration, names, options.get("rerank_share"), options.get("rerank_depth"))
            self._answering = Answering(
                configuration, place, options.get("collection"), reranking, warned, settings.models, kept=keep
            )
        super().__init__(self._answering.close)
        if gap := self._answering.searcher.manifest.gap:
            warnings.warn(gap, RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        searcher = self._answering.searcher
        if searcher.closed:
            return f"<searcher of {searcher.store.where}: closed>"
        models = ", ".join(f"{name} {weight:.2g}" for name, weight in searcher.manifest.weights.items())
        loaded = f"{', '.join(self.resident)} in memory" if self.resident else "no model in memory"
        return f"<searcher of {searcher.store.where}: {several(searcher.store.count(), 'chunk')}, {models}; {loaded}>"

    @property
    def resident(self) -> list[str]:
        """The store's models that are in memory."""
        return self._answering.searcher.resident

    def search(self, query: str, limit: int = 5, *, where: Conditions | None = None) -> "Sequence[Hit]":
        """Return the `limit` best chunks for a question, best first: `score` orders them, `cosine` says how near each
        is; of those for which `where` holds, in place of what this was made with. Raises as this does when it is made,
        and UsageError for an empty question."""
        from interlock.engine.search.ask import check_question

        check_question(query)
        (answer,) = self.answers([query], limit, where=where)
        return answer.hits

    def encode(
        self, texts: Iterable[str], side: Literal["query", "document"] = "query", *, only: str = ""
    ) -> "EncodedTexts":
        """Encode texts as `interlock.encode` does, with models that stay in memory."""
        with self._turn():
            check_side(side)
            check_kind(str, "a text", only=only)
            encoded = self._answering.searcher.encode(texts, side, only)
        return _warned_of(encoded)

    def answers(self, queries: Iterable[str], limit: int = 5, *, where: Conditions | None = None) -> "Iterator[Answer]":
        """Encode all questions, one model after the other, and yield the answer to each in turn; `where` as `search`
        takes it."""
        from interlock.engine.search.conditions import conditions_in

        if isinstance(queries, str):
            raise UsageError("queries: expected a list of texts: pass one text to `search`")
        with python_wording():
            ask = self._ask if where is None else replace(self._ask, where=conditions_in(where))
            windows = self._answering.windows(texts_in(queries, "queries"), ask.to(limit))
        while found := self._next(windows):
            for answer in found.answers:
                none = f"no chunk found: {in_python(answer.why_none)}" * bool(answer.why_none)
                for told in filter(None, (cut_text([answer.cut], 1), none)):
                    warnings.warn(told, RuntimeWarning, stacklevel=2)
                yield answer

    def _next(self, windows: "Iterator[Answers]") -> "Answers | None":
        with self._turn():
            return next(windows, None)


def encode(
    place: RecordedRun | AnyPath,
    texts: Iterable[str],
    side: Literal["query", "document"] = "query",
    *,
    collection: str | None = None,
    only: str = "",
    settings: Settings = DEFAULTS,
    **options: Unpack[ServerOptions],
) -> "EncodedTexts":
    """Encode `texts` as a search encodes its questions, or with "document" as the run encoded its chunks: the vectors
    that the points of a run, a store or a collection of a server (its URL) have, by their names, row i that of text i.

    The models, prompts, weights and projection are those of the collection, which no one has to open: a run or a
    search may use it meanwhile. `only` names one vector (`fused`, a model's, `bm25`), which needs its models alone.
    64 texts or more are computed on the GPUs of the settings. Terms that chunks brought are of no model, and not among
    what comes. A RuntimeWarning says which texts are longer than a model reads, and what cannot be made.

    Raises UsageError for texts that are none, for a run that has delivered nothing, and where a model here is another
    one than that of the collection; UnavailableError for one that is not there.
    """
    from interlock.engine.flows import Listener  # loads torch
    from interlock.engine.flows.search import encode_for

    configuration, found = configured(settings), _served(place, options) or _place(place)
    with python_wording():
        check_side(side)
        check_kind(str, "a text", collection=collection, only=only)
        listener = Listener(warned)
        encoded = encode_for(configuration, found, collection, texts, side, only, listener, settings.models)
    return _warned_of(encoded)


def _warned_of(encoded: "EncodedTexts") -> "EncodedTexts":
    for told in filter(None, (cut_text(encoded.cut, len(encoded), "text"), in_python(encoded.lacks))):
        warnings.warn(told, RuntimeWarning, stacklevel=3)
    return encoded


def search(
    store: RecordedRun | AnyPath,
    query: str,
    *,
    limit: int = 5,
    settings: Settings = DEFAULTS,
    **options: Unpack[SearchOptions],
) -> "Sequence[Hit]":
    """Return the `limit` best chunks for `query` in a store, or in the store that a run wrote, best first.

    Arguments and errors are those of `Searcher`, which is the better one for several questions.
    """
    with Searcher(store, settings=settings, keep=False, **options) as searcher:
        return searcher.search(query, limit)


def _served(place: object, options: ServerOptions) -> "ServerPlace | None":
    """The server that a URL names; None for anything else."""
    if not isinstance(place, str) or not is_address(place):
        return None
    from interlock.engine.search.served import ASKING, ServerPlace

    files = [path_of(each, name) if (each := options.get(name)) else None for name in ("api_key_file", "projection")]
    return ServerPlace(place, files[0], options.get("patience", ASKING), files[1], options.get("exact", False))


def _place(place: RecordedRun | AnyPath) -> Path:
    return place.path if isinstance(place, RecordedRun) else path_of(place, "place")


def _directory(store: RecordedRun | AnyPath) -> Path:
    if not isinstance(store, RecordedRun):
        return path_of(store, "store")
    sessions = [each.body for each in store.events() if isinstance(each.body, RunStarted | RunResumed)]
    if not sessions:
        raise UsageError(f"run {store.id} has not started: wait until it has")
    if directory := store_of(sessions[-1].config, sessions[0].run_id, store.path):
        return directory
    raise UsageError(f"run {store.id} wrote no store: use Settings(qdrant=...); embedding again takes its vectors")


class Reranker(OpenResource):
    """Holds a cross-encoder for as many questions as there are; a context manager, which unloads it at its end.

    It is loaded with the first question: on a GPU where it fits, else on the CPU. Threads may share it, a fork may not.
    """

    _holds = "reranker"

    def __init__(self, model: str | Sequence[str], *, settings: Settings = DEFAULTS) -> None:
        """`model` is a key of the registry, a source or a directory, or several: the first that can be had is taken."""
        from interlock.engine.flows.rerank import free_devices, rerankers  # loads torch

        names = names_in(model, "model")
        configuration, stack = configured(settings), ExitStack()
        with python_wording():
            on = stack.enter_context(free_devices(configuration, warned))
            self._models = stack.enter_context(rerankers(configuration, names, on))
        super().__init__(stack.close)

    def score(self, query: str, texts: Iterable[str]) -> list[float]:
        """Score how well each of `texts` answers `query`, in their order: the higher the better.

        Raises UsageError for what is no text, UnavailableError where no model can be had, InterlockError where none
        gives scores.
        """
        from interlock.engine.search.ask import check_question

        with self._turn():
            check_question(query)
            return [float(score) for score in self._models.score([(query, text) for text in texts_in(texts)])]


def rerank(
    query: str, texts: Iterable[str], *, model: str | Sequence[str], settings: Settings = DEFAULTS
) -> list[tuple[int, float]]:
    """Order `texts` by how well they answer `query`: their places in `texts` with their scores, best first.

    Arguments and errors are those of `Reranker`, which is the better one for several questions.
    """
    with Reranker(model, settings=settings) as reranker:
        scores = reranker.score(query, texts)
    return sorted(enumerate(scores), key=lambda each: -each[1])
