"""The append-only files of a run: its events, and of each upload how far it is. One JSON object a line, each with a
CRC-32 of its own bytes.

A torn last line (the process was killed while writing) is cut off when the journal is opened again; a
line damaged anywhere else is an error that names it. One process at a time may hold a journal.

That of an upload says how many rows of what a server has acknowledged, so that another process goes on there, and what
is waited for. Rows go in order, so the last line says it all. One of something else, or a damaged one, is begun anew:
points have ids that stay, and sending them twice changes nothing. Each beginning has a mark of its own, which its
collection is given: with another mark there, nothing that was acknowledged here is sure to be there still.
"""

import contextlib
import errno
import io
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct

from interlock.engine.errors import DiskError, InterlockError, UsageError, how_to_resume
from interlock.engine.record import atomic
from interlock.engine.record.events import Entry
from interlock.engine.record.words import DELETE, argument, command, unarmed

_CRC = b',"crc":"%08x"}\n'
_json = msgspec.json.Encoder().encode
_CRC_LENGTH = len(_CRC % 0)
BEGINS = b'{"seq":0,"at":'
"""How the first line of a journal does."""


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
        self.closed = self._torn = False
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
        except (InterlockError, FileNotFoundError) as error:
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
            raise DiskError(f"cannot write {self.path}: {error.strerror}; {how_to_resume(error)}") from error
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
        end = self._end  # before the file is looked at: other threads write on
        with contextlib.suppress(OSError):
            seen = self.path.lstat()
            if os.path.samestat(seen, os.fstat(self._handle.fileno())) and seen.st_size >= end:
                return ""
        why = f"{self.path} was removed, replaced or cut during the run, so work done since cannot be resumed"
        return f"{why}: start a new run and leave its directory alone"

    def close(self) -> None:
        with contextlib.suppress(InterlockError):
            self.sync()
        self.closed = True
        atomic.leave(self.path.parent)  # before the lock goes: the next session says who it is
        self._handle.close()


BEAT = 5.0
"""Seconds between two lines of an upload that say nothing new but that the server answers."""
INTERRUPTED = "it was interrupted"


class UploadBinding(Struct, frozen=True, tag_field="entry", tag="begun"):
    """What a journal is about: a collection of a server, the SHA-256 of what is uploaded, its rows, and its mark; and
    the `flags` that it was begun with, where anybody told."""

    url: str
    collection: str
    fingerprint: str
    rows: int
    mark: str = ""
    flags: tuple[str, ...] | None = None


class Acknowledged(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="entry", tag="acknowledged"):
    """All rows before `rows` are in the collection; `unchanged` were not sent. At `at`, in seconds since the epoch,
    `left` seconds more were foreseen; or what `waits` says was waited for, since `since`, after `attempts`, up to
    `until`, `cut` where the server left off. Why it `ended`; empty: all was done. At first only rows were told."""

    rows: int
    unchanged: int = 0
    at: float = 0.0
    left: float | None = None
    waits: str = ""
    since: float = 0.0
    attempts: int = 0
    until: float = 0.0
    ended: str | None = None
    cut: bool = False


class Upload(NamedTuple):
    """An upload of the run in a directory as its journal tells of it; whether a process is at it."""

    run: Path
    to: UploadBinding
    latest: Acknowledged
    live: bool

    @property
    def onward(self) -> str:
        """The command that goes on with it."""
        return upload_command(self.run, self.to.url, self.to.flags or ())


def upload_command(run: Path, url: str, flags: Sequence[str] = ()) -> str:
    """Write the command that uploads a run, ready to be pasted."""
    return command(["upload", argument(str(run)), "--qdrant", url, *flags])


