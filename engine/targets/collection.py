"""A collection of a Qdrant server as a target: how it is made, how one that is there differs from that, and its points.

Dense vectors are compared by cosine and lie on disk; quantised copies of them are in memory. Token vectors are compared
by MaxSim and have no index, which would be larger than they are. No index is built while points come: `UNINDEXED` makes
it so, and `INDEXED` has all of them built once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from uuid import UUID

from interlock.engine.errors import UsageError
from interlock.engine.models.registry import NAME_RULE, nameable
from interlock.engine.record.words import differences, few
from interlock.engine.targets.connection import TransientError
from interlock.engine.targets.server import GrpcPort, QdrantServer, RestInstead
from interlock.engine.targets.target import MOST_BYTES, MOST_POINTS, Ids
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.points import Point, for_client, of_client
from interlock.engine.vectors.precision import Quantise

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo, CreateCollection, Filter

VectorType = Literal["float32", "float16"]
IndexType = Literal["keyword", "integer", "float", "bool", "datetime", "uuid", "text", "geo"]
METADATA = "interlock"
"""The key of a collection's metadata under which it is said what its vectors mean."""
MARK = "interlock_upload"
"""The key under which the latest upload is named: what was acknowledged to another may have been overwritten."""
UNINDEXED, INDEXED = 0, 16
"""Links of each vector in the index, `m`, while points come and afterwards."""
PAGE, IDS = 1000, 10_000
"""Points whose ids are read at a time, and that are counted by their ids."""
REST_BYTES = MOST_BYTES // 4
"""Of the points of one request by REST: in decimals a number takes more than three times what it takes in memory."""
MOST_DEPTH = 30
"""Of objects in objects in a payload over gRPC: each takes three messages, of which readers take 100 in one another."""
C = TypeVar("C", bound=str)


@dataclass(frozen=True)
class CollectionLayout:
    """A collection of a server: its dense and token vectors by name with their widths, its sparse ones by name, and
    what they all mean (`manifest`); `indexes` are keys of the payload with their types."""

    dense: Mapping[str, int]
    sparse: Sequence[str]
    tokens: Mapping[str, int]
    manifest: Mapping[str, object]
    vector_type: VectorType = "float32"
    quantisation: Quantise = "none"
    indexes: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def request(self) -> "CreateCollection":
        """What a server is asked for to create it."""
        from qdrant_client import models

        vectors = {
            name: models.VectorParams(
                size=size,
                distance=models.Distance.COSINE,
                on_disk=True,
                datatype=models.Datatype(self.vector_type),
                quantization_config=self._quantised,
            )
            for name, size in self.dense.items()
        }
        for name, size in self.tokens.items():
            vectors[name] = models.VectorParams(
                size=size,
                distance=models.Distance.DOT,
                on_disk=True,
                datatype=models.Datatype.FLOAT16,
                multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
                hnsw_config=models.HnswConfigDiff(m=UNINDEXED),
            )
        weighed = models.SparseVectorParams(modifier=models.Modifier.IDF)
        return models.CreateCollection(
            vectors=vectors,
            sparse_vectors={name: weighed if name == BM25 else models.SparseVectorParams() for name in self.sparse},
            hnsw_config=models.HnswConfigDiff(m=UNINDEXED),
            metadata={METADATA: dict(self.manifest)},
        )

    @property
    def _quantised(self) -> Any:
        from qdrant_client import models

        if self.quantisation == "int8":
            scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
            return models.ScalarQuantization(scalar=scalar)
        if self.quantisation == "binary":
            return models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
        return None

    @property
    def configuration(self) -> dict[str, Any]:
        """The same as JSON."""
        return dict(self.request.model_dump(mode="json", exclude_unset=True, exclude_none=True))

    def check(self, there: "CollectionInfo", where: str) -> None:
        """Raise UsageError where a collection is another one in what its points mean or how they are kept."""
        told = (there.config.metadata or {}).get(METADATA)
        if told is None:
            odd = ["it was not made by interlock (its metadata says nothing of models)"]
        else:
            asked, params = self.request, there.config.params
            wanted = {**_kept(asked.vectors, asked.sparse_vectors), **_meaning(self.manifest)}
            odd = list(differences({**_kept(params.vectors, params.sparse_vectors), **_meaning(told)}, wanted))
            for key, kind in self.indexes.items():
                found = (there.payload_schema or {}).get(key)
                if found and _word(found.data_type) != kind:
                    odd.append(f"the index of {key} was {_word(found.data_type)}, is now {kind}")
        if odd:
            raise UsageError(
                f"{where} is another collection ({few(odd)}): pass --alias NAME to upload beside it, or delete it there"
            )


