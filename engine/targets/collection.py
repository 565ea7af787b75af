"""A collection of a Qdrant server as a target: its points, within the limits that it sets."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record.words import human_bytes, several
from interlock.engine.targets.connection import TransientError
from interlock.engine.targets.grpc_port import GrpcPort
from interlock.engine.targets.layout import CollectionLayout
from interlock.engine.targets.server import QdrantServer, RestInstead
from interlock.engine.targets.target import MOST_BYTES, MOST_POINTS, Ids
from interlock.engine.vectors.points import Point, for_client, of_client

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo, Record

PAGE, IDS = 1000, 10_000
"""Points whose ids are read at a time, and that are counted by their ids."""
SLACK = 100_000
"""Points that may come while a collection is listed, beside twice as many as it counts."""
REST_BYTES = MOST_BYTES // 4
"""Of the points of one request by REST: in decimals a number takes more than three times what it takes in memory."""
MOST_DEPTH = 30
"""Of objects in objects in a payload over gRPC: each takes three messages, of which readers take 100 in one another."""
_EXACT = re.compile(r"\b[Ee]xact (search|count)|\bexact ?= ?false")
"""What a server says that lets nobody count exactly."""
T = TypeVar("T")


class ServerCollection(AbstractContextManager["ServerCollection"]):
    """One collection of a server that points go into; a context manager, which ends the connection of gRPC.

    Upserts may be made side by side. `bytes` and `requests` are those of upserts that were done. Limits are those of
    the collection's strict mode, once `obey` has read them; `exact` is whether it counts exactly then.
    """

    def __init__(self, server: QdrantServer, name: str, layout: CollectionLayout) -> None:
        self.name, self._server, self._layout = name, server, layout
        self.where = f"{name} on {server.address.url}"
        self.dims, self.sparse, self.tokens = layout.dense, layout.sparse, layout.tokens
        self.most_points, self.most_ids, self._page, self._read = MOST_POINTS, IDS, PAGE, PAGE
        self.exact = True
        self.most_bytes = REST_BYTES
        self.bytes = self.requests = 0
        self._ways, self._stack, self._turn = set[str](), ExitStack(), Lock()
        self._grpc: GrpcPort | None = None
        self._chosen = False
        """Whether it was looked which way points go: once, so that a gRPC that was given up is not tried again."""
        self._say: Callable[[str], object] = lambda text: None

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def obey(self, there: "CollectionInfo", points: int) -> None:
        """Keep within the limits that a collection sets in strict mode. Raises UsageError for those that do not let so
        many points in."""
        limits = there.config.strict_mode_config
        if not limits or not limits.enabled:
            return
        room, batch = limits.max_points_count, limits.upsert_max_batchsize
        if room is not None and room < points:
            raise UsageError(
                f"{self.name} takes {several(room, 'point')} in strict mode, and {points:,} are to be uploaded: raise "
                "its max_points_count"
            )
        needed, most = points * self._layout.dense_bytes, limits.max_collection_vector_size_bytes
        if most is not None and needed > most:
            raise UsageError(
                f"{self.name} takes {human_bytes(most)} of vectors in strict mode, and {human_bytes(needed)} of dense "
                "ones are to be uploaded: raise its max_collection_vector_size_bytes"
            )
        if batch is not None and batch < 1:
            raise UsageError(f"{self.name} takes no point in strict mode: raise its upsert_max_batchsize")
        # A limit on a rate is one on a request, too: one that asks for more is never answered.
        self.most_points = min(MOST_POINTS, batch or MOST_POINTS, limits.write_rate_limit or MOST_POINTS)
        self.most_ids = min(IDS, limits.condition_max_size or IDS)
        self._read = min(PAGE, limits.read_rate_limit or PAGE)
        self._page = min(self._read, limits.max_query_limit or PAGE)
        self.exact = limits.search_allow_exact is not False and 0 not in (
            limits.condition_max_size,
            limits.filter_max_conditions,
        )

    def choose_way(self, port: int, say: Callable[[str], object]) -> None:
        """Have points go over gRPC where this port (0: none) is that of the same collection; `say` hears of it."""
        self._say, chosen, self._chosen = say, self._chosen, True
        if not port or chosen:
            return
        there = self._server.describe(self.name)
        found = self._stack.enter_context(GrpcPort(self._server, port))
        if why := found.objection(self.name, (there.config.metadata if there else None) or {}):
            say(f"{self.name}: points go by REST, not over gRPC to {found.place} ({why})")
        else:
            self._grpc, self.most_bytes = found, MOST_BYTES
            say(f"{self.name}: points go over gRPC to {found.place}")

    @property
    def transport(self) -> str:
        """How points went: grpc, rest, both, or none."""
        return "+".join(sorted(self._ways)) or "none"

    def upsert(self, points: Sequence[Point], size: int) -> None:
        """Write points, and wait until they are. What no message of gRPC holds goes by REST, and so does all that
        follows where gRPC stops answering while REST does."""
        late, grpc = points, self._grpc
        fits = [bool(grpc) and _fits_grpc(each.payload) for each in points]
        if grpc and (first := [each for each, fit in zip(points, fits, strict=True) if fit]):
            try:
                self._sent("grpc", grpc.upsert(self.name, first))
            except RestInstead as error:
                with self._turn:
                    if self._grpc:
                        self._say(f"{self.name}: gRPC does not do it ({error}): the rest goes by REST")
                    self._grpc, self.most_bytes = None, REST_BYTES
            else:
                late = [each for each, fit in zip(points, fits, strict=True) if not fit]
        if late:
            made, api = for_client(late), self._server.client.http.points_api  # `client.upsert` looks at every number
            took = 0

            def send() -> str:
                nonlocal took
                answer = api.upsert_points(self.name, wait=True, point_insert_operations=made).result
                assert answer is not None, "no result"
                took = self._server.here.sent_bytes
                return answer.status

            self._server.complete("an upsert", send)
            self._sent("rest", took)

    def _sent(self, way: str, size: int) -> None:
        with self._turn:
            self._ways.add(way)
            self.bytes, self.requests = self.bytes + size, self.requests + 1

    def count(self, among: Ids | None = None) -> int:
        """Count its points, or those `among` these ids: exactly, unless strict mode lets nobody; then those among ids
        are looked up, and all points are about so many."""
        from qdrant_client.models import Filter, HasIdCondition

        client = self._server.client
        if self.exact or among is None:
            exact = self.exact
            where = None if among is None else Filter(must=[HasIdCondition(has_id=list(map(id_of, among)))])
            try:
                return int(self._server.ask("a count", lambda: client.count(self.name, where, exact=exact)).count)
            except InterlockError as error:
                if not exact or not _EXACT.search(str(error)):
                    raise
            self.exact = False
            return self.count(among)
        return len(self._found(among, lambda each: each.id, with_payload=False, with_vectors=False))

    def ids(self) -> Iterator[list[str | int]]:
        """Yield the ids of all points, a page at a time; pages may be removed as they come. Raises as `pages` does."""
        for page in self.pages():
            yield [each.id if isinstance(each.id, int) else str(UUID(str(each.id))) for each in page]

    def pages(self, payload: Sequence[str] = ()) -> "Iterator[list[Record]]":
        """Yield all points, a page at a time, with these keys of their payloads. Raises InterlockError where there are
        far more of them than points: it would have no end."""
        offset, seen, most = None, set[object](), 2 * self.count() + SLACK
        while True:
            following = partial(self._page_behind, offset, frozenset(seen), payload)
            page, offset = self._server.ask("a page of points", following)
            most -= len(page)
            if most < 0:
                raise InterlockError(f"{self.where} lists more points than it counts: fix that on the server")
            seen.add(offset)
            yield page
            if offset is None:
                return

    def _page_behind(self, offset: Any, seen: Collection[object], payload: Sequence[str]) -> "tuple[list[Record], Any]":
        how: dict[str, Any] = {"limit": self._page, "with_payload": list(payload) or False, "with_vectors": False}
        found, following = self._server.client.scroll(self.name, offset=offset, **how)
        if following is not None and (following in seen or not found):
            raise TransientError("an answer of another form")  # it would have no end
        return found, following

    def read(self, ids: Ids) -> dict[str, Point]:
        """Return those of these points that exist, by id."""
        return self._found(ids, of_client, with_payload=True, with_vectors=True)

    def payloads(self, ids: Ids, keys: Sequence[str] = ()) -> dict[str, Mapping[str, object]]:
        """Return the payloads of those of these points that exist, by id; only these keys, if given."""
        return self._found(ids, lambda each: each.payload or {}, with_payload=list(keys) or True, with_vectors=False)

    def _found(self, ids: Ids, made: Callable[["Record"], T], **how: Any) -> dict[str, T]:
        """What is made of those of these points that exist, by id; so many are asked for at a time as may be."""
        found = dict[str, T]()
        for start in range(0, len(ids), self._read):
            part = list(ids[start : start + self._read])

            def request(part: list[str] = part) -> dict[str, T]:
                records = self._server.client.retrieve(self.name, list(map(id_of, part)), **how)
                return {str(each.id): made(each) for each in records}

            answer = self._server.ask("reading points", request)
            found |= {point: answer[point] for point in part if point in answer}
        return found

    def remove(self, ids: Ids) -> None:
        """Delete points by their ids, and wait until they are gone."""
        client = self._server.client
        self._server.complete("removing points", lambda: client.delete(self.name, list(ids), wait=True).status)

    def index(self, key: str, kind: str) -> None:
        """Index a key of the payload, and wait until it is."""
        from qdrant_client.models import KeywordIndexParams, PayloadSchemaType

        tenant = kind == "tenant"
        schema = KeywordIndexParams(type="keyword", is_tenant=True) if tenant else PayloadSchemaType(kind)  # type: ignore[arg-type]
        how: dict[str, Any] = {"field_name": key, "field_schema": schema, "wait": True}
        client = self._server.client
        self._server.complete(f"indexing {key}", lambda: client.create_payload_index(self.name, **how).status)


def id_of(text: str) -> str | int:
    """Read an id as a server has it: a number of somebody else's point, or a UUID."""
    return int(text) if text.isdecimal() else text


def _fits_grpc(value: object, depth: int = 0) -> bool:
    """Tell whether a message holds a value: integers have 63 bits and a sign, and who reads it goes only so deep."""
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return depth <= MOST_DEPTH and all(_fits_grpc(each, depth + 1) for each in inner)
    return not isinstance(value, int) or not 2**63 <= value < 2**64  # a larger one is sent as its decimal text
