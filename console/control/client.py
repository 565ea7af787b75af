"""Asks a run of another process: a connection to its socket, and a box of controls that never waits for one.

`Link` waits for a reply, for a command line. `Remote` is what a screen asks: a thread of its own does the waiting, and
what was asked is pending until the run's journal has the answer.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from interlock.console.control import protocol as said
from interlock.console.control.protocol import name_of, peer_of, short
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode, InterlockError
from interlock.engine.record.events import ControlApplied, ControlRefused
from interlock.engine.record.rundir import SOCKET

PATIENCE = 5.0
"""Seconds for a reply."""
BEAT = 0.5
"""Seconds after which a run is asked how its controls stand."""
LONGEST = 1 << 20
R = TypeVar("R", said.Answered, said.Standing, said.Foreseen)


class UnreachableError(InterlockError):
    """A run that cannot be asked, and why."""


class Link(AbstractContextManager["Link"]):
    """A connection to the process of a run; a context manager."""

    def __init__(self, directory: Path) -> None:
        """Connect. Raises UnreachableError."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE)
        self._read = b""
        try:
            with short(directory) as name:
                self._socket.connect(name)
            _, owner = peer_of(self._socket)
        except OSError as error:
            self.close()
            raise UnreachableError(_why(error, directory)) from error
        if owner != os.geteuid():
            self.close()
            raise UnreachableError(f"the run belongs to {name_of(owner)}: only its own user steers it")

    def __exit__(self, *about: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def cut(self) -> None:
        """End the wait for a reply, from another thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, request: said.Request, kind: type[R]) -> R:
        """Ask, and wait for the reply. Raises UnreachableError."""
        try:
            with suppress(BrokenPipeError):  # who cuts us off may have said why
                self._socket.sendall(said.line_of(request))
            while b"\n" not in self._read and len(self._read) < LONGEST:
                piece = self._socket.recv(1 << 16)
                if not piece:
                    raise UnreachableError("the run's process closed the connection")
                self._read += piece
            line, _, self._read = self._read.partition(b"\n")
            reply = said.read(line, said.REPLIES)
        except TimeoutError as error:
            raise UnreachableError(
                f"the run's process did not reply within {PATIENCE:g} s; what was asked counts when it goes on"
            ) from error
        except OSError as error:
            raise UnreachableError(f"the run's process is gone ({error.strerror or error})") from error
        if isinstance(reply, kind):
            return reply
        refused = reply.refused if isinstance(reply, said.Answered) else ""
        raise UnreachableError(refused or "the run's process is of another version of interlock")


def _why(error: OSError, directory: Path) -> str:
    """Why nobody answers in a run's directory."""
    if isinstance(error, FileNotFoundError):
        return "the run has no control socket"
    if isinstance(error, ConnectionRefusedError):
        return "the process of the run is gone"
    with suppress(OSError):
        if isinstance(error, PermissionError):
            return f"the run belongs to {name_of((directory / SOCKET).stat().st_uid)}: only its own user steers it"
    return f"its control socket does not answer ({error.strerror or error})"


class Remote:
    """The controls of a run of another process, as a screen has them; `close` ends its thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.unreached = "not connected yet"
        """Why nothing can be asked now; empty where it can."""
        self._standing = said.Standing()
        self._asked: list[ControlApplied] = []
        self._requests: list[Callable[[Link], None]] = []
        self._foreseen: dict[Schedule, said.Foreseen | None] = {}
        self._told = ""
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="steer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        if self._link:
            self._link.cut()
        self._thread.join()

    @property
    def stop_requested(self) -> bool:
        return self._standing.stopping

    def pending(self) -> list[ControlApplied]:
        """List what was asked, here or elsewhere, and is not answered yet."""
        with self._lock:
            return list(dict.fromkeys([*self._standing.pending, *self._asked]))

    def refusal(self, control: str) -> str:
        """Say why `control` cannot be changed; empty where it can, as far as is known."""
        return self._standing.refusals.get(control, "")

    def ask(self, control: str, value: str, who: str) -> str:
        """Ask for `control` to become `value` as soon as can be; what comes of it is in the journal, or in `told`."""
        asked = ControlApplied(control=control, value=value, who=who)
        with self._lock:
            self._asked.append(asked)

        def change(link: Link) -> None:
            answer = link.ask(said.Change(control, value), said.Answered)
            if answer.refused:
                self._withdraw(asked)
                self._told = answer.refused

        self._request(change)
        return ""

    def stop(self, code: ExitCode, who: str) -> None:
        """Ask the run for an end after its batch."""

        def halt(link: Link) -> None:
            self._told = link.ask(said.Halt(), said.Answered).refused
            self._wake.set()

        self._request(halt)

    def foresee(self, schedule: Schedule) -> said.Foreseen | None:
        """Find what another schedule would lease next; None: it is being asked for, ask again."""
        with self._lock:
            if schedule in self._foreseen:
                found = self._foreseen[schedule]
                if found:
                    del self._foreseen[schedule]
                return found
            self._foreseen[schedule] = None

        def look(link: Link) -> None:
            found = link.ask(said.Foresee(schedule.value), said.Foreseen)
            with self._lock:
                self._foreseen[schedule] = found

        self._request(look)
        return None

    def answered(self, answer: ControlApplied | ControlRefused) -> None:
        """Take from what is pending what the journal has an answer to."""
        with self._lock:
            asked = next((each for each in self._asked if _same(each, answer)), None)
            left = [each for each in self._standing.pending if not _same(each, answer)]
            self._standing = msgspec.structs.replace(self._standing, pending=left)
        if asked:
            self._withdraw(asked)

    def told(self) -> str:
        """Take what an operator must hear of what was asked; mostly nothing."""
        told, self._told = self._told, ""
        return told

    def _withdraw(self, asked: ControlApplied) -> None:
        with self._lock, suppress(ValueError):
            self._asked.remove(asked)

    def _request(self, request: Callable[[Link], None]) -> None:
        with self._lock:
            self._requests.append(request)
        self._wake.set()

    def _run(self) -> None:
        """Connect, and again where the connection is lost; ask what is to be asked, and how the controls stand."""
        while not self._ended.is_set():
            try:
                with Link(self._directory) as link:
                    self._link, self.unreached = link, ""
                    while not self._ended.is_set():
                        self._talk(link)
                        self._wake.wait(BEAT)
                        self._wake.clear()
            except UnreachableError as error:
                self._lose(str(error))
            self._wake.wait(2 * BEAT)
            self._wake.clear()

    def _talk(self, link: Link) -> None:
        while self._requests:
            self._requests[0](link)
            with self._lock:  # only now: what is lost with the connection is told
                del self._requests[0]
        standing = link.ask(said.Inquiry(since=sys.maxsize), said.Standing)
        with self._lock:
            self._standing = standing

    def _lose(self, why: str) -> None:
        """Forget what nobody will answer."""
        with self._lock:
            self._told = f"no answer: {why}" if self._asked or self._requests else self._told
            self._standing, self._asked, self._requests = said.Standing(), [], []
            self._foreseen = {schedule: said.Foreseen(unknown=why) for schedule in self._foreseen}
        self.unreached = why


def _same(asked: ControlApplied, answer: ControlApplied | ControlRefused) -> bool:
    return (asked.control, asked.value) == (answer.control, answer.value)
