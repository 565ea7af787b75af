"""Every call of a process to the file system as a numbered point, and something done at one of them.

Installed in a forked trial only: audit hooks cannot be taken out again. A point is met before its call, and for what
makes data durable after it too. What compiled libraries do by themselves is not seen.
"""

import builtins
import errno
import hashlib
import io
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

AUDITED = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.symlink",
    "os.link",
    "os.scandir",
    "os.listdir",
}
READS = {"open-r", "read", "mmap", "os.scandir", "os.listdir"}
WRITES = {"open-w", "write", "os.mkdir", "os.rename", "posix_fallocate", "truncate", "ftruncate"}
RECORD = "record"


@dataclass(frozen=True)
class Point:
    """One call: its place among those met, what is called, and on which file; `data` is what is written."""

    number: int
    kind: str
    path: str
    handle: int = -1
    data: bytes = b""


Act = Callable[[Point], object]


class _Taps:
    """The points of this process under `roots`."""

    def __init__(self, roots: Sequence[Path], kinds: set[str] | None, act: Act) -> None:
        self._roots = tuple(str(root) for root in roots)
        self._kinds, self._act = kinds, act
        self._met, self._busy = 0, False

    def meet(self, kind: str, path: object, handle: int = -1, data: bytes = b"") -> None:
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if self._busy or (self._kinds and kind not in self._kinds):
            return
        if kind != RECORD and not name.startswith(self._roots):
            return
        number, self._met, self._busy = self._met, self._met + 1, True
        try:
            self._act(Point(number, kind, name, handle, data))
        finally:
            self._busy = False

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            flags = args[2] if isinstance(args[2], int) else 0
            self.meet("open-w" if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "open-r", args[0])
        elif event in AUDITED:
            self.meet(event, args[0] if args else "")
        elif event in ("mmap.__new__", "fcntl.flock"):
            self.meet(event.partition(".")[0], _name_of(args[0]))


def install(roots: Sequence[Path], act: Act, kinds: set[str] | None = None) -> None:
    """Call `act` at every point on a file under `roots`, of these kinds if any are given."""
    taps = _Taps(roots, kinds, act)
    sys.addaudithook(taps.audit)
    for name in ("fsync", "fdatasync", "ftruncate", "posix_fallocate", "write", "read", "pread"):
        setattr(os, name, _around(taps, name, getattr(os, name)))
    io.FileIO = _tapped(taps, io.FileIO)
    builtins.open = io.open = _opened(taps, io.open, io.FileIO)
    if kinds and RECORD in kinds:
        for module, name in ((hashlib, "sha256"), (uuid, "uuid5"), (msgspec.json, "decode")):
            setattr(module, name, _counted(taps, getattr(module, name)))


def _around(taps: _Taps, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def tapped(handle: int, *more: Any, **named: Any) -> Any:
        data = bytes(more[0]) if name == "write" else b""
        taps.meet("read" if name == "pread" else name, _name_of(handle), handle, data)
        found = call(handle, *more, **named)
        if name not in ("read", "pread", "write"):
            taps.meet(f"after {name}", _name_of(handle), handle)
        return found

    return tapped


def _counted(taps: _Taps, call: Callable[..., Any]) -> Callable[..., Any]:
    def tapped(*args: Any, **named: Any) -> Any:
        taps.meet(RECORD, "")
        return call(*args, **named)

    return tapped


def _name_of(handle: object) -> str:
    with suppress(OSError, TypeError):
        number = handle if isinstance(handle, int) else handle.fileno()
        return str(Path(f"/proc/self/fd/{number}").readlink())
    return ""


def _tapped(taps: _Taps, plain: type[io.FileIO]) -> type[io.FileIO]:
    """Raw files whose reads and writes are met."""

    class Tapped(plain):
        def write(self, data: Any) -> int:
            taps.meet("write", self.name, self.fileno(), bytes(data))
            return super().write(data)

        def truncate(self, size: int | None = None) -> int:
            taps.meet("truncate", self.name, self.fileno())
            return super().truncate(size)

        def readinto(self, into: Any) -> int | None:
            taps.meet("read", self.name, self.fileno())
            return super().readinto(into)

        def readall(self) -> bytes:
            taps.meet("read", self.name, self.fileno())
            return super().readall() or b""

    return Tapped


def _opened(taps: _Taps, plain: Callable[..., Any], raw_file: type[io.FileIO]) -> Callable[..., Any]:
    """`open`, with a raw file below it that is tapped."""

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
               newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        if isinstance(file, int) or not os.fsdecode(file).startswith(taps._roots):
            return plain(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = raw_file(os.fsdecode(file), mode.replace("b", "").replace("t", ""), opener=opener)
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        buffered = kind(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    return opened


def record_points(file: Path) -> Act:
    """Write the kind and path of every point into a file, a JSON line each."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    write = os.write

    def act(point: Point) -> None:
        write(handle, json.dumps([point.kind, point.path]).encode() + b"\n")

    return act


def kill_at(number: int, part: float) -> Act:
    """Die there by SIGKILL; of what was to be written, that part is."""
    write = os.write

    def act(point: Point) -> None:
        if point.number == number:
            if point.data and point.handle >= 0:
                write(point.handle, point.data[: int(len(point.data) * part)])
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def fail_at(first: int, code: int, times: int = 1) -> Act:
    """Refuse as many calls as said, from that one on, with an error of the system."""

    def act(point: Point) -> None:
        if first <= point.number < first + times:
            raise OSError(code, os.strerror(code), point.path)

    return act


def at(number: int, do: Callable[[], object]) -> Act:
    """Do something there, once."""

    def act(point: Point) -> None:
        if point.number == number:
            do()

    return act


def points(file: Path) -> list[tuple[str, str]]:
    """What `record_points` has written."""
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()]


TRANSIENT = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.ENOENT, errno.ESTALE)
