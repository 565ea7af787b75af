"""A run that is read from its journal: `Watched` while another process writes it, `Replayed` at any speed.

Both are sources for a screen and change nothing themselves: no lock is kept, nothing is written; what an operator asks
of a run that is watched goes to its own process. A thread of their own reads and folds a few hundred entries at a time,
so that a screen never waits for a long journal, and goes on while a screen looks at the past. What is wrong with the
journal while it is read is left in `failure`; `note` says what an operator must know of it, and mostly nothing.
"""

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from interlock.console.control.client import Remote
from interlock.console.control.protocol import Foreseen
from interlock.console.sources.past import Moment, Past
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import InterlockError, UsageError, reason
from interlock.engine.record.atomic import held
from interlock.engine.record.events import ControlApplied, ControlRefused, Entry
from interlock.engine.record.fold import fold_each
from interlock.engine.record.inputs import onward
from interlock.engine.record.journal import Upload
from interlock.engine.record.recorder import Ring, Tail, journal_at
from interlock.engine.record.rundir import death_of
from interlock.engine.record.snapshot import GONE, PassCells, Snapshot, cells_of, snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import argument, command, duration
from interlock.engine.standing.runs import upload_due

CHUNK = 256
"""Entries that are folded while a screen would have to wait."""
POLL_SECONDS = 0.1
QUIET_SECONDS = 4.0
"""A run that writes nothing for so long is asked whether it is still there."""
STEPS = (1, 5, 10, 30, 60, 300, 600)
"""Seconds that one step through the past may have."""


