"""Where the socket of a run is: in its directory, however long the path of that is, and only for who owns the run."""

import os
import pwd
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interlock.engine.record.rundir import SOCKET

_CREDENTIALS = struct.Struct("3i")


@contextmanager
def short(directory: Path) -> Iterator[str]:
    """Name the socket of `directory` in a few bytes: a longer name than 107 is none. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def user_behind(connection: socket.socket) -> int:
    """Find the user id of the process at the other end. Raises OSError."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(data)[1]
    return user


def name_of(user: int) -> str:
    """Name a user."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"
