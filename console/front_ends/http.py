"""The door for other programs: `/v1/embeddings` as OpenAI's clients ask it, and `/search`, over one collection.

What arrives together is computed together, by one thread; what would wait too long is refused at once. Every error is
OpenAI's `{"error": {"message": ...}}` and says what to do.
"""

import asyncio
import base64
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from interlock.console.front_ends.connections import SLOW, Admission
from interlock.console.text.answer_text import cut_text, plain_hit
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.flows.search import Service
from interlock.engine.search.ask import LIMIT, Ask, ask_of, check_question
from interlock.engine.search.batching import QueueFull, RequestBatcher
from interlock.engine.search.encoding import check_texts
from interlock.engine.search.hits import Answer, Side

MOST_BYTES, MOST_TEXTS, MOST_HITS = 4 << 20, 2048, 10_000
"""Bytes, texts and hits of a request, and texts of a batch, at most; so many texts as OpenAI takes."""
SMALL = 32
"""Vectors that are written at once; of more a thread does it, so that others are heard meanwhile."""
MOST_CONDITIONS = 100
"""Of a search: the store is asked about each, while everybody else waits."""
SIDES: tuple[Side, ...] = ("query", "document")
_FLAG = re.compile(r"--([a-z][a-z-]*)")
T = TypeVar("T", bound=msgspec.Struct)
Handler = Callable[[Request], Awaitable[Response]]


class EmbeddingsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What `/v1/embeddings` takes."""

    input: str | list[str | int | list[int]]
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class SearchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What `/search` takes, named as in Python."""

    query: str | list[str]
    limit: int = LIMIT
    weights: dict[str, float] | None = None
    only: str | None = None
    hybrid: str | None = None
    sparse_share: float | None = None
    where: str | list[str] | dict[str, bool | str | int | float | list[bool | str | int | float]] = msgspec.field(
        default_factory=list
    )
    rerank: bool | None = None


