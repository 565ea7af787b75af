"""The one place where events enter: each is journalled, folded into the state and put in a bounded ring.

`emit` is called from the engine's threads and never waits for a front end. A front end polls: `look`
reads the state under the lock, `drain` takes the entries it has not seen, and knows how many it missed.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

from interlock.engine.errors import InterlockError, UsageError, near
from interlock.engine.record import journal
from interlock.engine.record.events import AnyEvent, Entry
from interlock.engine.record.fold import fold, fold_each
from interlock.engine.record.journal import Journal
from interlock.engine.record.rundir import JOURNAL, LISTED, beside, runs_in
from interlock.engine.record.snapshot import Snapshot, snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import few, several

T = TypeVar("T")


class Recorder:
    """Writes the journal of one run and keeps its state; `first` is the `seq` of this session's first entry."""

    def __init__(
        self,
        journal: Journal,
        device_kind: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Replay what earlier sessions wrote; this session's entries follow, stamped by `clock` and `wall`."""
        self.journal = journal
        self.device_kind = device_kind
        self._state = RunState()
        self._next = 0
        for entry in fold_each(self._state, journal.replay()):
            self._next = entry.seq + 1
        self.first = self._next
        self.session = self._state.session + 1 if self._next else 0
        self._ring = Ring()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._clock, self._wall = clock, wall
        self._began = clock()

    def emit(self, event: AnyEvent) -> Entry:
        """Record one event. Raises InterlockError when the journal cannot be written."""
        with self._lock:
            if not self._ended.is_set():
                return self._add(event)
        return _stay()

    def end(self, event: AnyEvent) -> Snapshot | None:
        """Record the last event of a process that leaves at once: whoever would add another waits for its end. None
        where the journal was closed already, maybe without this session."""
        with self._lock:
            if self.journal.closed:
                return None
            self._ended.set()
            return snapshot(self._state, self._add(event).seq)

    def take_back(self) -> None:
        """Close the journal without what this session wrote; where `end` was first, stay until the process left."""
        with self._lock:
            if not self._ended.is_set():
                with closing(self.journal):
                    self.journal.rewind()
                return
        _stay()

    def _add(self, event: AnyEvent) -> Entry:
        entry = Entry(
            seq=self._next,
            at=round(self._wall(), 3),
            session=self.session,
            elapsed=round(self._clock() - self._began, 3),
            device_kind=self.device_kind,
            body=event,
        )
        self.journal.append(entry)
        fold(self._state, entry)
        self._ring.add(entry)
        self._next += 1
        return entry

    def look(self, read: Callable[[RunState], T]) -> T:
        """Read something of the state while it stands still; keep `read` short and let it copy what it returns."""
        with self._lock:
            return read(self._state)

    def snapshot(self) -> Snapshot:
        """Copy the run at this moment."""
        with self._lock:
            return snapshot(self._state, self._next - 1)

    def drain(self, after: int) -> tuple[list[Entry], int]:
        """Return the entries with `seq` above `after` still in the ring, and how many were dropped before them."""
        with self._lock:
            return self._ring.after(after)


def _stay() -> NoReturn:
    """Wait in a thread without which the process leaves."""
    while True:
        time.sleep(3600)


LATEST = 4096


class Ring:
    """At most `LATEST` entries whose `seq` rise by one. It has no lock of its own."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=LATEST)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def after(self, seq: int) -> tuple[list[Entry], int]:
        """Return those with a `seq` above this one, and how many before them are kept no more."""
        count = self._entries[-1].seq - seq if self._entries else 0
        fresh = list(islice(reversed(self._entries), max(0, count)))[::-1]
        return fresh, fresh[0].seq - seq - 1 if fresh else 0


CHUNK_BYTES = 256 << 10
MARK = 64
"""So much of the last line tells whether what was read before still stands."""


def journal_at(path: Path) -> Path:
    """Find the journal that a path means: a run's directory, or the file itself; it may be empty yet.

    Raises UsageError for a directory of runs, for what can be no journal, and where there is none, naming those
    there are.
    """
    try:
        found = path / JOURNAL if path.is_dir() else path
        if found.exists():
            return found
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if runs := runs_in(path) or runs_in(path / "runs"):
        names = few([str(run) for run in runs], LISTED)
        raise UsageError(f"{path} has {several(len(runs), 'run')}: name one (latest first): {names}")
    wrong = "has no journal" if path.is_dir() else f"does not exist{near(path)}"
    raise UsageError(f"{path} {wrong}: name a run directory ({beside(path)})")


class Tail:
    """Reads whole lines as they are added to a journal, which may be empty yet, and may be cut back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._suspect = -1
        self.end = 0
        """The byte at which the last entry ends that was read."""
        self._begin_anew()

    def more(self) -> tuple[bool, list[Entry]]:
        """Read on: whether what was read before was taken back, and the entries since, up to a torn line.

        Raises InterlockError for a journal that is damaged or of another version.
        """
        try:
            with self._path.open("rb") as handle:
                return self._added(handle)
        except FileNotFoundError:
            return False, []
        except OSError as error:
            raise InterlockError(f"cannot read {self._path}: {error.strerror}") from error

    def _added(self, handle: BinaryIO) -> tuple[bool, list[Entry]]:
        handle.seek(self.end - len(self._mark))
        anew = handle.read(len(self._mark)) != self._mark
        if anew:
            self._begin_anew()
            handle.seek(0)
        lines = handle.readlines(CHUNK_BYTES)
        return anew, self._entries(lines, at_end=not handle.read(1))

    def _begin_anew(self) -> None:
        self.end, self._next, self._mark = 0, 0, b""

    def _entries(self, lines: list[bytes], *, at_end: bool) -> list[Entry]:
        found = []
        for place, line in enumerate(lines, 1):
            entry = journal.decode(line) if line.endswith(b"\n") else None
            if entry is None or entry.seq != self._next:
                self._doubt(entry, torn=place == len(lines) and at_end)
                break
            self.end, self._next, self._mark = self.end + len(line), self._next + 1, line[-MARK:]
            found.append(entry)
        return found

    def _doubt(self, entry: Entry | None, *, torn: bool) -> None:
        """A line that is not as it should be is looked at twice: a writer may be cutting off a torn one just now."""
        if torn and entry is None:
            return
        if self._suspect != self.end:
            self._suspect = self.end
            return
        wrong = "is damaged" if entry is None else "is out of order"
        raise InterlockError(f"{self._path}: line {self._next + 1} {wrong}, so nothing after it can be trusted")
