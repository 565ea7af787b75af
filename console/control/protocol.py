"""What is said over the control socket of a run: a request a line, a reply a line, both JSON.

Pure: bytes and values. Whatever is no whole request of these is none; nobody tries to understand it.
"""

import os
import pwd
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from interlock.engine.compute.controls import VALUES
from interlock.engine.compute.schedule import Placement
from interlock.engine.record.events import ControlApplied
from interlock.engine.record.rundir import SOCKET
from interlock.engine.record.state import Control

CONTROLS = tuple(VALUES)
T = TypeVar("T")
LONGEST = 1024
"""Bytes of a request."""


class Inquiry(Struct, frozen=True, tag="inquire", tag_field="do", forbid_unknown_fields=True):
    """What is pending, what can be asked, and every answer after the first `since`."""

    since: int = 0


class Change(Struct, frozen=True, tag="change", tag_field="do", forbid_unknown_fields=True):
    """Have `control` become `value`."""

    control: str
    value: str


class Halt(Struct, frozen=True, tag="halt", tag_field="do", forbid_unknown_fields=True):
    """Stop after the current batch."""


class Foresee(Struct, frozen=True, tag="foresee", tag_field="do", forbid_unknown_fields=True):
    """What another schedule would lease next."""

    schedule: Literal["exclusive", "rotating", "shared"]


Request = Inquiry | Change | Halt | Foresee


class Answered(Struct, frozen=True, tag=True, tag_field="is"):
    """Whether it is asked now: why not, or the count of all answers that were given before."""

    refused: str = ""
    answers: int = 0
    who: str = ""


class Standing(Struct, frozen=True, tag=True, tag_field="is"):
    """How the controls of a run stand."""

    pending: list[ControlApplied] = []
    refusals: dict[str, str] = {}
    """What cannot be changed, and why."""
    stopping: bool = False
    answers: list[Control] = []


class NextLease(Struct, frozen=True):
    """What a model would have: its pass, the batches that are left to it, and where."""

    model_pass: int
    batches: int
    devices: tuple[str, ...]
    streamed: bool = False


class Foreseen(Struct, frozen=True, tag=True, tag_field="is"):
    """What another schedule would lease next; without leases nothing is left, or it is not known yet."""

    leases: list[NextLease] = []
    unaffected: bool = False
    """Whether what is leased now would stay just as it is."""
    unknown: str = ""
    """Why nobody can tell; empty where somebody could."""


Reply = Answered | Standing | Foreseen
REQUESTS: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
REPLIES: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
_encode = msgspec.json.Encoder().encode


def read(line: bytes, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Read a request or a reply; None for what is none."""
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return decoder.decode(line)
    return None


def line_of(said: Request | Reply) -> bytes:
    """Write a request or a reply as a line."""
    return _encode(said) + b"\n"


def foreseen(then: Placement | None, *, unaffected: bool) -> Foreseen:
    """Tell of a placement what an operator is shown before the schedule is changed."""
    leases = [
        NextLease(each.model_pass, len(each.batches), tuple(each.devices), each.streamed)
        for each in (then.assignments if then else ())
    ]
    return Foreseen(leases, unaffected)


_CREDENTIALS = struct.Struct("3i")


@contextmanager
def short(directory: Path) -> Iterator[str]:
    """Name the socket of `directory` in a few bytes: a longer name than 107 is none. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Find the process at the other end (0 where it is in another namespace), and its user id. Raises OSError."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


def name_of(user: int) -> str:
    """Name a user."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"
