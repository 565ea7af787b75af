"""A Qdrant server through its own typed client: every request in one place, repeated while it is worth it.

What may pass (no connection, no answer in time, 5xx, 429, an answer of another form) is tried again for as long as the
patience lasts; what would be refused again is told at once. Points go over gRPC where the server's port is known to be
that of the same collection; whatever gRPC does not do, REST does. Nothing else in Interlock imports qdrant-client.
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.targets.connection import VARIABLE, Address, ApiKey, Patience, TransientError
from interlock.engine.targets.target import TooLarge
from interlock.engine.vectors.points import Point, for_grpc

if TYPE_CHECKING:
    import grpc
    import httpx
    from qdrant_client import QdrantClient
    from qdrant_client.models import CollectionInfo, CreateCollection

TIMEOUT = 60
"""Seconds in which a request has to be answered."""
PROBE = 5
"""Seconds in which the port of gRPC has to answer to be used."""
SILENT = 3
"""Times in a row that gRPC may not answer an upsert while REST answers."""
OLDEST = (1, 16)
"""The version from which collections keep metadata."""
LONGEST_REASON = 300
ITS_VERSION = "its version"
_TOO_LARGE = ("larger than max", "length too large", "status: 413")
"""What gRPC's own libraries, the server's, and those of whoever stands before it say of a message that is."""
T = TypeVar("T")


class RestInstead(Exception):
    """gRPC did not do what REST may."""


class QdrantServer:
    """One server; a context manager, which ends its connections."""

    def __init__(
        self, address: Address, key: ApiKey | None, patience: Patience, transport: "httpx.BaseTransport | None" = None
    ) -> None:
        """Ask nothing yet; `transport` stands in for the network."""
        self.address, self.key, self._patience = address, key, patience
        self.sent_bytes = 0
        """The bytes of the body that was sent last by REST."""
        # No proxy is between a process and its own machine.
        self.client = self._connected(
            key, trust_env=not address.loopback, transport=transport, event_hooks={"request": [self._measure]}
        )

    def __enter__(self) -> "QdrantServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def _connected(self, key: ApiKey | None, **how: Any) -> "QdrantClient":
        from qdrant_client import QdrantClient

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a key over http goes to this machine alone, which `read_key` saw to
            secret = key.reveal() if key else None
            return QdrantClient(url=self.address.url, api_key=secret, timeout=TIMEOUT, check_compatibility=False, **how)

    def _measure(self, request: "httpx.Request") -> None:
        self.sent_bytes = len(request.content)

    @property
    def retries(self) -> int:
        """How many requests were repeated."""
        return self._patience.retries

    def version(self) -> str:
        """Return its version. Raises UsageError for what is not a Qdrant server, or one that is too old."""
        answer = self.ask(ITS_VERSION, self.client.info)
        numbers = str(answer.version).split(".")
        if "qdrant" not in str(answer.title).lower() or not all(map(str.isdecimal, numbers[:2])):
            raise UsageError(f"{self.address.url} is not a Qdrant server: check the URL")
        if tuple(map(int, numbers[:2])) < OLDEST:
            raise UsageError(
                f"{self.address.url} is Qdrant {answer.version}, which keeps no metadata of collections: use "
                f"{'.'.join(map(str, OLDEST))} or newer"
            )
        return str(answer.version)

    def answers(self) -> bool:
        """Tell whether it answers now."""
        try:
            return bool(self._once(ITS_VERSION, self.client.info))
        except (TransientError, InterlockError):
            return False

    def collections(self) -> list[str]:
        """List its collections by name."""
        found = self.ask("its collections", self.client.get_collections)
        return [each.name for each in found.collections]

    def describe(self, collection: str) -> "CollectionInfo | None":
        """Return what the server says of a collection; None where it has none of this name."""
        found: CollectionInfo | None = self.ask(
            f"collection {collection}", lambda: self.client.get_collection(collection), missing=True
        )
        return found

    def create(self, collection: str, configuration: "CreateCollection") -> None:
        """Create a collection."""
        api = self.client.http.collections_api
        self.ask(f"creating {collection}", lambda: api.create_collection(collection, create_collection=configuration))

    def change(self, collection: str, **configuration: Any) -> None:
        """Change the configuration of a collection."""
        self.ask(f"configuring {collection}", lambda: self.client.update_collection(collection, **configuration))

    def aliases(self) -> dict[str, str]:
        """Return the collection of each alias."""
        found = self.ask("its aliases", self.client.get_aliases)
        return {each.alias_name: each.collection_name for each in found.aliases}

    def point_alias(self, alias: str, collection: str, *, anew: bool) -> None:
        """Let an alias mean a collection, in one step; `anew` where it means another one until then."""
        from qdrant_client import models

        create = models.CreateAlias(collection_name=collection, alias_name=alias)
        actions: list[Any] = [models.CreateAliasOperation(create_alias=create)]
        if anew:
            actions.insert(0, models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)))
        self.ask(f"switching {alias}", lambda: self.client.update_collection_aliases(actions))

    def complete(self, doing: str, request: Callable[[], str]) -> None:
        """Ask for a change of points, which tells its status: one that the server only took note of is asked for
        again."""

        def attempt() -> None:
            status = self._once(doing, request)
            if status != "completed":
                raise TransientError(f"{doing} is only {getattr(status, 'value', status)}")

        self.insist(attempt)

    def ask(self, doing: str, request: Callable[[], T], *, missing: bool = False) -> Any:
        """Ask until there is an answer; None for what is not there, where it may be `missing`."""
        return self.insist(lambda: self._once(doing, request, missing=missing))

    def insist(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt gives. Raises UnavailableError where nothing comes of it for too long."""
        try:
            return self._patience.insist(attempt)
        except TransientError as error:
            raise UnavailableError(
                f"{self.address.url} did not do its work within {self._patience.seconds:g} s of asking ({error}): "
                "start it, or raise --patience; the same command continues where this one ended"
            ) from None

    def _once(self, doing: str, request: Callable[[], T], *, missing: bool = False) -> Any:
        """One attempt. Raises TransientError for what is worth another one."""
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            return request()
        except UnexpectedResponse as error:
            if error.status_code == 404 and missing:
                return None
            raise self._refusal(doing, error.status_code or 0, error.content, error.headers) from None
        except ResponseHandlingException as error:
            raise self._unanswered(doing, error.source) from None
        except QdrantException as error:  # 429 that says when to come back
            raise TransientError("429: too many requests", float(getattr(error, "retry_after_s", 0.0))) from None
        except (AssertionError, ValueError):  # what it says is not repeated: a part of it may be a part of the key
            raise TransientError("an answer of another form") from None

    def _refusal(self, doing: str, status: int, content: bytes, headers: Mapping[str, str]) -> Exception:
        """What an answer means that is not the one that was asked for."""
        try:
            said = json.loads(content)["status"]["error"]
        except (ValueError, KeyError, TypeError):
            said = content.decode(errors="replace")
        said = self.hidden(" ".join(str(said).split()))[:LONGEST_REASON]
        reason, url = f": {said}" if said else "", self.address.url
        if status >= 500 or status in (408, 425, 429):
            pause = headers.get("Retry-After", "")
            return TransientError(f"{status}{reason}", float(pause) if pause.isdecimal() else 0.0)
        if status in (401, 403):
            return UsageError(f"{url} refuses this key ({status}{reason}): set {VARIABLE}, or name --api-key-file")
        if status == 413:
            return TooLarge(f"{url} takes no request of this size (413{reason}): raise its max_request_size_mb")
        if 300 <= status < 400 or doing == ITS_VERSION:
            return UsageError(f"{url} is not a Qdrant server ({status}): check the URL")
        return InterlockError(f"{url} refuses {doing} ({status}{reason}): fix that, and repeat the command")

    def _unanswered(self, doing: str, source: Exception) -> Exception:
        """What it means that there was no answer, or one of another form."""
        import httpx

        if isinstance(source, ValueError):
            wrong = doing == ITS_VERSION
            return (
                UsageError(f"{self.address.url} is not a Qdrant server: check the URL")
                if wrong
                else TransientError("an answer of another form")
            )
        if not isinstance(source, httpx.TransportError | OSError):
            return source
        reason = self.hidden(" ".join(f"{type(source).__name__}: {source}".split()))[:LONGEST_REASON]
        hopeless = isinstance(source, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.TooManyRedirects)
        if hopeless or "CERTIFICATE_VERIFY_FAILED" in reason:
            return UsageError(f"{self.address.url} cannot be asked ({reason}): check the URL, or set SSL_CERT_FILE")
        return TransientError(reason)

    def hidden(self, text: str) -> str:
        """Return a text without the key."""
        return self.key.hidden_in(text) if self.key else text


