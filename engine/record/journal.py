"""The append-only event file of a run: one JSON object a line, each with a CRC-32 of its own bytes.

A torn last line (the process was killed while writing) is cut off when the journal is opened again; a
line damaged anywhere else is an error that names it. One process at a time may hold a journal.
"""

import contextlib
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from interlock.engine.errors import DiskError, InterlockError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.events import Entry
from interlock.engine.record.words import DELETE, argument, command, unarmed

_CRC = b',"crc":"%08x"}\n'
_json = msgspec.json.Encoder().encode
_CRC_LENGTH = len(_CRC % 0)


def encode(entry: Entry) -> bytes:
    """Write one journal line: the entry as a JSON object whose last member is the checksum of what stands before it."""
    body = _json(entry)[:-1]
    if not body.isascii() or DELETE in body:  # asked here: a call for each event costs more than the question
        body = unarmed(body)
    return sealed(body)


def sealed(body: bytes) -> bytes:
    """Make a line of a JSON object that lacks its closing brace: its last member is the checksum of the rest."""
    return body + _CRC % crc32(body)


def opened_seal(line: bytes) -> bytes | None:
    """Return the object of a line as it was before it was sealed; None where the line is torn or damaged."""
    body = line[:-_CRC_LENGTH]
    return body + b"}" if line[-_CRC_LENGTH:] == _CRC % crc32(body) else None


def decode(line: bytes) -> Entry | None:
    """Return the entry of a whole, undamaged line; None for a torn or damaged one.

    Raises InterlockError for a whole line that this version does not understand.
    """
    body = opened_seal(line)
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=Entry)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InterlockError(f"the journal is from another version of interlock: {error}") from error


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a journal in order, up to a torn tail; raises InterlockError at damage before it."""
    for entry, _ in _scan(path):
        yield entry


def _scan(path: Path) -> Iterator[tuple[Entry, int]]:
    """Every whole entry with the offset of its end."""
    end, torn, expected = 0, 0, 0
    with atomic.opened(path) as handle:
        for number, line in enumerate(handle, 1):
            if torn:
                raise InterlockError(f"{path}: line {torn} is damaged, so nothing after it can be trusted")
            entry = decode(line)
            if entry is None:
                torn = number
                continue
            if entry.seq != expected:
                raise InterlockError(f"{path}: lines before line {number} are missing, so it cannot be trusted")
            end, expected = end + len(line), expected + 1
            yield entry, end


class Journal:
    """A journal open for appending; read it once with `replay` before the first `append`."""

    def __init__(self, path: Path) -> None:
        """Open or create `path` and lock it; a link in its place is not followed.

        Raises UsageError that says who holds it already, InterlockError when it cannot be written.
        """
        self.path = path
        self._begin = self._end = 0
        self._torn = False
        """Whether a part of a line may stand at its end."""
        with atomic.explaining(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = io.FileIO(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
            if not atomic.lock(self._handle):
                self._handle.close()
                who, run = atomic.occupant(path.parent) or "another session", argument(str(path.parent))
                raise UsageError(
                    f"{path.parent} is in use by {who}: wait for its end, follow it ({command(['watch', run])}), "
                    f"steer it ({command(['ctl', run, 'status'])}), or choose another --run-id"
                )
        atomic.enter(path.parent)

    def replay(self) -> Iterator[Entry]:
        """Yield the entries written by earlier sessions; a torn tail behind them is cut off. Raises InterlockError."""
        try:
            for entry, end in _scan(self.path):
                self._end = end
                yield entry
        except InterlockError as error:
            raise InterlockError(f"{error}: restore it from a copy, or start a new run") from error
        self._handle.truncate(self._end)
        self._begin = self._end

    def rewind(self) -> None:
        """Take back everything this session has written, as if it had never begun."""
        self._handle.truncate(self._begin)
        self._end = self._begin

    def append(self, entry: Entry) -> None:
        """Write one line; it survives the death of this process, though not yet a power cut (see `sync`).

        Raises DiskError when the disk refuses; the journal then ends with the line before.
        """
        line = encode(entry)
        try:
            if self._torn:
                self._handle.truncate(self._end)
            self._torn, left = True, line
            while left:  # after a part of it, the next try says why it was no more
                if not (written := self._handle.write(left)):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left = left[written:]
        except OSError as error:
            with contextlib.suppress(OSError):  # else before the next line
                self._handle.truncate(self._end)
            raise DiskError(f"cannot write {self.path}: {error.strerror}; free space and --resume") from error
        self._end, self._torn = self._end + len(line), False

    def sync(self) -> None:
        """Make every line written so far survive a power cut. Raises InterlockError where that cannot be."""
        with atomic.explaining(self.path):
            os.fdatasync(self._handle.fileno())
        if lost := self.lost:
            raise InterlockError(lost)

    @property
    def lost(self) -> str:
        """Why nobody could read what is written here, were this process to end now; empty while all is well."""
        with contextlib.suppress(OSError):
            if os.path.samestat(self.path.lstat(), os.fstat(self._handle.fileno())):
                return ""
        return (
            f"{self.path} was removed or replaced during the run, so work done since cannot be resumed: start "
            "a new run and leave its directory alone"
        )

    def close(self) -> None:
        with contextlib.suppress(InterlockError):
            self.sync()
        atomic.leave(self.path.parent)  # before the lock goes: the next session says who it is
        self._handle.close()
