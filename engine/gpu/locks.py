"""Holds devices among all processes of the machine, so that two runs never share a card unknowingly.

Each device has a lock file under the machine's temporary directory, for all users. The lock is the kernel's (flock): it
goes with the process that holds it, however that ends, and what the file says is only read while somebody holds it.
"""

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.record import atomic
from interlock.engine.record.words import legible

_FOLDER = "interlock-locks"
_LONGEST = 4096
_TRIES, _PAUSE = 5, 0.02
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # neither a link nor a pipe in its place leads astray


class Holder(msgspec.Struct, frozen=True):
    """Who holds a device; `since` is seconds since the epoch."""

    pid: int
    run: str
    device: str
    since: float

    def __str__(self) -> str:
        began, today = time.localtime(self.since), time.localtime()
        form = "%H:%M" if began[:3] == today[:3] else "%Y-%m-%d %H:%M"
        return f"run {self.run} (pid {self.pid}, since {time.strftime(form, began)})"


@contextmanager
def holding(devices: Sequence[Device], run: str) -> Iterator[None]:
    """Hold every device that has a key, or none of them. Raises UnavailableError that says who holds one already."""
    keyed = {device.key: device for device in devices if device.key}
    with ExitStack() as held:
        for key in sorted(keyed):  # one order for all, so that of two runs that want the same devices one gets them
            held.callback(os.close, _take(key, keyed[key].name, run))
        yield


def holder(device: Device) -> Holder | None:
    """Look who holds `device` now, this process's own runs too; None when nobody does, or nobody says so."""
    if device.key is None:
        return None
    with suppress(OSError, UnavailableError), _directory() as (_, directory):
        handle = os.open(_file_name(device.key), _OPEN, dir_fd=directory)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(handle)
        finally:
            os.close(handle)
    return None


def _take(key: str, name: str, run: str) -> int:
    """The open lock file of a device, locked by us."""
    with _directory() as (path, directory):
        try:
            handle = _open_file(_file_name(key), directory)
        except OSError as error:
            raise UnavailableError(
                f"cannot lock {name}: {path / _file_name(key)} is in the way ({error.strerror}); remove it, or set "
                "TMPDIR to another directory"
            ) from error
    try:
        if not atomic.lock(handle):
            who = _read(handle) or "another run"
            raise UnavailableError(f"{name} is in use by {who}: wait for it, or choose other --devices")
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, msgspec.json.encode(Holder(os.getpid(), legible(run), name, time.time())), 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def _directory() -> Iterator[tuple[Path, int]]:
    """A directory that lock files can be made in, open: the machine's, else the user's own."""
    own = os.environ.get("XDG_RUNTIME_DIR") or str(Path.home() / ".cache")
    for path, mode in ((Path(tempfile.gettempdir(), _FOLDER), 0o1777), (Path(own, _FOLDER), 0o700)):
        with suppress(OSError):
            handle = _make_directory(path, mode)
            break
    else:
        raise UnavailableError(
            f"cannot create lock files in {tempfile.gettempdir()} or {own}: set TMPDIR to a writable directory"
        )
    try:
        yield path, handle
    finally:
        os.close(handle)


def _make_directory(path: Path, mode: int) -> int:
    with suppress(FileExistsError):
        path.mkdir(parents=True)
        path.chmod(mode)  # whatever the umask says: every user of the machine locks here
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.access(path, os.W_OK | os.X_OK):
        return handle
    os.close(handle)
    raise PermissionError(path)


def _open_file(name: str, directory: int) -> int:
    """Opened first, made only if it is missing: Linux refuses O_CREAT for another user's file in a directory of all
    (fs.protected_regular)."""
    with suppress(FileNotFoundError):
        return _regular(os.open(name, _OPEN, dir_fd=directory))
    with suppress(FileExistsError):
        handle = os.open(name, _OPEN | os.O_CREAT | os.O_EXCL, dir_fd=directory)
        os.fchmod(handle, 0o666)
        return handle
    return _regular(os.open(name, _OPEN, dir_fd=directory))  # another process made it meanwhile


def _regular(handle: int) -> int:
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file")


def _read(handle: int) -> Holder | None:
    """What the holder wrote; it may be about to. Other users write here too: what makes no sense is nobody."""
    for _ in range(_TRIES):
        with suppress(msgspec.MsgspecError, ValueError, OverflowError, OSError):
            holder = msgspec.json.decode(os.pread(handle, _LONGEST, 0), type=Holder)
            time.localtime(holder.since)  # a moment that no calendar has could not be told either
            return holder
        time.sleep(_PAUSE)
    return None


def _file_name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]
