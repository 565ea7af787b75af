"""Files that are there whole or not at all: written under another name, synced, renamed into place.

Every artefact of a run goes through `replacing`, so that a killed process or a full disk leaves the old
file or none, never half of one. The other name is new each time and made by the call itself, so that nothing
that lies in its place, a link above all, is ever written through.
"""

import errno
import fcntl
import getpass
import hashlib
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from io import BufferedReader, IOBase
from pathlib import Path

import msgspec

from interlock.engine import storage
from interlock.engine.errors import DiskError, InterlockError, UsageError, remedy
from interlock.engine.record import atomic
from interlock.engine.record.facts import Artefact
from interlock.engine.record.words import legible, unarmed

PARTIAL = ".*.partial"
"""What matches the names of files that were never finished."""
LARGEST = 256 << 20
"""Bytes of a file that is read whole."""
FRESH = 60.0
"""Seconds in which a directory that was just made may not be locked yet."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Turn what the disk says of `path` into a DiskError that names it and says what to do."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror or error}; {remedy(error)}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the disk says of `path` into an InterlockError; that it is not there stays an error of its own."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InterlockError(f"cannot read {path}: {error.strerror or error}; {remedy(error)}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file beside `path` to be written; on success sync it and rename it to `path`.

    Raises InterlockError, naming the path, when the disk refuses.
    """
    partial = path.with_name(f".{path.name[:50]}.{secrets.token_hex(6)}.partial")
    try:
        with explaining(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(partial, _NEW, 0o666))
            yield partial
            handle = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            partial.replace(path)
            sync_directory(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def sweep(directory: Path, name: str = "") -> None:
    """Remove what killed processes left unfinished in `directory`, or of the file `name` alone where others write there
    too; for whoever holds its lock."""
    for left in directory.glob(f".{name}{PARTIAL[1:]}"):
        with suppress(OSError):
            left.unlink()


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Be the only process that makes something in `directory`, which is made; what killed ones left there is swept.

    Waits for who else is at it; the system lets go of the lock of one that dies.
    """
    with ExitStack() as stack:
        with explaining(directory / "lock"):
            directory.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((directory / "lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(directory)
        yield


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Be the only one that writes into a directory of the user's, which is made; nothing is left there to say so.

    Raises UsageError where another process does.
    """
    with ExitStack() as stack:
        with explaining(directory):
            directory.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(_handle_of(directory))
        if not lock(handle):
            raise UsageError(f"another process writes into {directory}: wait for its end, or choose another directory")
        yield


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Make a directory in TMPDIR that goes when the block ends. What processes of this user that were killed left there
    under this prefix goes too: each may be as large as a store."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, or goes already
            about = left.lstat()
            if about.st_uid == os.geteuid() and about.st_mtime < time.time() - FRESH:
                with _handle_of(left) as handle:
                    if lock(handle):
                        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix) as made, _handle_of(Path(made)) as handle:
        lock(handle)
        yield Path(made)


@contextmanager
def _handle_of(directory: Path) -> Iterator[int]:
    """Open a directory to lock it."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Put `data` at `path`, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(data)


def free_bytes(path: Path) -> int:
    """Bytes that are free on the disk of `path`; no end of them where its file system does not say."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return sys.maxsize


def take_blocks(path: Path, size: int = 0) -> None:
    """Give every byte of a file, and of one shorter than `size` as many, a block of its own: a full disk is an OSError
    now, not a dead process at the first write through a mapping."""
    with path.open("rb+") as handle:
        os.posix_fallocate(handle.fileno(), 0, max(size, path.stat().st_size, 1))


def remove(tree: Path) -> None:
    """Remove a directory with all that it holds, as far as it can be, but nothing behind a link. One descriptor at a
    time is enough."""
    if tree.is_symlink():
        return
    for directory, below, files in os.walk(tree, topdown=False):
        for name in (*files, *below):
            path = Path(directory, name)
            with suppress(OSError):
                path.rmdir() if name in below and not path.is_symlink() else path.unlink()
    with suppress(OSError):
        tree.rmdir()


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def opened(path: Path) -> BufferedReader:
    """Open a file to read. Raises OSError for a pipe in its place too, which would be waited for."""
    return BufferedReader(storage.raw(path, at_once))


def content(path: Path, most: int = LARGEST) -> bytes:
    """Read a file whole. Raises OSError for what is no file, and for one larger than any that is read whole."""
    with opened(path) as handle:
        if path.stat().st_size > most:
            raise OSError(errno.EFBIG, "too large to be read", str(path))
        return handle.read()


def place_of(descriptor: int, path: Path) -> Path:
    """Find where the file that was opened by `path` lies, without links; as the path says, where no system tells."""
    with suppress(OSError):
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    return path.resolve()


def at_once(path: str, flags: int) -> int:
    """Open what may have become a pipe or a device, which is refused; for `opener=`."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # of a directory `open` itself says what it is
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", path)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with opened(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


AGAIN = "restore it, or resume the run to write it again"


def check_written(path: Path, artefact: Artefact) -> None:
    """Raise InterlockError unless the file at `path` is the one that the run delivered."""
    try:
        status = path.stat()
        if status.st_size != artefact.bytes:
            raise InterlockError(f"{path} has {status.st_size:,} bytes, delivered were {artefact.bytes:,}: {AGAIN}")
        digest = _digest(path, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
    except OSError as error:
        raise InterlockError(f"cannot read {path} ({error.strerror}): {AGAIN}") from error
    if digest != artefact.sha256:
        raise InterlockError(f"{path} was changed after it was delivered (its SHA-256 differs): {AGAIN}")


@lru_cache(4096)
def _digest(path: Path, *_status: int) -> str:
    """The SHA-256 of a file, computed once for each state of it."""
    return sha256_of(path)


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


def lock(file: IOBase | int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file for this process alone, or with LOCK_SH for readers; False where another has it in use."""
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, how | fcntl.LOCK_NB)
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