class Refused(Exception):
    """What a client is told in place of an answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclass(frozen=True)
class _Vectors:
    """What is wanted of texts: one vector, as a question or as a chunk."""

    side: Side
    name: str


@dataclass(frozen=True)
class _Answers:
    """What is wanted of questions, which are alike where the same was `said`."""

    said: bytes
    ask: Ask = field(compare=False)
    reranked: bool = field(compare=False)


class Door:
    """Answers the requests of one service; its `app` is ASGI's."""

    def __init__(self, service: Service, waiting: int, admission: Admission) -> None:
        """So many texts are `waiting` at most; `admission` says who is answered."""
        self._service, self._admission, self._most = service, admission, min(MOST_TEXTS, waiting)
        name, registry = "interlock_serve", prometheus.CollectorRegistry()
        self._registry = registry
        self._requests = prometheus.Counter(f"{name}_requests", "Requests.", ["path", "code"], registry=registry)
        self._seconds = prometheus.Histogram(f"{name}_seconds", "Seconds to an answer.", ["path"], registry=registry)
        sizes = [2**power for power in range(9)]
        batches = prometheus.Histogram(f"{name}_batch_texts", "Texts of a batch.", buckets=sizes, registry=registry)
        self._batcher = RequestBatcher(self._computed, service.batch, waiting, batches.observe)
        queue = prometheus.Gauge(f"{name}_waiting_texts", "Texts that wait.", registry=registry)
        queue.set_function(lambda: self._batcher.waiting)
        self.app = Starlette(
            routes=[
                self._route("/v1/embeddings", self._embeddings, "POST"),
                self._route("/v1/models", self._models, "GET"),
                self._route("/search", self._search, "POST"),
                self._route("/health", self._health, "GET"),
                self._route("/metrics", self._metrics, "GET"),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    def close(self) -> None:
        """Compute what waits, and end."""
        self._batcher.close()

    def _route(self, path: str, answer: Handler, method: str) -> Route:
        async def handle(request: Request) -> Response:
            began = time.monotonic()
            try:
                if refusal := self._admission.refusal(request.headers, open_to_all=path == "/health"):
                    raise Refused(*refusal, {"WWW-Authenticate": "Bearer"} if refusal[0] == 401 else {})
                response = await answer(request)
            except Exception as error:
                response = _error_of(error)
            self._requests.labels(path, str(response.status_code)).inc()
            self._seconds.labels(path).observe(time.monotonic() - began)
            return response

        return Route(path, handle, methods=[method])

    async def _embeddings(self, request: Request) -> Response:
        asked = await _body(request, EmbeddingsRequest)
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        if not all(isinstance(each, str) for each in texts):
            raise Refused(
                400,
                "input: token ids of another tokenizer mean nothing here: send texts (LangChain: "
                "OpenAIEmbeddings(check_embedding_ctx_length=False))",
            )
        wanted, dims = self._wanted(asked.model), self._service.dims
        if asked.dimensions not in (None, dims[wanted.name]):
            raise Refused(400, f"dimensions: {wanted.name} has {dims[wanted.name]}: drop it")
        rows = await self._result(request, wanted, check_texts(texts))
        if len(rows) <= SMALL:
            return _embedded(asked, rows)
        return await asyncio.to_thread(_embedded, asked, rows)

    def _wanted(self, model: str) -> _Vectors:
        side = next((each for each in SIDES if model.endswith(f":{each}")), None)
        name = model.removesuffix(f":{side}")
        if name not in self._service.dims:
            names = ", ".join(self._service.dims)
            raise Refused(404, f"model {model:.100}: use {names}, and for chunks that name with :document behind it")
        return _Vectors(side or "query", name)

    async def _search(self, request: Request) -> Response:
        asked = await _body(request, SearchRequest)
        queries = [asked.query] if isinstance(asked.query, str) else asked.query
        for query in queries:
            check_question(query)
        if asked.limit * len(queries) > MOST_HITS:
            raise Refused(400, f"limit: {MOST_HITS:,} hits of all queries at most: set a lower one")
        keys = [*asked.where.values()] if isinstance(asked.where, dict) else [asked.where]
        count = sum(len(each) if isinstance(each, list) else 1 for each in keys)
        if count > MOST_CONDITIONS:
            raise Refused(400, f"where: {count:,} conditions: send at most {MOST_CONDITIONS}")
        ways = asked.weights, asked.only, asked.hybrid, asked.sparse_share, asked.where or ()
        reranked = self._service.reranks if asked.rerank is None else asked.rerank
        if reranked and not self._service.reranks:
            raise Refused(400, "rerank: nothing reranks here: start the service with --rerank MODEL")
        said = msgspec.json.encode((asked.limit, *ways, reranked))
        found = await self._result(request, _Answers(said, ask_of(asked.limit, *ways), reranked), queries)
        return _json({"answers": [_plain(*each) for each in found]})

    async def _models(self, request: Request) -> Response:
        names = [f"{name}{side}" for name in self._service.dims for side in ("", ":document")]
        own = {"object": "model", "created": 0, "owned_by": "interlock"}
        return _json({"object": "list", "data": [{"id": name, **own} for name in names]})

    async def _health(self, request: Request) -> Response:
        return _json(
            {"status": "ok", "collection": self._service.manifest.collection, "waiting": self._batcher.waiting}
        )

    async def _metrics(self, request: Request) -> Response:
        encode, kind = prometheus.exposition.choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), media_type=kind)

    async def _result(self, request: Request, wanted: _Vectors | _Answers, texts: Sequence[str]) -> Sequence[Any]:
        """Have texts computed, for as long as the client waits."""
        if len(texts) > self._most:
            raise Refused(413, f"{len(texts):,} texts: send at most {self._most:,} at once")
        future = asyncio.wrap_future(self._batcher.submit(wanted, texts))
        left = asyncio.ensure_future(request.receive())  # nothing comes behind the body but that
        try:
            first: set[asyncio.Future[Any]] = {future, left}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise ClientDisconnect
            return future.result()
        finally:
            left.cancel()
            future.cancel()

    def _computed(self, wanted: _Vectors | _Answers, texts: Sequence[str]) -> Sequence[Any]:
        """Compute one batch: a vector, how many tokens were read for it and which were not, or an answer and what went
        wrong with its order."""
        if isinstance(wanted, _Vectors):
            made = self._service.encode(texts, wanted.side, wanted.name)
            return list(zip(made.dense[wanted.name], made.read, made.cut, strict=True))
        found = self._service.answer(texts, wanted.ask, reranked=wanted.reranked)
        warning = str(found.failure or "")
        return [(answer, warning) for answer in found.answers]


