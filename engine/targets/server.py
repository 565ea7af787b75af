"""A Qdrant server, asked through qdrant-client's transport: every request in one place, repeated while it is worth it.

What may pass (no connection, no answer in time, 5xx, 429, an answer that is cut short) is tried again for as long as
the patience lasts; what would be refused again is told at once. The body of an upsert is made elsewhere, and is sent
as it is. Nothing else in Interlock imports qdrant-client but `grpc_points`, for its messages.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.targets.address import VARIABLE, Address, ApiKey
from interlock.engine.targets.patience import Passing, Patience

if TYPE_CHECKING:
    import httpx

TIMEOUT = 60
"""Seconds in which a request has to be answered."""
OLDEST = (1, 16)
"""The version from which collections keep metadata."""
LONGEST_REASON = 300
T = TypeVar("T")


class TooLarge(InterlockError):
    """The server, or what stands before it, takes no request of this size."""


class _Found(msgspec.Struct):
    """A point as it is retrieved."""

    id: str | int
    payload: dict[str, Any] | None = None
    vector: dict[str, Any] | list[Any] | None = None


class _Page(msgspec.Struct):
    """Points as they are listed."""

    points: list[_Found]
    next_page_offset: str | int | None = None


class QdrantServer:
    """One server; a context manager, which ends its connections."""

    def __init__(
        self,
        address: Address,
        key: ApiKey | None,
        patience: Patience,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        """Ask nothing yet; `transport` stands in for the network."""
        from qdrant_client import QdrantClient

        self.address, self.key, self._patience = address, key, patience
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a key over http goes to this machine alone, which `read_key` saw to
            self._client = QdrantClient(
                url=address.url,
                api_key=key.reveal() if key else None,
                timeout=TIMEOUT,
                check_compatibility=False,
                transport=transport,
                trust_env=not address.loopback,  # no proxy between a process and its own machine
            )

    def __enter__(self) -> "QdrantServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def retries(self) -> int:
        """How many requests were repeated."""
        return self._patience.retries

    def version(self) -> str:
        """Return its version. Raises UsageError for what is not a Qdrant server, or one that is too old."""
        answer = self._ask("its version", "GET", "/", read=dict)
        version = str(answer.get("version", ""))
        numbers = version.split(".")
        if "qdrant" not in str(answer.get("title", "")).lower() or not all(map(str.isdecimal, numbers[:2])):
            raise UsageError(f"{self.address.url} is not a Qdrant server: check the URL")
        if tuple(map(int, numbers[:2])) < OLDEST:
            raise UsageError(
                f"{self.address.url} is Qdrant {version}, which keeps no metadata of collections: use "
                f"{'.'.join(map(str, OLDEST))} or newer"
            )
        return version

    def answers(self) -> bool:
        """Tell whether it answers now."""
        try:
            return bool(self._once("its version", "GET", "/", ""))
        except (Passing, InterlockError):
            return False

    def describe(self, collection: str) -> dict[str, Any] | None:
        """Return what the server says of a collection; None where it has none of this name."""
        path = "/collections/{collection_name}"
        absent: dict[str, Any] = {"result": None}
        return self._ask(f"collection {collection}", "GET", path, collection, missing=absent, read=_described)

    def create(self, collection: str, configuration: Mapping[str, object]) -> None:
        """Create a collection."""
        path = "/collections/{collection_name}"
        self._ask(f"creating {collection}", "PUT", path, collection, configuration, read=dict)

    def change(self, collection: str, configuration: Mapping[str, object]) -> None:
        """Change the configuration of a collection."""
        path = "/collections/{collection_name}"
        self._ask(f"configuring {collection}", "PATCH", path, collection, configuration, read=dict)

    def index(self, collection: str, key: str, kind: str) -> None:
        """Index a key of the payload, and wait until it is."""
        body = {"field_name": key, "field_schema": kind}
        self._complete(f"indexing {key}", "PUT", "/collections/{collection_name}/index", collection, body)

    def upsert(self, collection: str, body: bytes) -> None:
        """Write points, and wait until they are; `body` is JSON. Raises TooLarge where the server takes less."""
        self._complete("an upsert", "PUT", "/collections/{collection_name}/points", collection, content=body)

    def count(self, collection: str, among: Sequence[str] | None = None) -> int:
        """Count the points of a collection exactly; only those `among` these ids, if given."""
        body: dict[str, object] = {"exact": True}
        if among is not None:
            body["filter"] = {"must": [{"has_id": list(among)}]}
        path = "/collections/{collection_name}/points/count"
        return self._ask("a count", "POST", path, collection, body, read=lambda answer: int(answer["result"]["count"]))

    def retrieve(self, collection: str, points: Sequence[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Return payload and vectors of these points that exist, by id."""
        body = {"ids": list(points), "with_payload": True, "with_vector": True}
        path = "/collections/{collection_name}/points"
        found = self._ask("reading points", "POST", path, collection, body, read=_points)
        return {
            str(each.id): (each.payload or {}, each.vector if isinstance(each.vector, dict) else {}) for each in found
        }

    def payloads(self, collection: str, points: Sequence[str], keys: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return these keys of the payloads of these points that exist, by id."""
        body = {"ids": list(points), "with_payload": list(keys), "with_vector": False}
        path = "/collections/{collection_name}/points"
        found = self._ask("reading payloads", "POST", path, collection, body, read=_points)
        return {str(each.id): each.payload or {} for each in found}

    def page(self, collection: str, offset: str | int | None, most: int) -> tuple[list[str | int], str | int | None]:
        """Return the ids of at most so many points from `offset` on (None: from the first), and where the next page
        begins; None: nowhere."""
        body: dict[str, object] = {"limit": most, "with_payload": False, "with_vector": False}
        body |= {} if offset is None else {"offset": offset}

        def read(answer: dict[str, Any]) -> tuple[list[str | int], str | int | None]:
            found = msgspec.convert(answer["result"], _Page)
            if found.next_page_offset is not None and found.next_page_offset == offset:
                raise ValueError  # it would have no end
            ids = [each.id if isinstance(each.id, int) else str(UUID(each.id)) for each in found.points]
            return ids, found.next_page_offset

        return self._ask(
            "a page of points", "POST", "/collections/{collection_name}/points/scroll", collection, body, read=read
        )

    def remove(self, collection: str, points: Sequence[str]) -> None:
        """Delete points by their ids, and wait until they are gone."""
        path = "/collections/{collection_name}/points/delete"
        self._complete("removing points", "POST", path, collection, {"points": list(points)})

    def collections(self) -> list[str]:
        """List its collections by name."""
        return self._ask(
            "its collections",
            "GET",
            "/collections",
            read=lambda answer: [str(each["name"]) for each in answer["result"]["collections"]],
        )

    def aliases(self) -> dict[str, str]:
        """Return the collection of each alias."""
        return self._ask("its aliases", "GET", "/aliases", read=_aliases)

    def point_alias(self, alias: str, collection: str, *, anew: bool) -> None:
        """Let an alias mean a collection, in one step; `anew` where it means another one until then."""
        create = {"create_alias": {"collection_name": collection, "alias_name": alias}}
        delete = [{"delete_alias": {"alias_name": alias}}] if anew else []
        actions = {"actions": [*delete, create]}
        self._ask(f"switching {alias}", "POST", "/collections/aliases", body=actions, read=dict)

    def _complete(
        self,
        doing: str,
        method: str,
        path: str,
        collection: str,
        body: Mapping[str, object] | None = None,
        content: bytes | None = None,
    ) -> None:
        """Ask for a change of points and wait for it: one that the server only took note of is asked for again."""

        def attempt() -> None:
            answer = self._once(doing, method, path, collection, body, content, wait=True)
            status = _read(answer, lambda answer: answer["result"]["status"])
            if status != "completed":
                raise Passing(f"{doing} is only {status}")

        self.insist(attempt)

    def _ask(
        self,
        doing: str,
        method: str,
        path: str,
        collection: str = "",
        body: Mapping[str, object] | None = None,
        missing: dict[str, Any] | None = None,
        *,
        read: Callable[[dict[str, Any]], T],
    ) -> T:
        """Ask until `read` finds what it looks for in the answer, as it does where a server and no other gave it."""
        return self.insist(lambda: _read(self._once(doing, method, path, collection, body, missing=missing), read))

    def insist(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt gives. Raises UnavailableError where only `Passing` comes of it for too long."""
        try:
            return self._patience.insist(attempt)
        except Passing as error:
            raise UnavailableError(
                f"{self.address.url} did not do its work within {self._patience.seconds:g} s of asking ({error}): "
                "start it, or raise --patience; the same command continues where this one ended"
            ) from None

    def _once(
        self,
        doing: str,
        method: str,
        path: str,
        collection: str,
        body: Mapping[str, object] | None = None,
        content: bytes | None = None,
        *,
        wait: bool = False,
        missing: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One attempt: the answer, or `missing` for what is not there. Raises Passing for what is worth another one."""
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        sent: dict[str, Any] = {}
        if body is not None or content is not None:
            sent["content"] = content if content is not None else msgspec.json.encode(body)
            sent["headers"] = {"Content-Type": "application/json"}
        try:
            answer = self._client.http.client.request(
                type_=dict,
                method=method,
                url=path,
                path_params={"collection_name": collection} if collection else {},
                params={"wait": "true"} if wait else {},
                **sent,
            )
        except UnexpectedResponse as error:
            if error.status_code == 404 and missing is not None:
                return missing
            raise self._refusal(doing, error.status_code or 0, error.content, error.headers) from None
        except ResponseHandlingException as error:
            raise self._unanswered(error.source) from None
        except QdrantException as error:  # 429 that says when to come back
            raise Passing("429: too many requests", float(getattr(error, "retry_after_s", 0.0))) from None
        except ValueError:
            raise Passing("an answer that is not JSON") from None
        if path != "/" and not isinstance(answer.get("result"), dict | list | bool):
            raise Passing("an answer without a result")
        return answer

    def _refusal(self, doing: str, status: int, content: bytes, headers: Mapping[str, str]) -> Exception:
        """What an answer means that is not the one that was asked for."""
        reason, url = self._reason(content), self.address.url
        if status >= 500 or status in (408, 425, 429):
            asked = headers.get("Retry-After", "")
            return Passing(f"{status}{reason}", float(asked) if asked.isdecimal() else 0.0)
        if status in (401, 403):
            return UsageError(f"{url} refuses this key ({status}{reason}): set {VARIABLE}, or name --api-key-file")
        if status == 413:
            return TooLarge(f"{url} takes no request of this size (413{reason}): raise its max_request_size_mb")
        if 300 <= status < 400 or doing == "its version":
            return UsageError(f"{url} is not a Qdrant server ({status}): check the URL")
        return InterlockError(f"{url} refuses {doing} ({status}{reason}): fix that, and repeat the command")

    def _unanswered(self, source: Exception) -> Exception:
        """What it means that there was no answer, or one that cannot be read."""
        import httpx

        if not isinstance(source, httpx.TransportError | ValueError | OSError):
            return source
        # What cannot be read is not repeated: a part of it may be a part of the key.
        said = (
            "an answer that cannot be read" if isinstance(source, ValueError) else f"{type(source).__name__}: {source}"
        )
        reason = self.hidden(" ".join(said.split()))[:LONGEST_REASON]
        wrong = isinstance(source, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.TooManyRedirects)
        if wrong or "CERTIFICATE_VERIFY_FAILED" in reason:
            return UsageError(f"{self.address.url} cannot be asked ({reason}): check the URL, or set SSL_CERT_FILE")
        return Passing(reason)

    def _reason(self, content: bytes) -> str:
        """What a refusal says for itself."""
        try:
            said = json.loads(content)["status"]["error"]
        except (ValueError, KeyError, TypeError):
            said = content.decode(errors="replace")
        said = " ".join(str(said).split())
        return f": {self.hidden(said)[:LONGEST_REASON]}" if said else ""

    def hidden(self, text: str) -> str:
        """Return a text without the key."""
        return self.key.hidden_in(text) if self.key else text


def _read(answer: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
    """What is looked for in an answer. Raises Passing where it is not there, as in that of a proxy."""
    try:
        return read(answer)
    except (KeyError, IndexError, TypeError, ValueError, msgspec.MsgspecError):
        raise Passing("an answer of another form") from None


def _described(answer: dict[str, Any]) -> dict[str, Any] | None:
    if (found := answer["result"]) is None:
        return None
    if not isinstance(found["config"]["params"], dict):
        raise TypeError
    return dict(found)


def _points(answer: dict[str, Any]) -> list[_Found]:
    return msgspec.convert(answer["result"], list[_Found])


def _aliases(answer: dict[str, Any]) -> dict[str, str]:
    return {str(each["alias_name"]): str(each["collection_name"]) for each in answer["result"]["aliases"]}
