"""The gRPC port of a Qdrant server, for points alone: what it does not do, REST does."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.engine.errors import InterlockError
from interlock.engine.targets.connection import TransientError
from interlock.engine.targets.server import TIMEOUT, WRITE, QdrantServer, RestInstead
from interlock.engine.targets.target import TooLarge
from interlock.engine.vectors.points import Point, for_grpc

if TYPE_CHECKING:
    import grpc

PROBE = 5
"""Seconds in which the port has to answer to be used."""
SILENT = 3
"""Times in a row that it may not answer an upsert while REST answers."""
_TOO_LARGE = ("larger than max", "length too large", "status: 413")
"""What gRPC's own libraries, the server's, and those of whoever stands before it say of a message that is."""


class GrpcPort(AbstractContextManager["GrpcPort"]):
    """The gRPC port of a server, for points alone; a context manager, which ends its connection."""

    def __init__(self, server: QdrantServer, port: int) -> None:
        """Ask nothing yet. TLS is as of the server's URL, and trusts what REST trusts; the key goes where it would go
        by REST, and nothing that is meant for this machine goes through a proxy."""
        roots = os.environ.get("SSL_CERT_FILE")
        options = {
            "grpc.enable_retries": 0,  # what is repeated, and when, is said by the patience
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 500,
            "grpc.enable_http_proxy": int(not server.address.loopback),
            "root_certificates": Path(roots).read_bytes() if roots and Path(roots).is_file() else None,
        }
        self._server = server
        self.place = f"{server.address.host}:{port}"
        key = server.key if server.address.secure else None
        self.client = server.connected(key, prefer_grpc=True, grpc_port=port, grpc_options=options, pool_size=1)

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def objection(self, collection: str, metadata: Mapping[str, Any]) -> str:
        """Say why points may not go this way; empty: the port is that of a server that has a collection with this very
        metadata, as REST tells them."""
        import grpc
        from qdrant_client.conversions.conversion import grpc_to_payload
        from qdrant_client.grpc import GetCollectionInfoRequest

        try:
            request = GetCollectionInfoRequest(collection_name=collection)
            found = self.client.grpc_collections.Get(request, timeout=PROBE).result
            same = grpc_to_payload(found.config.metadata) == metadata
        except grpc.RpcError as error:
            return self._said(error)
        except Exception:
            return "an answer of another form"
        return "" if same else f"its {collection} is another one"

    def upsert(self, collection: str, points: Sequence[Point]) -> int:
        """Write points, and wait until they are; their bytes. Raises TooLarge where the server takes less, RestInstead
        where REST may do it."""
        from qdrant_client.grpc import UpdateStatus, UpsertPoints

        message = UpsertPoints(collection_name=collection, wait=True, points=map(for_grpc, points))
        silent = list[str]()

        def request() -> str:
            import grpc

            try:
                answer = self.client.grpc_points.Upsert(message, timeout=TIMEOUT)
            except grpc.RpcError as error:
                raise self._refusal(error, silent) from None
            silent.clear()
            return str(UpdateStatus.Name(answer.result.status)).lower()

        self._server.complete("an upsert", request, 3 * TIMEOUT)  # it has a deadline of its own; then REST is asked
        return int(message.ByteSize())

    def _refusal(self, error: "grpc.RpcError", silent: list[str]) -> Exception:
        """What an answer means that is not the one that was asked for; `silent` are those in a row that were none."""
        from grpc import StatusCode as Code

        code, said, url = error.code(), self._said(error), self._server.address.url
        if code in (Code.RESOURCE_EXHAUSTED, Code.OUT_OF_RANGE, Code.UNKNOWN) and any(
            each in said for each in _TOO_LARGE
        ):
            return TooLarge(f"{url} takes no request of this size ({said}): raise what it allows for gRPC")
        if code is Code.RESOURCE_EXHAUSTED:
            return TransientError(said)
        if code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
            return self._server.forbidden("an upsert", said, WRITE if code is Code.PERMISSION_DENIED else "")
        if code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.ALREADY_EXISTS, Code.OUT_OF_RANGE):
            return InterlockError(f"{url} refuses an upsert ({said}): fix that, and repeat the command")
        if code in (Code.UNIMPLEMENTED, Code.NOT_FOUND):
            return RestInstead(said)
        if self._server.answers():
            silent.append(said)
        return RestInstead(said) if len(silent) >= SILENT else TransientError(said)

    def _said(self, error: "grpc.RpcError") -> str:
        """The code of a refusal, and what it says for itself."""
        words = self._server.shown(error.details() or "")
        return f"gRPC {error.code().name}" + (f": {words}" if words else "")
