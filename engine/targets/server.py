"""A Qdrant server through its own typed client: every request in one place, repeated while it is worth it.

What may pass (no connection, no whole answer in time, 5xx, 429, an answer of another form) is tried again for as long
as the patience lasts; what would be refused again is told at once, a port of this machine where nothing listens within
seconds, and a right that a key lacks by its name. Points go over gRPC where the server's port is known to be that of
the same collection (`grpc_port`); whatever gRPC does not do, REST does.
"""

import json
import os
import re
import ssl
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from errno import ECONNREFUSED
from functools import partial
from math import inf
from threading import local
from typing import TYPE_CHECKING, Any, TypeVar

from interlock.engine.errors import InterlockError, UnavailableError, UsageError, reason
from interlock.engine.targets.connection import VARIABLE, Address, ApiKey, Patience, TransientError, pause_of, within
from interlock.engine.targets.target import TooLarge

if TYPE_CHECKING:
    import httpx
    from qdrant_client import QdrantClient
    from qdrant_client.models import CollectionInfo, CreateCollection

TIMEOUT = 60
"""Seconds in which a request has to be answered, to its last byte."""
LARGEST = 256 << 20
"""Bytes of an answer: ten points with all their token vectors have less."""
OLDEST = (1, 16)
"""The version from which collections keep metadata."""
LONGEST_REASON = 300
REFUSALS = 3
"""Refused connections after which a port of this machine that never answered is asked a last time, in four seconds."""
ITS_VERSION = "its version"
READ, WRITE, MANAGE = "read access to the collection", "write access to the collection", "global manage access"
"""What a key has to have for a request."""
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})[\w.+-]{0,40}", re.ASCII)
T = TypeVar("T")


class RestInstead(Exception):
    """gRPC did not do what REST may."""


class Forbidden(UsageError):
    """The key may not do that."""


class _Request(local):
    """Of the thread that asks: the bytes of the body that it sent last, and what the answer said of when to come
    back."""

    sent_bytes, pause = 0, ""


