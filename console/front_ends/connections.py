"""Listens for other programs, and answers those who may ask until a signal: a connection that brings no request in
time, or takes no answer, goes, so that those who do nothing keep nobody out.
"""

import asyncio
import errno
import hmac
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from interlock.console.front_ends.headless import handling
from interlock.engine.errors import UsageError

SLOW, ENDING, CONNECTIONS = 10.0, 10, 1024
"""Seconds for a request to arrive, seconds for those that are there to end, and connections, at most."""

LOOPBACK = "127.0.0.1"
OWN = (LOOPBACK, "::1", "localhost")
_OWN_NAME = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")


@dataclass(frozen=True)
class Admission:
    """Who is answered: with a `key` who sends it, and `local` those alone who call this machine by its own name, which
    no page of a browser does that another name has led here."""

    key: str
    local: bool

    @classmethod
    def of(cls, flag: str, host: str, variable: str) -> Self:
        """Take the key that an environment variable has. Raises UsageError for one that no header can say, and for a
        `host`, which `flag` named, that others reach, without one."""
        key, local = os.environ.get(variable, "").strip(), host in OWN
        if not all("!" <= sign <= "~" for sign in key):
            raise UsageError(
                f"{variable}: a key has letters, digits and signs of ASCII without spaces: set it to another"
            )
        if not key and not local:
            raise UsageError(f"{flag}: set {variable} to a key that clients send, or listen at {LOOPBACK}")
        return cls(key, local)

    def refusal(self, headers: Mapping[str, str], *, open_to_all: bool = False) -> tuple[int, str] | None:
        """Say with which status, and in which words, a request is refused, None if it is not; what is `open_to_all`
        asks for no key. Names of headers are in small letters."""
        if self.local and not _OWN_NAME.fullmatch(headers.get("host", "").lower()):
            return 403, f"only this machine is answered: call it {LOOPBACK}, or start it at another address, with a key"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        own = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.key.encode())
        if self.key and not open_to_all and not own:
            return 401, "no key, or a wrong one: send Authorization: Bearer KEY"
        return None


class _Connection(H11Protocol):
    """One that has so long for the head of a request, and to take more of an answer: uvicorn's own time begins with the
    first answer, and again with every byte."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > (self.limit_concurrency or CONNECTIONS):  # more would take the process's descriptors
            transport.abort()
        self._head = self.loop.call_later(SLOW, self._late, self.cycle, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._head.cancel()
        self._head = self.loop.call_later(SLOW, self._late, self.cycle, self._unsent)
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Leave it to `_late`, which knows whether an answer is still on its way."""

    @property
    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def _late(self, cycle: object, unsent: int) -> None:
        """End it, unless another request has come, or some of the answer has been taken."""
        if 0 < self._unsent != unsent:
            self._head = self.loop.call_later(SLOW, self._late, cycle, self._unsent)
        elif self._unsent or self.cycle is cycle:
            self.transport.abort()


class _Server(uvicorn.Server):
    """Ends at a signal once what is asked is answered, and is not ended by it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def end(number: int, frame: FrameType | None) -> None:
            self.force_exit, self.should_exit = self.should_exit, True

        if threading.current_thread() is not threading.main_thread():  # beside a run, whose signals are its own
            yield
            return
        with handling({signal.SIGINT: end, signal.SIGTERM: end}):
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go at once of who takes no answer, where it is to end by force: cancelled answers wait for them too."""
        for each in [*self.server_state.connections] if self.force_exit else ():
            each.transport.abort()
        await super().shutdown(sockets)


def listening(host: str, port: int, asked: str = "") -> socket.socket:
    """Return what listens there, as the flags that `asked` for it say. Raises UsageError where nothing can."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        at = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
        # What is accepted has it too. asyncio sets it where a socket says that it is TCP, which this one does not, and
        # without it an answer in two pieces waits 40 ms for the client's receipt of the first.
        at.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return at
    except (OSError, UnicodeError) as error:
        where = asked or f"--host {host} --port {port}"
        taken, told = isinstance(error, OSError) and error.errno == errno.EADDRINUSE, getattr(error, "strerror", None)
        why, how = "another program does" if taken else told or error, "" if asked else " with --port N" * taken
        raise UsageError(f"{where}: cannot listen there ({why}): choose another{how}") from None


def server_of(app: ASGIApp, connections: int = CONNECTIONS, ending: int = ENDING) -> uvicorn.Server:
    """Make what answers by `app`, so many at once, until a signal says that it is enough and `ending` seconds later."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=connections,
        timeout_graceful_shutdown=ending,
    )
    return _Server(config)