class Watched:
    """A run that another process writes, or will write, or has written; or a moment of its past."""

    kind = "watch"
    _moment: Moment | None = None
    """What is looked at of the past; None for the run as it is now."""

    def __init__(self, path: Path, *, steered: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Follow the run at `path`, and ask things of it where it is `steered`.

        Raises UsageError or InterlockError for what is no journal of this version.
        """
        self.path = journal_at(path)
        self.failure: InterlockError | None = None
        self.upload: Upload | None = None
        self.gone = False
        """Whether the process that wrote it is there no more, and the run was not closed."""
        self.begun = 0
        self.speed, self.paused = 1.0, False
        """How fast the past goes on, and whether it stands still."""
        self._death = ""
        """What is known of how its process died."""
        self._clock = clock
        self._anchor = (clock(), 0.0)
        self._tail = Tail(self.path)
        self.caught_up = False
        """Whether all was read that there was."""
        self._grew = -math.inf
        self._remote: Remote | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.kind, daemon=True)
        self._forget()
        self._look() or self._look()
        if steered:
            self._remote = Remote(self.path.parent)
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """Copy the run as it was written so far, or as it stood at the moment that is looked at; its phase says so
        where nobody writes it any more."""
        with self._lock:
            self._play()
            if self._moment:
                return snapshot(self._moment.state, self._moment.place - 1)
            seen = snapshot(self._state, self._seq)
        return replace(seen, phase=GONE, reason=self.note) if self.gone and not seen.over else seen

    def cells(self, model_pass: int) -> PassCells:
        with self._lock:
            return cells_of(self._shown, model_pass)

    def mitigations(self) -> list[Entry]:
        with self._lock:
            return list(self._shown.mitigations)

    def entries(self, after: int) -> tuple[list[Entry], int]:
        """List entries with a `seq` above `after`; from the beginning on, where they are too many, those that tell of
        anything but a batch or a sample, and the latest."""
        with self._lock:
            ring, place = (self._moment.ring, self._moment.place) if self._moment else (self._ring, self._seq + 1)
            fresh, dropped = ring.after(after)
            if after >= 0 or not dropped:
                return fresh, dropped
            told, dropped = self._past.told(place)
            return told + [each for each in fresh[-1:] if each not in told[-1:]], dropped

    @property
    def controls(self) -> Remote | None:
        return self._remote if self._remote and not self._remote.unreached else None

    @property
    def unsteered(self) -> str:
        return f"cannot steer: {self._remote.unreached}" if self._remote else "--readonly: controls are off"

    def foresee(self, schedule: Schedule) -> Foreseen | None:
        return self._remote.foresee(schedule) if self._remote else Foreseen(unknown=self.unsteered)

    def told(self) -> str:
        return self._remote.told() if self._remote else ""

    @property
    def closed(self) -> bool:
        """Whether the run has ended. One whose process is gone may be resumed, and has not."""
        with self._lock:
            return self._state.status is not None

    @property
    def over(self) -> bool:
        return self.closed

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be read: it ended, or its process did, or none has begun it."""
        ended = self.closed or self.gone or (self._seq < 0 and not held(self.path))
        return self.failure is not None or (self.caught_up and ended)

    @property
    def parting(self) -> str:
        """What becomes of the run when nobody looks any more, and how one looks again."""
        run = argument(self.path.parent)
        if self.closed:
            return f"the run has ended: {command(['view', run])} shows its summary, {command(['watch', run])} the run"
        if self.gone:
            again = onward(self.snapshot(), self.path.parent)
            return f"the run's process died: {self._death}" + f"; continue it with {again}" * bool(again)
        goes = "the run goes on" if self._seq >= 0 else "the run has not begun"
        return f"{goes}: {command(['watch', run])} shows it again"

    @property
    def note(self) -> str:
        if self.failure:
            return str(self.failure)
        if self.gone:
            return self._death
        return "" if self._seq >= 0 else f"waiting for the first entry of {self.path}"

    @property
    def past(self) -> bool:
        """Whether it shows a moment that is over."""
        return self._moment is not None

    @property
    def length(self) -> float:
        """Seconds of work up to the latest entry."""
        return self._past.length

    @property
    def position(self) -> float:
        """Seconds from the beginning of the run to what is shown."""
        if not self._moment:
            return self.length
        at, position = self._anchor
        if not self.paused:
            position = math.inf if math.isinf(self.speed) else position + (self._clock() - at) * self.speed
        return min(position, self.length) if self.caught_up else position

    @property
    def pace(self) -> str:
        """Where in the run it is, and how fast it goes on: `3:10 of 5:02, x8`; empty for the run as it is now."""
        pace = "paused" if self.paused else f"x{self.speed:g}"
        return f"{duration(self.position)} of {duration(self.length)}, {pace}" if self.past else ""

    @property
    def step(self) -> int:
        """Seconds of a step through the past: about a sixtieth of the run."""
        return next((step for step in STEPS if step * 60 >= self.length), STEPS[-1])

    def go_to(self, position: float) -> None:
        """Look at the run as it was after so many seconds; from its end on, as it is now."""
        with self._lock:
            if position >= self.length:
                self._show(None)
                return
            self._anchor = self._clock(), max(0.0, position)
            if not self._moment:
                self.paused = True
                self._show(Moment(self.path))

    def go_to_trouble(self, way: int) -> bool:
        """Stand still where something went wrong next, or with -1 before; False where nothing did."""
        times, troubles = self._past.times, self._past.troubles
        find = bisect_right if way > 0 else bisect_left
        near = bisect_left(troubles, find(times, self.position)) - (way < 0)
        if not 0 <= near < len(troubles):
            return False
        self.go_to(times[troubles[near]])
        self.paused = True
        return True

    def toggle_pause(self) -> None:
        self._anchor = self._clock(), self.position
        self.paused = not self.paused

    def go_at(self, speed: float) -> None:
        self._anchor = self._clock(), self.position
        self.speed = speed

    def wait(self, seconds: float) -> None:
        """Let it read on for so long."""
        self._ended.wait(seconds)

    def close(self) -> None:
        if self._remote:
            self._remote.close()
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def _shown(self) -> RunState:
        return self._moment.state if self._moment else self._state

    def _show(self, moment: Moment | None) -> None:
        """Show another moment, or the run as it is now: whoever looks is told all of it anew."""
        self.begun += moment is not self._moment
        self._moment = moment

    def _play(self) -> None:
        """Fold the past up to the moment that is due; at its end comes the run as it is now."""
        if self._moment and self.caught_up and self.position >= self.length:
            self._show(None)
        if not self._moment:
            return
        try:
            self.begun += self._moment.go(self._past, bisect_right(self._past.times, self.position))
        except (OSError, InterlockError) as error:  # somebody took the journal away, or wrote another
            self.failure = InterlockError(f"cannot go back in {self.path} ({reason(error)}): check who moved it")
            self._show(None)

    def _run(self) -> None:
        busy = False
        while not self._ended.wait(0.0 if busy else POLL_SECONDS):
            try:
                busy = self._look()
            except Exception as error:  # nobody would see it end
                self.failure = error if isinstance(error, InterlockError) else InterlockError(reason(error))
                self.caught_up = True
                return

    def _look(self) -> bool:
        """Read and fold a little; whether there is more to do at once."""
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
        self.caught_up = True
        if self.kind == "watch" and self._seq >= 0 and not self.gone and time.monotonic() - self._grew >= QUIET_SECONDS:
            self._grew = time.monotonic()
            if self.closed:
                seen = snapshot(self._state, self._seq)
                self.upload = upload_due(self.path.parent, seen.config, seen.exit_code)
            elif not held(self.path):
                self._death, self.gone = death_of(self.path.parent), True
        return False

    def _forget(self) -> None:
        with self._lock:
            self._state, self._seq, self.begun = RunState(), -1, self.begun + 1
            self._ring, self._past = Ring(), Past()
            self._moment = None

    def _take(self, entries: list[Entry]) -> None:
        for start in range(0, len(entries), CHUNK):
            with self._lock:
                for entry in fold_each(self._state, entries[start : start + CHUNK]):
                    self._ring.add(entry)
                    self._past.take(entry)
                    self._seq = entry.seq
        with self._lock:
            self._past.keep(self._state, self._tail.end)


class Replayed(Watched):
    """A run that was written before, shown again from its beginning."""

    kind = "replay"
    unsteered = "a replay cannot be steered"

    def __init__(self, path: Path, speed: float = 1.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Replay the run at `path`, `speed` times as fast as it was (`inf`: at once).

        Raises UsageError for a speed that is none and where there is no journal, InterlockError for one of another
        version.
        """
        if not speed > 0:
            raise UsageError("--speed: expected a number above 0")
        super().__init__(path, clock=clock)
        if self._seq < 0 and not self.failure:
            self.close()
            raise UsageError(f"{self.path} has no entry to replay")
        self._show(Moment(self.path))
        self.speed = speed

    @property
    def past(self) -> bool:
        """Whatever it shows stands as it stood then."""
        return True

    @property
    def over(self) -> bool:
        """Whether all of it was shown."""
        return self.caught_up and self.position >= self.length

    @property
    def note(self) -> str:
        return str(self.failure or "")