def _kept(vectors: Any, sparse: Any) -> dict[str, object]:
    """Of vectors by name what may not change; an unnamed one is named by nothing."""
    named = vectors if isinstance(vectors, Mapping) else {"": vectors} if vectors else {}
    return {
        "vectors": {
            name: {
                "size": each.size,
                "distance": _word(each.distance),
                "datatype": _word(each.datatype) or "float32",
                "multivector": _word(each.multivector_config.comparator) if each.multivector_config else None,
                "quantisation": _quantised_by(each.quantization_config),
            }
            for name, each in named.items()
        },
        "sparse_vectors": {name: {"modifier": _word(each.modifier) or "none"} for name, each in (sparse or {}).items()},
    }


def _quantised_by(config: Any) -> str:
    """How a collection keeps quantised copies: `none`, `int8`, `binary`, or another kind by the client's word."""
    kind = next(iter(type(config).model_fields)) if config else "none"
    return {"scalar": "int8"}.get(kind, kind)


def _word(value: Any) -> Any:
    """The word of an enumeration of the client."""
    return getattr(value, "value", value)


def _meaning(manifest: Mapping[str, Any]) -> dict[str, object]:
    """A manifest but for which run wrote last."""
    return {key: value for key, value in manifest.items() if key != "run"}


def vector_type_of(text: str) -> VectorType:
    """Read the type of numbers. Raises UsageError for another: a server's uint8 takes whole numbers from 0 to 255, and
    would make zeros of vectors of unit length."""
    return _one_of(text, get_args(VectorType), "--vector-type", " or ")


def quantisation_of(text: str) -> Quantise:
    """Read the kind of quantised copies. Raises UsageError for another."""
    return _one_of(text, get_args(Quantise), "--quantisation", ", ")


def _one_of(text: str, choices: Sequence[C], flag: str, between: str) -> C:
    if text not in choices:
        raise UsageError(f"{flag}: {text!r} does not exist: choose {between.join(choices)}")
    return choices[choices.index(text)]


def parse_indexes(texts: Sequence[str]) -> dict[str, str]:
    """Read indexes as they are asked for, `KEY:TYPE` each. Raises UsageError for a type that there is not."""
    found = {}
    for text in texts:
        key, _, kind = text.rpartition(":")
        if not key or kind not in get_args(IndexType):
            raise UsageError(
                f"--index: {text!r} is not KEY:TYPE: name a key and a type, such as metadata.lang:keyword, of "
                f"{', '.join(get_args(IndexType))}"
            )
        found[key] = kind
    return found


def check_named(name: str) -> None:
    """Raise UsageError unless a server would take this name for a collection or an alias."""
    if not nameable(name):
        raise UsageError(f"a collection cannot be called {name!r}: use {NAME_RULE}")


