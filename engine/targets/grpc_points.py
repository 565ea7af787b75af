"""Upserts over gRPC: points as Qdrant's own messages, about a third of the bytes of JSON and a fraction of the work.

Only points go this way; what a server is asked else goes by REST, which has the last word too: an upsert that gRPC does
not answer while REST does is `RestInstead`. Deadlines, patience and words are those of REST.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.targets.address import VARIABLE
from interlock.engine.targets.bodies import PROTOBUF, Written, as_json, checked
from interlock.engine.targets.patience import Passing
from interlock.engine.targets.server import LONGEST_REASON, TIMEOUT, QdrantServer, TooLarge
from interlock.engine.vectors.points import Point, Tokens, Vector, storable

if TYPE_CHECKING:
    import grpc
    from qdrant_client.grpc import PointStruct

MOST_DEPTH = 30
"""Of objects in objects: each takes three messages, of which readers take 100 in one another."""
PROBE = 5
"""Seconds in which the port has to answer to be used."""
SILENT = 3
"""Times in a row that gRPC may not answer an upsert while REST answers."""
_TOO_LARGE = ("larger than max", "length too large", "status: 413")
"""What gRPC's own libraries, the server's, and those of whoever stands before it say of a message that is."""


class RestInstead(Exception):
    """gRPC did not do what REST may."""


def as_protobuf(points: Iterable[Point]) -> Iterator[Written]:
    """Yield each point as a member of an upsert's message; as JSON where no message holds its payload.

    Raises InterlockError for a dense vector that no cosine can be made of.
    """
    from qdrant_client.grpc import UpsertPoints

    for group in checked(points):
        for point in group:
            if _holds(storable(point.payload)):
                yield PROTOBUF, UpsertPoints(points=[struct_of(point)]).SerializeToString()
            else:
                yield from as_json([point])


def struct_of(point: Point) -> "PointStruct":
    """Make the message of a point."""
    from qdrant_client.conversions.conversion import payload_to_grpc
    from qdrant_client.grpc import PointId, PointStruct

    made = PointStruct(id=PointId(uuid=point.id), payload=payload_to_grpc(storable(point.payload)))
    vectors = made.vectors.vectors.vectors
    for name, vector in point.vectors.items():
        vectors[name].dense.MergeFromString(_packed(vector))
    for name, terms in point.sparse.items():
        vectors[name].sparse.indices.extend(terms.indices.tolist())
        vectors[name].sparse.MergeFromString(_packed(terms.values))
    for name, tokens in point.tokens.items():
        several = vectors[name].multi_dense.vectors
        for token in tokens:
            several.add().MergeFromString(_packed(token))
    return made


def _holds(value: object, depth: int = 0) -> bool:
    """Tell whether a message holds a value: integers have 63 bits and a sign, and who reads it goes only so deep."""
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return depth <= MOST_DEPTH and all(_holds(each, depth + 1) for each in inner)
    return not isinstance(value, int) or value < 2**63


def _packed(numbers: Vector | Tokens) -> bytes:
    """Field 1 of a message, packed float32 as the wire has them: a tenth of the time that a list of floats takes."""
    content = np.ascontiguousarray(numbers, "<f4").tobytes()
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return b"\n" + bytes(length) + bytes([size]) + content


class GrpcPoints:
    """The gRPC port of a server; a context manager, which ends its connection."""

    def __init__(self, server: QdrantServer, port: int) -> None:
        """Ask nothing yet. TLS is as of the server's URL, the key goes where it would go by REST, and nothing that is
        meant for this machine goes through a proxy."""
        import grpc
        from qdrant_client.grpc import GetCollectionInfoRequest, GetCollectionInfoResponse, PointsOperationResponse

        self._server, self._silent, address = server, 0, server.address
        host = urlsplit(address.url).hostname or ""
        self.place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.enable_retries", 0),  # what is repeated, and when, is said by the patience
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.enable_http_proxy", int(not address.loopback)),
        ]
        if address.url.startswith("https://"):
            self._channel = grpc.secure_channel(self.place, grpc.ssl_channel_credentials(_roots()), options)
        else:
            self._channel = grpc.insecure_channel(self.place, options)
        self._headers = [("api-key", server.key.reveal())] if server.key and address.secure else []
        self._get = self._channel.unary_unary(
            "/qdrant.Collections/Get",
            GetCollectionInfoRequest.SerializeToString,
            GetCollectionInfoResponse.FromString,
        )
        self._upsert = self._channel.unary_unary(
            "/qdrant.Points/Upsert", response_deserializer=PointsOperationResponse.FromString
        )

    def __enter__(self) -> "GrpcPoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def objection(self, collection: str, metadata: Mapping[str, Any]) -> str:
        """Say why points may not go this way; empty: the port is that of a server that has a collection with this very
        metadata, as REST tells them."""
        import grpc
        from qdrant_client.conversions.conversion import grpc_to_payload
        from qdrant_client.grpc import GetCollectionInfoRequest

        try:
            asked = GetCollectionInfoRequest(collection_name=collection)
            found = self._get(asked, timeout=PROBE, metadata=self._headers).result
        except grpc.RpcError as error:
            return self._said(error)
        same = grpc_to_payload(found.config.metadata) == metadata
        return "" if same else f"its {collection} is another one"

    def upsert(self, collection: str, content: bytes) -> None:
        """Write points, and wait until they are; `content` are the members of the message. Raises TooLarge where the
        server takes less, RestInstead where REST may do it."""
        from qdrant_client.grpc import UpdateStatus, UpsertPoints

        request = UpsertPoints(collection_name=collection, wait=True).SerializeToString() + content

        def attempt() -> None:
            status = self._once(request)
            if status != UpdateStatus.Completed:
                name = UpdateStatus.Name(status) if status in UpdateStatus.values() else str(status)
                raise Passing(f"an upsert is only {name}")

        self._server.insist(attempt)

    def _once(self, request: bytes) -> int:
        """One attempt: the status. Raises Passing for what is worth another one."""
        import grpc

        try:
            answer = self._upsert(request, timeout=TIMEOUT, metadata=self._headers)
        except grpc.RpcError as error:
            raise self._refusal(error) from None
        self._silent = 0
        return int(answer.result.status)

    def _refusal(self, error: "grpc.RpcError") -> Exception:
        """What an answer means that is not the one that was asked for."""
        from grpc import StatusCode as Code

        code, said, url = error.code(), self._said(error), self._server.address.url
        if code in (Code.RESOURCE_EXHAUSTED, Code.OUT_OF_RANGE, Code.UNKNOWN) and any(
            each in said for each in _TOO_LARGE
        ):
            return TooLarge(f"{url} takes no request of this size ({said}): raise what it allows for gRPC")
        if code is Code.RESOURCE_EXHAUSTED:
            return Passing(said, _asked_pause(error))
        if code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
            return UsageError(f"{url} refuses this key ({said}): set {VARIABLE}, or name --api-key-file")
        if code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.ALREADY_EXISTS, Code.OUT_OF_RANGE):
            return InterlockError(f"{url} refuses an upsert ({said}): fix that, and repeat the command")
        if code in (Code.UNIMPLEMENTED, Code.NOT_FOUND):
            return RestInstead(said)
        if self._server.answers():
            self._silent += 1
        return RestInstead(said) if self._silent >= SILENT else Passing(said)

    def _said(self, error: "grpc.RpcError") -> str:
        """The code of a refusal, and what it says for itself."""
        words = self._server.hidden(" ".join(str(error.details() or "").split()))[:LONGEST_REASON]
        return f"gRPC {error.code().name}" + (f": {words}" if words else "")


def _asked_pause(error: "grpc.RpcError") -> float:
    """The seconds that a server asks to be left alone."""
    for name, value in error.trailing_metadata() or ():
        if name.lower() == "retry-after" and str(value).isdecimal():
            return float(value)
    return 0.0


def _roots() -> bytes | None:
    """The certificates that REST would trust; None: those that come with gRPC."""
    file = os.environ.get("SSL_CERT_FILE")
    return Path(file).read_bytes() if file and Path(file).is_file() else None
