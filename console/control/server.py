"""The control socket of a run: a thread that answers who asks, for as long as the run goes on.

The run never waits for it. Whoever says what is no request, says too much, says nothing for long or does not listen
is cut off, and so is every user but the run's own.
"""

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from interlock.console.control import protocol as said
from interlock.console.control.protocol import name_of, short, user_behind
from interlock.engine.compute.controls import STOP, Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode, reason
from interlock.engine.record.rundir import SOCKET
from interlock.engine.record.state import Control

CLIENTS = 16
"""Who may be connected at once; one more is cut off."""
PATIENCE = 30.0
"""Seconds for which somebody may be connected and ask nothing."""
UNREAD = 1 << 20
"""Bytes of replies that may wait for somebody who does not listen."""
LATEST = 64
"""Answers that are told at once at most."""
BEAT, PAUSE = 1.0, 0.05


@dataclass
class _Client:
    """Somebody who is connected: what was said so far of a request, and what was not read of the replies."""

    who: str
    heard_at: float = field(default_factory=time.monotonic)
    heard: bytes = b""
    unread: bytes = b""


@contextmanager
def steerable(directory: Path, controls: Controls, answers: Callable[[], Sequence[Control]]) -> Iterator[str]:
    """Answer at the socket of a run while this lasts; yield why nobody can, empty where somebody can."""
    try:
        server = Server(directory, controls, answers)
    except (OSError, RuntimeError) as error:  # of a thread that cannot be started
        yield f"no control socket in {directory} ({reason(error)}): only this terminal steers the run"
        return
    try:
        yield ""
    finally:
        server.close()


class Server:
    """Answers at the socket in a run's directory until it is closed."""

    def __init__(self, directory: Path, controls: Controls, answers: Callable[[], Sequence[Control]]) -> None:
        """Listen in `directory`, whose journal this process holds, so that a socket there is a dead session's;
        `answers` gives every answer of the engine so far. Raises OSError where there can be no socket."""
        self._directory, self._controls, self._answers = directory, controls, answers
        self._listening = _bound(directory)
        self._inode = (directory / SOCKET).lstat().st_ino
        self._clients: dict[socket.socket, _Client] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for each in (self._listening, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut everybody off, and take the socket away."""
        self._wake.close()
        self._thread.join()
        path = self._directory / SOCKET
        with suppress(OSError):
            if path.lstat().st_ino == self._inode:
                path.unlink()

    def _serve(self) -> None:
        """Answer until the other end of `_woken` is closed."""
        with self._listening, self._woken, self._selector:
            while True:
                ready = {key.fileobj: events for key, events in self._selector.select(BEAT)}
                if self._woken in ready:
                    for connection in self._clients:
                        connection.close()
                    return
                if self._listening in ready:
                    self._accept()
                late = time.monotonic() - PATIENCE
                for connection, client in list(self._clients.items()):
                    heard = self._attend(connection, client, ready[connection]) if connection in ready else True
                    if not heard or client.heard_at < late:
                        self._selector.unregister(connection)
                        del self._clients[connection]
                        connection.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listening.accept()
            client.setblocking(False)
            user = user_behind(client)
        except OSError:  # who asked has gone, or this process has no descriptor to spare, which may last
            time.sleep(PAUSE)
            return
        if user != os.geteuid():
            _refuse(client, f"the run belongs to {name_of(os.geteuid())}")
        elif len(self._clients) >= CLIENTS:
            _refuse(client, f"{CLIENTS} processes are connected already")
        else:
            self._selector.register(client, selectors.EVENT_READ)
            self._clients[client] = _Client(name_of(user))

    def _attend(self, connection: socket.socket, client: _Client, events: int) -> bool:
        """Hear and answer somebody; whether to go on with that."""
        try:
            if events & selectors.EVENT_READ:
                piece = connection.recv(said.LONGEST)
                *lines, client.heard = (client.heard + piece).split(b"\n")
                for line in lines:
                    request = said.request_in(line)
                    if request is None:
                        return False
                    client.heard_at = time.monotonic()
                    client.unread += said.line_of(self._answer(request, client.who))
                if not piece or len(client.heard) > said.LONGEST:
                    return False
            if client.unread:
                client.unread = client.unread[connection.send(client.unread) :]
        except BlockingIOError:
            pass
        except Exception:  # whatever becomes of one who asks, the others are answered
            return False
        waits = selectors.EVENT_WRITE if client.unread else 0
        self._selector.modify(connection, selectors.EVENT_READ | waits)
        return len(client.unread) <= UNREAD

    def _answer(self, request: said.Request, who: str) -> said.Reply:
        controls = self._controls
        match request:
            case said.Inquiry(since=since):
                refusals = {name: why for name in said.CONTROLS if (why := controls.refusal(name))}
                answers = list(self._answers())[max(0, since) :][-LATEST:]
                return said.Standing(controls.pending(), refusals, controls.stop_requested, answers)
            case said.Change(control=control, value=value):
                before = len(self._answers())
                return said.Answered(controls.ask(control, value, who, elsewhere=True), before, who)
            case said.Halt():
                before = len(self._answers())
                if not (refused := controls.refusal(STOP)):
                    controls.stop(ExitCode.STOPPED, who)
                return said.Answered(refused, before, who)
            case said.Foresee(schedule=schedule):
                wanted = Schedule(schedule)
                then = controls.preview(wanted)
                return said.foreseen(then, unaffected=then is not None and controls.unaffected_by(wanted))


def _bound(directory: Path) -> socket.socket:
    """Listen in `directory`, where only this user may connect from the beginning."""
    with suppress(FileNotFoundError):
        (directory / SOCKET).unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listening.fileno(), 0o600)  # what it is bound with is the mode of its name
        with short(directory) as name:
            listening.bind(name)
        listening.listen(CLIENTS)
    except BaseException:
        listening.close()
        raise
    return listening


def _refuse(connection: socket.socket, reason: str) -> None:
    with connection, suppress(OSError):
        connection.send(said.line_of(said.Answered(refused=reason)))