class ServerCollection:
    """One collection of a server that points go into; a context manager, which ends the connection of gRPC.

    `bytes` and `requests` are those of upserts that were done. Limits are those of the collection's strict mode, once
    `obey` has read them.
    """

    def __init__(self, server: QdrantServer, name: str, layout: CollectionLayout) -> None:
        self.name, self._server, self._layout = name, server, layout
        self.where = f"{name} on {server.address.url}"
        self.dims, self.sparse, self.tokens = layout.dense, layout.sparse, layout.tokens
        self.most_points, self.most_ids, self._page = MOST_POINTS, IDS, PAGE
        self.most_bytes = REST_BYTES
        self.bytes = self.requests = 0
        self._ways, self._stack = set[str](), ExitStack()
        self._grpc: GrpcPort | None = None
        self._chosen = False
        """Whether it was looked which way points go: once, so that a gRPC that was given up is not tried again."""
        self._say: Callable[[str], object] = lambda text: None

    def __enter__(self) -> "ServerCollection":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def obey(self, there: "CollectionInfo") -> Any:
        """Keep within the limits that a collection sets in strict mode, and return them; None for none."""
        limits = there.config.strict_mode_config
        if not limits or not limits.enabled:
            return None
        self.most_points = min(MOST_POINTS, limits.upsert_max_batchsize or MOST_POINTS)
        self.most_ids = min(IDS, limits.condition_max_size or IDS)
        self._page = min(PAGE, limits.max_query_limit or PAGE)
        return limits

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
        late = points
        fits = [bool(self._grpc) and _fits_grpc(each.payload) for each in points]
        if self._grpc and (first := [each for each, fit in zip(points, fits, strict=True) if fit]):
            try:
                self.bytes += self._grpc.upsert(self.name, first)
            except RestInstead as error:
                self._say(f"{self.name}: gRPC does not do it ({error}): the rest goes by REST")
                self._grpc, self.most_bytes = None, REST_BYTES
            else:
                late = [each for each, fit in zip(points, fits, strict=True) if not fit]
                self._ways.add("grpc")
                self.requests += 1
        if late:
            made, api = for_client(late), self._server.client.http.points_api  # `client.upsert` looks at every number

            def send() -> str:
                answer = api.upsert_points(self.name, wait=True, point_insert_operations=made).result
                assert answer is not None, "no result"
                return answer.status

            self._server.complete("an upsert", send)
            self._ways.add("rest")
            self.bytes, self.requests = self.bytes + self._server.sent_bytes, self.requests + 1

    def count(self, among: Ids | None = None) -> int:
        """Count its points exactly; only those `among` these ids, if given."""
        where = self._among(among) if among is not None else None
        client = self._server.client
        return int(self._server.ask("a count", lambda: client.count(self.name, where, exact=True)).count)

    def _among(self, ids: Ids) -> "Filter":
        from qdrant_client import models

        return models.Filter(must=[models.HasIdCondition(has_id=list(ids))])

    def ids(self) -> Iterator[list[str | int]]:
        """Yield the ids of all points, a page at a time; pages may be removed as they come."""
        offset: Any = None
        while True:
            page, offset = self._server.ask("a page of points", partial(self._listed, offset))
            yield page
            if offset is None:
                return

    def _listed(self, offset: Any) -> tuple[list[str | int], Any]:
        how: dict[str, Any] = {"limit": self._page, "with_payload": False, "with_vectors": False}
        found, following = self._server.client.scroll(self.name, offset=offset, **how)
        if following is not None and following == offset:
            raise TransientError("an answer of another form")  # it would have no end
        return [each.id if isinstance(each.id, int) else str(UUID(str(each.id))) for each in found], following

    def read(self, ids: Ids) -> dict[str, Point]:
        """Return those of these points that exist, by id."""
        client = self._server.client

        def request() -> list[Point]:
            found = client.retrieve(self.name, list(ids), with_payload=True, with_vectors=True)
            return [of_client(each) for each in found]

        return {point.id: point for point in self._server.ask("reading points", request)}

    def payloads(self, ids: Ids, keys: Sequence[str] = ()) -> dict[str, Mapping[str, object]]:
        """Return the payloads of those of these points that exist, by id; only these keys, if given."""
        client, wanted = self._server.client, list(keys) or True
        found = self._server.ask(
            "reading payloads", lambda: client.retrieve(self.name, list(ids), with_payload=wanted, with_vectors=False)
        )
        return {str(each.id): each.payload or {} for each in found}

    def remove(self, ids: Ids) -> None:
        """Delete points by their ids, and wait until they are gone."""
        client = self._server.client
        self._server.complete("removing points", lambda: client.delete(self.name, list(ids), wait=True).status)

    def index(self, key: str, kind: str) -> None:
        """Index a key of the payload, and wait until it is."""
        from qdrant_client.models import PayloadSchemaType

        how: dict[str, Any] = {"field_name": key, "field_schema": PayloadSchemaType(kind), "wait": True}
        client = self._server.client
        self._server.complete(f"indexing {key}", lambda: client.create_payload_index(self.name, **how).status)


def _fits_grpc(value: object, depth: int = 0) -> bool:
    """Tell whether a message holds a value: integers have 63 bits and a sign, and who reads it goes only so deep."""
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return depth <= MOST_DEPTH and all(_fits_grpc(each, depth + 1) for each in inner)
    return not isinstance(value, int) or not 2**63 <= value < 2**64  # a larger one is sent as its decimal text
