"""A run that is read from its journal: `Watched` while another process writes it, `Replayed` at any speed.

Both are sources for a screen and change nothing themselves: no lock is kept, nothing is written; what an operator asks
of a run that is watched goes to its own process. A thread of their own reads and
folds a few hundred entries at a time, so that a screen never waits for a long journal. What is wrong with the journal
while it is read is left in `failure`; `note` says what an operator must know of it, and mostly nothing.
"""

import math
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from interlock.console.control.client import Remote
from interlock.console.control.protocol import Foreseen
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import InterlockError, UsageError, reason
from interlock.engine.record import journal
from interlock.engine.record.atomic import held
from interlock.engine.record.events import ControlApplied, ControlRefused, Entry
from interlock.engine.record.fold import fold_each
from interlock.engine.record.recorder import Ring, Tail, journal_at
from interlock.engine.record.runs import chunks_of, resume_words
from interlock.engine.record.snapshot import GONE, PassCells, Snapshot, cells_of, snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import command, duration

CHUNK = 256
"""Entries that are folded while a screen would have to wait."""
POLL_SECONDS = 0.1
QUIET_SECONDS = 4.0
"""A run that writes nothing for so long is asked whether it is still there."""


class _Folding(ABC):
    """Folds entries one after the other in a thread that `close` ends, and keeps the latest of them."""

    kind = ""
    unsteered = "a replay cannot be steered"

    def __init__(self) -> None:
        self.failure: InterlockError | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.kind, daemon=True)
        self.begun = 0
        self._forget()

    def snapshot(self) -> Snapshot:
        """Copy the state of the run as far as it was folded."""
        with self._lock:
            return snapshot(self._state, self._seq)

    def cells(self, model_pass: int) -> PassCells:
        with self._lock:
            return cells_of(self._state, model_pass)

    def mitigations(self) -> list[Entry]:
        with self._lock:
            return list(self._state.mitigations)

    def entries(self, after: int) -> tuple[list[Entry], int]:
        with self._lock:
            return self._ring.after(after)

    @property
    def controls(self) -> Remote | None:
        return None

    def foresee(self, schedule: Schedule) -> Foreseen | None:
        return Foreseen(unknown=self.unsteered)

    def told(self) -> str:
        return ""

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        busy = False
        while not self._ended.wait(0.0 if busy else POLL_SECONDS):
            try:
                busy = self._look()
            except Exception as error:  # nobody would see it end
                self.failure = error if isinstance(error, InterlockError) else InterlockError(reason(error))
                return

    @abstractmethod
    def _look(self) -> bool:
        """Read or fold a little; whether there is more to do at once."""

    def _forget(self) -> None:
        with self._lock:
            self._state, self._seq, self.begun = RunState(), -1, self.begun + 1
            self._ring = Ring()

    def _take(self, entries: list[Entry]) -> None:
        for start in range(0, len(entries), CHUNK):
            with self._lock:
                for entry in fold_each(self._state, entries[start : start + CHUNK]):
                    self._ring.add(entry)
                    self._seq = entry.seq