def _embedded(asked: EmbeddingsRequest, rows: Sequence[tuple[Any, int, Mapping[str, int]]]) -> Response:
    """Write vectors as OpenAI does."""
    made, read, cut = zip(*rows, strict=True)
    if lost := [number for number, row in enumerate(made) if not np.isfinite(row).all()]:
        raise Refused(400, f"{asked.model} makes no vector of text {lost[0]}: send others")
    packed = asked.encoding_format == "base64"
    vectors = [base64.b64encode(row.astype("<f4").tobytes()).decode() if packed else row.tolist() for row in made]
    data = [{"object": "embedding", "index": place, "embedding": each} for place, each in enumerate(vectors)]
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(read))
    warnings = {"warnings": [told]} if (told := cut_text(cut, len(rows), "text")) else {}
    return _json({"object": "list", "data": data, "model": asked.model, "usage": usage, **warnings})


def _plain(answer: Answer, warning: str) -> dict[str, object]:
    cut, none = cut_text([answer.cut], 1), answer.why_none
    warnings = [each for each in (cut, warning, f"no chunk found: {none}" if none else "") if each]
    said = {"why_none": none, "warnings": warnings}
    hits = [plain_hit(hit, explained=True) for hit in answer.hits]
    return {"query": answer.text, "hits": hits, **{name: each for name, each in said.items() if each}}


async def _body(request: Request, kind: type[T]) -> T:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "send JSON, with Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(SLOW):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise Refused(413, f"the request is longer than {MOST_BYTES >> 20} MiB: send fewer texts at once")
    except TimeoutError:
        raise Refused(408, f"the request took longer than {SLOW:g} s to arrive: send it again") from None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        known = f"; a request has {', '.join(kind.__struct_fields__)}" if "unknown field" in str(error) else ""
        raise Refused(400, f"not a request: {error}{known}") from None


def _error_of(error: Exception) -> Response:
    """What a client is told; what is nobody's fault but ours is told on stderr."""
    match error:
        case Refused():
            return _failed(error.status, str(error), error.headers)
        case QueueFull():
            return _failed(429, "as many texts wait as may: send it again in a second", {"Retry-After": "1"})
        case ClientDisconnect():
            return Response(status_code=499)
        case UsageError():
            return _failed(400, _FLAG.sub(_as_field, str(error)))
        case InterlockError():
            return _failed(503, _FLAG.sub(_as_field, str(error)))
    traceback.print_exception(error, file=sys.stderr)
    return _failed(500, "a bug: the service's stderr has where")


def _as_field(found: re.Match[str]) -> str:
    return "where" if found[1] == "filter" else found[1].replace("-", "_")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is what this is for"
    asked, headers = f"{request.method} {request.url.path:.100}", error.headers or {}
    use = headers.get("Allow") or "/v1/embeddings, /v1/models, /search, /health or /metrics"
    return _failed(error.status_code, f"{asked}: {error.detail}: use {use}", headers)


def _failed(status: int, message: str, headers: Mapping[str, str] = {}) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    return _json({"error": error}, status, headers)


def _json(said: object, status: int = 200, headers: Mapping[str, str] = {}) -> Response:
    return Response(msgspec.json.encode(said), status, headers, "application/json")