class QdrantServer(AbstractContextManager["QdrantServer"]):
    """One server; a context manager, which ends its connections."""

    def __init__(
        self, address: Address, key: ApiKey | None, patience: Patience, transport: "httpx.BaseTransport | None" = None
    ) -> None:
        """Ask nothing yet; `transport` stands in for the network."""
        self.address, self.key, self.patience = address, key, patience
        self.here = _Request()
        self._written = False
        self._refusals: float = REFUSALS if address.loopback else inf
        hooks = {"request": [self._measure], "response": [self._bound]}
        self.client = self.connected(key, transport=transport, event_hooks=hooks)

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def connected(self, key: ApiKey | None, **how: Any) -> "QdrantClient":
        """Make a client; it asks nothing yet. Raises UsageError for certificates and proxies of the environment that
        cannot be used."""
        import httpx
        from qdrant_client import QdrantClient

        url, secret, local = self.address.url, key.reveal() if key else None, self.address.loopback
        roots = [os.environ.get(name) or None for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a key over http goes to this machine alone, which `read_key` saw to
                # No proxy is between a process and its own machine, but what vouches for others vouches for it too.
                if local and url.startswith("https:") and any(roots):
                    how["verify"] = ssl.create_default_context(cafile=roots[0], capath=roots[1])
                return QdrantClient(
                    url=url, api_key=secret, timeout=TIMEOUT, check_compatibility=False, trust_env=not local, **how
                )
        except OSError as error:
            raise UsageError(
                f"SSL_CERT_FILE holds no certificates that can be read ({reason(error)}): set it to a file that does"
            ) from None
        except (ValueError, ImportError, httpx.InvalidURL):  # which may say a part of a proxy's password
            raise UsageError(
                f"the proxy that the environment names for {url} cannot be used: fix HTTPS_PROXY, HTTP_PROXY or "
                "ALL_PROXY, or unset them; SOCKS takes `pip install 'httpx[socks]'`"
            ) from None

    def _measure(self, request: "httpx.Request") -> None:
        self.here.sent_bytes = len(request.content)
        request.headers["Accept-Encoding"] = "identity"  # what is packed has no bound

    @property
    def retries(self) -> int:
        """How many requests were repeated."""
        return self.patience.retries

    def _bound(self, response: "httpx.Response") -> None:
        """Have the answer read with a bound."""
        import httpx

        self._refusals = inf  # it is there, and what is started again comes back
        self.here.pause = response.headers.get("Retry-After", "")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("packed")
        coming = response.stream

        class Bounded(httpx.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                size = 0
                for part in coming:  # type: ignore[union-attr]
                    size += len(part)
                    if size > LARGEST:
                        raise ValueError("no end")
                    yield part

            def close(self) -> None:
                coming.close()  # type: ignore[union-attr]

        response.stream = Bounded()

    def version(self) -> str:
        """Return its version. Raises UsageError for what is not a Qdrant server, or one that is too old."""
        answer = self.ask(ITS_VERSION, self.client.info)
        numbers = _VERSION.fullmatch(str(answer.version))
        if "qdrant" not in str(answer.title).lower() or not numbers:
            raise UsageError(f"{self.address.url} is not a Qdrant server: check the URL")
        if tuple(map(int, numbers.groups())) < OLDEST:
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
        create = partial(api.create_collection, collection, create_collection=configuration)
        self.ask(f"creating {collection}", create, right=MANAGE)

    def change(self, collection: str, **configuration: Any) -> None:
        """Change the configuration of a collection."""
        changed = partial(self.client.update_collection, collection, **configuration)
        self.ask(f"configuring {collection}", changed, right=MANAGE)

    def waiting(self, collection: str) -> int | None:
        """Count the optimisations of a collection that run or wait; None where the server has no list of them, or does
        not show it."""
        try:
            found = self._once("its optimisations", lambda: self.client.get_optimizations(collection))
            return len(found.running) + max(0, int(found.summary.queued_optimizations))
        except (TransientError, InterlockError):
            return None

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
        self.ask(f"switching {alias}", lambda: self.client.update_collection_aliases(actions), right=MANAGE)

    def complete(self, doing: str, request: Callable[[], str], seconds: float | None = None) -> None:
        """Ask for a change of points, which tells its status: one that the server only took note of is asked for
        again. `seconds` are for one attempt."""

        def attempt() -> None:
            status = self._once(doing, request, right=WRITE, seconds=seconds)
            if status != "completed":
                raise TransientError(f"{doing} is only {getattr(status, 'value', status)}")
            self._written = True

        self.insist(attempt)

    def ask(self, doing: str, request: Callable[[], T], *, missing: bool = False, right: str = READ) -> Any:
        """Ask until there is an answer; None for what is not there, where it may be `missing`. `right` is what a key
        has to have for it."""
        return self.insist(lambda: self._once(doing, request, missing=missing, right=right))

    def insist(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt gives. Raises UnavailableError where nothing comes of it for too long."""
        try:
            return self.patience.insist(attempt)
        except TransientError as error:
            raise UnavailableError(
                f"{self.address.url} did not do its work within {self.patience.seconds:g} s of asking (last: {error}): "
                "start it, or wait until it is less busy, then repeat the command"
                f"{', which continues where this one ended' if self._written else ''}; with --patience `upload` and "
                "`search` ask for longer"
            ) from None

    def _once(
        self,
        doing: str,
        request: Callable[[], T],
        *,
        missing: bool = False,
        right: str = READ,
        seconds: float | None = None,
    ) -> Any:
        """One attempt. Raises TransientError for what is worth another one."""
        return within(seconds or TIMEOUT, lambda: self._answer(doing, request, missing, right))

    def _answer(self, doing: str, request: Callable[[], T], missing: bool, right: str) -> Any:
        """What comes of a request, in the thread that makes it. Raises as `_once` does."""
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            return request()
        except (TransientError, InterlockError, RestInstead):
            raise
        except UnexpectedResponse as error:
            if error.status_code == 404 and missing:
                return None
            raise self._refusal(doing, error.status_code or 0, error.content, right) from None
        except QdrantException as error:  # 429 that says when to come back
            asked = getattr(error, "retry_after_s", self.here.pause)
            raise TransientError("429: too many requests", pause_of(asked)) from None
        except Exception as error:
            source = error.source if isinstance(error, ResponseHandlingException) else error
            raise self._unanswered(doing, source) from None

    def _refusal(self, doing: str, status: int, content: bytes, right: str) -> Exception:
        """What an answer means that is not the one that was asked for."""
        try:
            said = json.loads(content)["status"]["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            said = content.decode(errors="replace")
        said = self.shown(said)
        reason, url = f": {said}" if said else "", self.address.url
        if status >= 500 or status in (408, 425, 429):
            return TransientError(f"{status}{reason}", pause_of(self.here.pause))
        if status in (401, 403):
            return self.forbidden(doing, f"{status}{reason}", right if status == 403 else "")
        if status == 407:
            return UsageError(
                f"the proxy before {url} asks for a password (407): put one into HTTPS_PROXY, or the host into NO_PROXY"
            )
        if status == 413:
            return TooLarge(f"{url} takes no request of this size (413{reason}): raise its max_request_size_mb")
        if 300 <= status < 400 or doing == ITS_VERSION:
            return UsageError(f"{url} is not a Qdrant server ({status}): check the URL")
        return InterlockError(f"{url} refuses {doing} ({status}{reason}): fix that, and repeat the command")

    def forbidden(self, doing: str, said: str, right: str) -> "Forbidden":
        """What it means that a key was refused: that it is none, or lacks a right."""
        lacks = f" for {doing}, which takes {right}" if right else ""
        return Forbidden(f"{self.address.url} refuses this key ({said}){lacks}: set {VARIABLE}, or name --api-key-file")

    def _unanswered(self, doing: str, source: Exception) -> Exception:
        """What it means that there was no answer, or one of another form; what that says is not repeated, since a part
        of it may be a part of the key."""
        import httpx

        if not isinstance(source, httpx.TransportError | OSError):
            if doing == ITS_VERSION:
                return UsageError(f"{self.address.url} is not a Qdrant server: check the URL")
            return TransientError("an answer of another form")
        if isinstance(source, httpx.ProxyError) and str(source).startswith("407"):
            return self._refusal(doing, 407, b"", READ)
        said = self.shown(f"{type(source).__name__}: {source}")
        hopeless = isinstance(source, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.TooManyRedirects)
        if hopeless or "CERTIFICATE_VERIFY_FAILED" in said:
            return UsageError(f"{self.address.url} cannot be asked ({said}): check the URL, or set SSL_CERT_FILE")
        self._refusals -= f"[Errno {ECONNREFUSED}]" in said
        if self._refusals < 0:
            return UnavailableError(
                f"nothing listens at {self.address.url}: start Qdrant there, or name the URL where it listens"
            )
        return TransientError(said)

    def shown(self, said: object) -> str:
        """Return the beginning of what a server says, in one line and without the key."""
        text = " ".join(str(said)[: 10 * LONGEST_REASON].split())
        return (self.key.hidden_in(text) if self.key else text)[:LONGEST_REASON]