class Watched(_Folding):
    """A run that another process writes, or will write, or has written."""

    kind = "watch"

    def __init__(self, path: Path, *, steered: bool = False) -> None:
        """Follow the run at `path`, and ask things of it where it is `steered`.

        Raises UsageError or InterlockError for what is no journal of this version.
        """
        super().__init__()
        self.path = journal_at(path)
        self.gone = False
        """Whether the process that wrote it is there no more, and the run was not closed."""
        self._parting = ""
        """What is said of a run that is gone."""
        self._tail = Tail(self.path)
        self._grew = -math.inf
        self._remote: Remote | None = None
        self._look() or self._look()
        if steered:
            self._remote = Remote(self.path.parent)
        self._thread.start()

    @property
    def controls(self) -> Remote | None:
        return self._remote if self._remote and not self._remote.unreached else None

    @property
    def unsteered(self) -> str:  # type: ignore[override]
        return f"cannot steer: {self._remote.unreached}" if self._remote else "--readonly: controls are off"

    def foresee(self, schedule: Schedule) -> Foreseen | None:
        return self._remote.foresee(schedule) if self._remote else super().foresee(schedule)

    def told(self) -> str:
        return self._remote.told() if self._remote else ""

    def close(self) -> None:
        if self._remote:
            self._remote.close()
        super().close()

    @property
    def over(self) -> bool:
        """Whether the run is closed. One whose process is gone may be resumed, and is not over."""
        with self._lock:
            return self._state.status is not None

    @property
    def note(self) -> str:
        if self.failure:
            return str(self.failure)
        if self.gone:
            return self._parting
        return "" if self._seq >= 0 else f"waiting for the first entry of {self.path}"

    def snapshot(self) -> Snapshot:
        """Copy the state of the run as it was written so far; its phase says so where nobody writes it any more."""
        seen = super().snapshot()
        return replace(seen, phase=GONE, reason=self.note) if self.gone and not seen.over else seen

    def _look(self) -> bool:
        anew, entries = self._tail.more()
        if anew:
            self._forget()
        if entries:
            # What was written long ago is not waited for again.
            age = min(max(0.0, time.time() - entries[-1].at), QUIET_SECONDS)
            self._grew, self.gone = time.monotonic() - age, False
            self._take(entries)
            for body in (entry.body for entry in entries):
                if self._remote and isinstance(body, ControlApplied | ControlRefused):
                    self._remote.answered(body)
            return True
        if self._seq >= 0 and not self.gone and time.monotonic() - self._grew >= QUIET_SECONDS:
            self._grew = time.monotonic()
            if not self.over and not held(self.path):
                seen = super().snapshot()
                run = self.path.parent
                words = resume_words(chunks_of(run, seen.chunks, seen.config), run, seen.config)
                self._parting = f"{GONE}: its process is gone; continue it with {command(words)}"
                self.gone = True
        return False


class Replayed(_Folding):
    """A run that was written before, shown again; time between its sessions is left out."""

    kind = "replay"

    def __init__(self, path: Path, speed: float = 1.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Replay the run at `path`, `speed` times as fast as it was (`inf`: at once).

        Raises UsageError for a speed that is none and where there is no journal, InterlockError for one of another
        version.
        """
        if not speed > 0:
            raise UsageError("--speed: expected a number above 0")
        super().__init__()
        self.path = journal_at(path)
        self._clock = clock
        self._unread: Iterator[Entry] | None = journal.read(self.path)
        self._entries: list[Entry] = []
        self._times: list[float] = []
        self._folded = 0
        self._before = 0.0
        self._anchor = (clock(), 0.0)
        self.speed, self.paused = speed, False
        try:
            self._load(1)
        except FileNotFoundError:
            raise UsageError(f"{self.path} does not exist: name a run directory") from None
        except OSError as error:
            raise InterlockError(f"cannot read {self.path}: {error.strerror}") from error
        if not self._entries:
            raise UsageError(f"{self.path} has no entry to replay")
        self._thread.start()

    @property
    def length(self) -> float:
        """Seconds that the run took, as far as its journal is read."""
        return self._times[-1]

    @property
    def position(self) -> float:
        """Seconds from its beginning."""
        at, position = self._anchor
        if not self.paused:
            position = math.inf if math.isinf(self.speed) else position + (self._clock() - at) * self.speed
        return position if self._unread and math.isfinite(position) else min(position, self.length)

    @property
    def over(self) -> bool:
        """Whether all of it was shown."""
        return self._unread is None and self._folded == len(self._entries)

    @property
    def note(self) -> str:
        return str(self.failure or "")

    @property
    def pace(self) -> str:
        """How fast, and how far: `x8 3:10/5:02`."""
        pace = "paused" if self.paused else f"x{self.speed:g}"
        return f"{pace} {duration(self.position)}/{duration(self.length)}"

    def toggle_pause(self) -> None:
        self._anchor = self._clock(), self.position
        self.paused = not self.paused

    def go_at(self, speed: float) -> None:
        self._anchor = self._clock(), self.position
        self.speed = speed

    def _look(self) -> bool:
        try:
            loaded = self._load(CHUNK)
        except InterlockError as error:  # what stands before the damage is shown all the same
            self.failure, self._unread, loaded = error, None, False
        due = bisect_right(self._times, self.position)
        fresh = self._entries[self._folded : min(due, self._folded + CHUNK)]
        self._take(fresh)
        self._folded += len(fresh)
        return loaded or self._folded < due

    def _load(self, count: int) -> bool:
        """Read some entries; whether there may be more."""
        for _ in range(count if self._unread else 0):
            entry = next(self._unread, None) if self._unread else None
            if entry is None:
                self._unread = None
                break
            if self._entries and entry.session != self._entries[-1].session:
                self._before = self._times[-1]
            self._times.append(self._before + entry.elapsed)
            self._entries.append(entry)
        return self._unread is not None
