"""The console of a run in a browser: a page for whoever has its address, on this machine alone unless another is named.

Each page that is opened is a process of its own with the same command line, which draws into a socket in place of a
terminal (textual-serve). The address has a token, made anew each time; without it, or the cookie that takes its place,
nothing is answered.
"""

import os
import secrets
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interlock.console.writing import say
from interlock.engine.errors import UnavailableError, UsageError

LOOPBACK = "127.0.0.1"
COOKIE = "interlock"


def in_browser() -> bool:
    """Whether this process draws for a page."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


@contextmanager
def page() -> Iterator[None]:
    """Close the page that this process draws for, if any, when all is done."""
    try:
        yield
    finally:
        if in_browser():
            from interlock.console.terminal.page import PageDriver

            PageDriver.leave()


def serve(address: str) -> None:
    """Serve the console that this process's command line names at `[HOST:]PORT`, until it is interrupted.

    Raises UnavailableError without textual-serve, UsageError for an address that is none or cannot be had.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"--web: expected [HOST:]PORT, got {address!r:.100}: name a port")
    try:
        server = _guarded(host or LOOPBACK, int(port))
    except ImportError as error:
        raise UnavailableError(
            f"--web needs textual-serve ({error}): install it with `pip install 'interlock[web]'`"
        ) from None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host or LOOPBACK, int(port)), family=family).close()  # the server says it listens before
        server.serve()
    except OSError as error:
        raise UsageError(f"cannot listen at {address} ({error.strerror or error}): choose another port") from error


def _guarded(host: str, port: int) -> Any:
    """A server that answers only who has its token."""
    from aiohttp import web
    from textual_serve.server import Server

    token = secrets.token_urlsafe(24)

    @web.middleware  # type: ignore[untyped-decorator, unused-ignore]
    async def guard(request: web.Request, handler: Any) -> Any:
        given = request.query.get("token")
        if not secrets.compare_digest((given or request.cookies.get(COOKIE, "")).encode(), token.encode()):
            return web.Response(status=403, text="Open the address that was printed, with its token.\n")
        if given is None:
            return await handler(request)
        entered = web.Response(status=303, headers={"Location": "/", "Referrer-Policy": "no-referrer"})
        entered.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return entered

    class Guarded(Server):  # type: ignore[misc, unused-ignore]
        def initialize_logging(self) -> None:
            """Say nothing of requests."""

        async def on_startup(self, app: web.Application) -> None:
            say(f"console at {self.public_url}/?token={token} until Ctrl-C: who has this address is the operator")

        async def _make_app(self) -> web.Application:
            app = await super()._make_app()
            app.middlewares.append(guard)
            return app

    return Guarded(shlex.join([sys.executable, "-m", "interlock", *sys.argv[1:]]), host, port)