class GrpcPort:
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
        self._server, self._silent = server, 0
        self.place = f"{server.address.host}:{port}"
        key = server.key if server.address.secure else None
        self.client = server._connected(key, prefer_grpc=True, grpc_port=port, grpc_options=options, pool_size=1)

    def __enter__(self) -> "GrpcPort":
        return self

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
        except grpc.RpcError as error:
            return self._said(error)
        return "" if grpc_to_payload(found.config.metadata) == metadata else f"its {collection} is another one"

    def upsert(self, collection: str, points: Sequence[Point]) -> int:
        """Write points, and wait until they are; their bytes. Raises TooLarge where the server takes less, RestInstead
        where REST may do it."""
        from qdrant_client.grpc import UpdateStatus, UpsertPoints

        message = UpsertPoints(collection_name=collection, wait=True, points=map(for_grpc, points))

        def request() -> str:
            import grpc

            try:
                answer = self.client.grpc_points.Upsert(message, timeout=TIMEOUT)
            except grpc.RpcError as error:
                raise self._refusal(error) from None
            self._silent = 0
            return str(UpdateStatus.Name(answer.result.status)).lower()

        self._server.complete("an upsert", request)
        return int(message.ByteSize())

    def _refusal(self, error: "grpc.RpcError") -> Exception:
        """What an answer means that is not the one that was asked for."""
        from grpc import StatusCode as Code

        code, said, url = error.code(), self._said(error), self._server.address.url
        if code in (Code.RESOURCE_EXHAUSTED, Code.OUT_OF_RANGE, Code.UNKNOWN) and any(
            each in said for each in _TOO_LARGE
        ):
            return TooLarge(f"{url} takes no request of this size ({said}): raise what it allows for gRPC")
        if code is Code.RESOURCE_EXHAUSTED:
            return TransientError(said)
        if code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
            return UsageError(f"{url} refuses this key ({said}): set {VARIABLE}, or name --api-key-file")
        if code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.ALREADY_EXISTS, Code.OUT_OF_RANGE):
            return InterlockError(f"{url} refuses an upsert ({said}): fix that, and repeat the command")
        if code in (Code.UNIMPLEMENTED, Code.NOT_FOUND):
            return RestInstead(said)
        if self._server.answers():
            self._silent += 1
        return RestInstead(said) if self._silent >= SILENT else TransientError(said)

    def _said(self, error: "grpc.RpcError") -> str:
        """The code of a refusal, and what it says for itself."""
        words = self._server.hidden(" ".join(str(error.details() or "").split()))[:LONGEST_REASON]
        return f"gRPC {error.code().name}" + (f": {words}" if words else "")