class UploadJournal(contextlib.AbstractContextManager["UploadJournal"]):
    """An open journal, locked for this process; a context manager, which notes how the upload ended. `rows` is how many
    are acknowledged, `unchanged` how many were not sent, `mark` what the collection is marked with while that holds."""

    def __init__(self, path: Path, binding: UploadBinding, more: bool = False) -> None:
        """Open or create it; where `more` collections follow, its end is not the upload's. Raises UsageError where
        another process has it or a link is in its place."""
        self.path, self._binding, self.mark, self._more = path, binding, "", more
        with atomic.explaining(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(path, "ab+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
        if not atomic.lock(self._file):
            self._file.close()
            raise UsageError(f"{path} is in use by another upload: wait for its end")
        self._first: tuple[float, int] | None = None
        """When something was acknowledged first by this process, and how many rows were there then."""
        self._stands, self.unchanged = ("", 0.0, False), 0
        rows = self._replay()
        self.rows = rows or 0
        if rows is None:
            self.restart()
        else:
            self._put(Acknowledged(rows=rows, at=time.time()))

    def __exit__(self, _: type[BaseException] | None, why: BaseException | None, __: TracebackType | None) -> None:
        with contextlib.suppress(InterlockError):  # the disk is full: `why` says so, or nothing is lost by it
            ended = (None if self._more else "") if why is None else str(why) or INTERRUPTED
            self._put(Acknowledged(rows=self.rows, at=time.time(), ended=ended))
        self._file.close()

    def acknowledge(self, rows: int) -> None:
        """Note that all rows before `rows` are in the collection; it survives the death of this process."""
        now = time.time()
        self._first = self._first or (now, rows)
        done, took = rows - self._first[1], now - self._first[0]
        left = took / done * (self._binding.rows - rows) if done else None
        self._put(Acknowledged(rows=rows, at=now, left=left))
        self.rows = rows

    def note(self, waits: str = "", attempts: int = 0, seconds: float = 0.0) -> None:
        """Note that after so many attempts the server has not answered, why, and for how many seconds more it is asked;
        or else that it has, now and then where nothing changed."""
        now, before = time.time(), self.latest
        text, until, cut = (waits, now + seconds, False) if waits else self._stands
        if (text, attempts) == (before.waits, before.attempts) and 0 <= now - before.at < BEAT:
            return
        since = (before.since or now) if text else 0.0
        told = Acknowledged(rows=self.rows, at=now, waits=text, since=since, attempts=attempts, until=until, cut=cut)
        self._put(told if text else Acknowledged(rows=self.rows, at=now, left=before.left))

    def stand(self, waits: str, seconds: float, *, cut: bool = False) -> None:
        """Note what is waited for, though the server answers, for `seconds` more; `cut`: it left off; or nothing."""
        self._stands = (waits, time.time() + seconds, cut) if waits else ("", 0.0, False)
        self.note()

    def restart(self) -> None:
        """Begin anew, with another mark and no row acknowledged."""
        with atomic.explaining(self.path):
            self._file.truncate(0)
        self.rows, self.unchanged, self.mark, self._first = 0, 0, secrets.token_hex(8), None
        self._append(msgspec.structs.replace(self._binding, mark=self.mark))
        self._put(Acknowledged(rows=0, at=time.time()))

    def _put(self, told: Acknowledged) -> None:
        self.latest = msgspec.structs.replace(told, unchanged=self.unchanged)
        self._append(self.latest)

    def _append(self, entry: UploadBinding | Acknowledged) -> None:
        line = sealed(unarmed(_json(entry)[:-1]))
        with atomic.explaining(self.path):
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _replay(self) -> int | None:
        """The rows that are acknowledged; None where it is new, damaged or of other things. A torn last line is cut."""
        with atomic.reading(self.path):
            self._file.seek(0)
            content = self._file.readall()
        rows, whole = None, 0
        for line in content.splitlines(keepends=True):
            body = opened_seal(line)
            if body is None:
                break
            whole += len(line)
            try:
                entry = msgspec.json.decode(body, type=UploadBinding | Acknowledged)
            except msgspec.MsgspecError:
                return None
            if rows is None:
                if not isinstance(entry, UploadBinding):
                    return None
                if self._binding != msgspec.structs.replace(entry, mark="", flags=self._binding.flags):
                    return None
                self.mark = entry.mark
            rows = entry.rows if isinstance(entry, Acknowledged) else 0
        if b"\n" in content[whole:]:
            return None
        with atomic.explaining(self.path):
            self._file.truncate(whole)
        return rows


def upload_of(run: Path, name: str = "*", *, whole: bool = False) -> Upload | None:
    """Find the upload of a run that a process is at, or else the latest, by the `name` of its journal. None: there is
    none that can be read, or it did all that was to be done, and `whole` ones are not asked for."""
    with contextlib.suppress(OSError, ValueError, IndexError, msgspec.MsgspecError):
        found = [(atomic.held(each), each.stat().st_mtime_ns, each) for each in run.glob(f"uploads/{name}.jsonl")]
        live, _, path = max(found)
        lines = atomic.content(path).splitlines(keepends=True)
        bodies = [body for line in (*lines[:1], *lines[1:][-2:]) if (body := opened_seal(line))]
        to = msgspec.json.decode(bodies[0], type=UploadBinding)
        latest = msgspec.json.decode(bodies[-1], type=Acknowledged) if bodies[1:] else Acknowledged(rows=0)
        live = live or (latest.ended is None and atomic.held(path))  # it began meanwhile
        done = latest.ended == "" or (not latest.at and latest.rows == to.rows)
        return Upload(run, to, latest, live) if whole or not done or (live and latest.ended is None) else None
    return None
