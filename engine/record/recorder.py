"""The one place where events enter: each is journalled, folded into the state and put in a bounded ring.

`emit` is called from the engine's threads and never waits for a front end. A front end polls: `look`
reads the state under the lock, `drain` takes the entries it has not seen, and knows how many it missed.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from interlock.engine.record.events import AnyEvent, Entry
from interlock.engine.record.fold import fold, fold_each
from interlock.engine.record.journal import Journal
from interlock.engine.record.snapshot import Snapshot, snapshot
from interlock.engine.record.state import RunState

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
        self._lock = threading.Lock()
        self._clock, self._wall = clock, wall
        self._began = clock()

    def emit(self, event: AnyEvent) -> Entry:
        """Record one event. Raises InterlockError when the journal cannot be written."""
        with self._lock:
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
