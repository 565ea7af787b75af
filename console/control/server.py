"""The control socket of a run: a thread for each who asks, for as long as the run goes on.

The run never waits for it. Whoever says what is no request, says too much, says nothing for long or does not listen
is cut off, and so is every user but the run's own.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from interlock.console.control import protocol as said
from interlock.console.control.protocol import name_of, peer_of, short
from interlock.engine.compute.controls import STOP, Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode, reason
from interlock.engine.record.rundir import SOCKET
from interlock.engine.record.state import Control
from interlock.engine.record.words import legible

CLIENTS = 16
"""Who may be connected at once; one more is cut off."""
PATIENCE = 30.0
"""Seconds for which somebody may ask nothing, or leave a reply unread."""
LATEST = 64
"""Answers that are told at once at most."""
PAUSE = 0.05


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
        self._clients: dict[socket.socket, threading.Thread] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut everybody off, and take the socket away."""
        self._ended.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection, thread in list(self._clients.items()):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()
        path = self._directory / SOCKET
        with suppress(OSError):
            if path.lstat().st_ino == self._inode:
                path.unlink()

    def _serve(self) -> None:
        """Let in who may ask, until it is closed."""
        with self._listening:
            while not self._ended.is_set():
                try:
                    client, _ = self._listening.accept()
                    pid, user = peer_of(client)
                    if user != os.geteuid():
                        _refuse(client, f"the run belongs to {name_of(os.geteuid())}")
                    elif len(self._clients) >= CLIENTS:
                        _refuse(client, f"{CLIENTS} processes are connected already")
                    else:
                        thread = threading.Thread(target=self._attend, args=(client, _asker(user, pid)), daemon=True)
                        self._clients[client] = thread
                        try:
                            thread.start()
                        except RuntimeError:  # there may be no more threads
                            del self._clients[client]
                            client.close()
                except OSError:  # who asked has gone, or this process has no descriptor to spare, which may last
                    self._ended.wait(PAUSE)

    def _attend(self, connection: socket.socket, who: str) -> None:
        """Answer somebody for as long as requests come."""
        # Whatever becomes of one who asks, the others are answered.
        with suppress(Exception), connection, connection.makefile("rb") as heard:
            connection.settimeout(PATIENCE)
            while request := said.read(heard.readline(said.LONGEST), said.REQUESTS):
                connection.sendall(said.line_of(self._answer(request, who)))
        del self._clients[connection]

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


def _asker(user: int, pid: int) -> str:
    """Name who asks from another process of this machine, `ctl` or a watch: `kim@gpu-1 (pid 4711)`."""
    return f"{name_of(user)}@{legible(socket.gethostname())}" + f" (pid {pid})" * bool(pid)


def _refuse(connection: socket.socket, reason: str) -> None:
    with connection, suppress(OSError):
        connection.send(said.line_of(said.Answered(refused=reason)))
