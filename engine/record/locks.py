"""Who has a run in use: the lock on its journal says whether anybody has, a small file beside it says who.

The file goes with its session; what a killed one left is only read for who that was.
"""

import fcntl
import getpass
import os
import socket
import time
from contextlib import suppress
from io import IOBase
from pathlib import Path

import msgspec

from interlock.engine.record import atomic
from interlock.engine.record.words import legible, unarmed

SESSION = ".session.json"
LOCKS = Path("/proc/locks")
_LONGEST = 4096
_TRIES, _PAUSE = 5, 0.02
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Occupant(msgspec.Struct, frozen=True):
    """A process that works, or worked, in a run's directory; `since` is seconds since the epoch."""

    pid: int
    user: str
    host: str
    since: float

    def __str__(self) -> str:
        place = "" if self.host == legible(socket.gethostname()) else f" on {self.host}"
        return (
            f"{self.user} (pid {self.pid}{place}, since {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.since))})"
        )


def user_name() -> str:
    """Name the user of this process."""
    try:
        return legible(getpass.getuser())
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def enter(directory: Path) -> None:
    """Say that this process has the run in use; a place that cannot be written is no obstacle."""
    occupant = Occupant(os.getpid(), user_name(), legible(socket.gethostname()), round(time.time(), 3))
    with suppress(OSError):
        handle = os.open(directory / SESSION, _WRITE, 0o644)
        try:
            os.write(handle, unarmed(msgspec.json.encode(occupant)) + b"\n")
        finally:
            os.close(handle)


def leave(directory: Path) -> None:
    """Take back what `enter` said."""
    with suppress(OSError):
        (directory / SESSION).unlink()


def occupant(directory: Path) -> Occupant | None:
    """Read who has the run in use, or had when it was killed; None where nobody says so."""
    with suppress(OSError, ValueError, OverflowError, msgspec.MsgspecError), atomic.opened(directory / SESSION) as file:
        found = msgspec.json.decode(file.read(_LONGEST), type=Occupant)
        time.localtime(found.since)  # a moment that no calendar has could not be told either
        return found
    return None


def lock(journal: IOBase) -> bool:
    """Lock an open journal for this process alone; False where another has it in use."""
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE)  # who only looks holds it no longer than that
    return False


def held(journal: Path) -> bool:
    """Tell whether a process has the journal open for writing.

    The kernel's list of locks is asked first: to try the lock would, for a moment, keep a writer out.
    """
    try:
        with atomic.opened(journal) as handle:
            if not _listed(os.fstat(handle.fileno())):
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
    except BlockingIOError:
        return True
    except OSError:  # what cannot be read is not a journal that anybody writes, as far as can be told
        return False
    return True


def _listed(file: os.stat_result) -> bool:
    """Lines are like `1: FLOCK  ADVISORY  WRITE 708 08:01:2359301 0 EOF`. Other file systems have the same inode too,
    and some are listed with another device than their files have: of those the lock itself tells."""
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        locks = [line.split() for line in LOCKS.read_text().splitlines()]
    except OSError:
        return False
    # Who only looks holds a lock to read, and for a moment.
    wanted = ["FLOCK", "WRITE"]
    return any([lock[1], lock[3]] == wanted and lock[5] == place for lock in locks if len(lock) > 5)
