"""Listens for other programs, and answers until a signal: a connection that brings no request in time, or takes no
answer, goes, so that those who do nothing keep nobody out.
"""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from interlock.console.front_ends.headless import handling
from interlock.engine.errors import UsageError

SLOW, ENDING, CONNECTIONS = 10.0, 10, 1024
"""Seconds for a request to arrive, seconds for those that are there to end, and connections, at most."""


class _Connection(H11Protocol):
    """One that has so long for the head of a request, and to take more of an answer: uvicorn's own time begins with the
    first answer, and again with every byte."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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

        with handling({signal.SIGINT: end, signal.SIGTERM: end}):
            yield


def listening(host: str, port: int) -> socket.socket:
    """Return what listens there. Raises UsageError where nothing can."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        at = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
        # What is accepted has it too. asyncio sets it where a socket says that it is TCP, which this one does not, and
        # without it an answer in two pieces waits 40 ms for the client's receipt of the first.
        at.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return at
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host} --port {port}: cannot listen there ({error}): choose another") from None


def server_of(app: ASGIApp) -> uvicorn.Server:
    """Make what answers by `app` until a signal says that it is enough."""
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
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=ENDING,
    )
    return _Server(config)
