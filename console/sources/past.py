"""The moments of a run that were read from its journal, any of which can be gone to.

The folded state is kept every so many entries, so that a moment costs as many entries at most, which are read and
folded again; what happened in between is not in memory. Nothing here has a lock of its own.
"""

import copy
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from interlock.console.text.event_text import SEVERE, describe
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.record.events import Entry
from interlock.engine.record.fold import fold_each, uncollected
from interlock.engine.record.recorder import LATEST, Ring
from interlock.engine.record.state import RunState

EVERY = 512
"""Entries between two states that are kept."""
MOST = 160
"""States that are kept: where they become too many, every other one goes, and the next are twice as far apart."""


class Keyframe(NamedTuple):
    """A state after the first `place` entries, which end at byte `offset`; its batches as plain lists."""

    place: int
    offset: int
    state: RunState
    committed: dict[int, tuple[ev.BatchCommitted, ...]]


class Past:
    """What was read of a run so far, by its seconds of work: the time between sessions is left out."""

    def __init__(self) -> None:
        self.times = array("d")
        """Of each entry, in seconds from the beginning of the run."""
        self.troubles: list[int] = []
        """The places of warnings, mitigations and errors: entry `place` is the one with that `seq`."""
        self._told: list[Entry] = []
        self._frames = [Keyframe(0, 0, RunState(), {})]
        self._every = EVERY
        self._session, self._before = 0, 0.0

    @property
    def length(self) -> float:
        """Seconds up to the latest entry."""
        return self.times[-1] if self.times else 0.0

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        if entry.session != self._session:
            self._session, self._before = entry.session, self.length
        self.times.append(self._before + entry.elapsed)
        if not isinstance(entry.body, ev.Heartbeat | ev.BatchCommitted):
            self._told.append(entry)
            serious = describe(entry.body, entry.device_kind).severity in SEVERE
            if serious or isinstance(entry.body, ev.Mitigated):
                self.troubles.append(len(self.times) - 1)

    def keep(self, state: RunState, offset: int) -> None:
        """Keep the state after the latest entry, which ends at byte `offset`, where the last one is long ago."""
        place = len(self.times)
        if place - self._frames[-1].place < self._every:
            return
        if len(self._frames) == MOST:
            self._every, self._frames = self._every * 2, self._frames[::2]
        committed = {number: tuple(batches.values()) for number, batches in state.committed.items()}
        self._frames.append(Keyframe(place, offset, copied(replace(state, committed={})), committed))

    def told(self, place: int) -> tuple[list[Entry], int]:
        """List the latest of the first `place` entries that tell of anything but a batch or a sample, and count what
        was left out of them."""
        end = bisect_left(self._told, place, key=lambda entry: entry.seq)
        return self._told[max(0, end - LATEST) : end], max(0, end - LATEST)

    def frame(self, place: int) -> Keyframe:
        """Find the state that is kept of the latest moment up to `place`."""
        return self._frames[bisect_right(self._frames, place, key=lambda frame: frame.place) - 1]


class Moment:
    """A run as it stood after its first `place` entries."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: Iterator[Entry] = iter(())
        self.state, self.place, self.ring = RunState(), -1, Ring()

    def go(self, past: Past, place: int) -> bool:
        """Go to another place of what was read; whether that was a jump, after which all is told anew."""
        frame = past.frame(max(0, place - 1))  # so that the ring has the latest entry at least
        jumps = not frame.place <= self.place <= place
        if jumps:
            committed = {number: {each.batch_index: each for each in of} for number, of in frame.committed.items()}
            with uncollected():
                self.state = replace(copied(frame.state), committed=committed)
            self.place, self.ring = frame.place, Ring()
            self._entries = read(self._path, frame.offset)
        for entry in fold_each(self.state, islice(self._entries, place - self.place)):
            self.ring.add(entry)
            self.place += 1
        return jumps


def read(path: Path, offset: int) -> Iterator[Entry]:
    """Yield the whole entries from byte `offset` on; more than there are must not be asked for."""
    with path.open("rb") as file:
        file.seek(offset)
        while entry := journal.decode(file.readline()):
            yield entry


def copied(value: Any) -> Any:
    """Copy a state with everything in it that changes; facts are shared."""
    match value:
        case Counter():
            return value.copy()
        case dict():
            return {key: copied(each) for key, each in value.items()}
        case deque():
            return value.copy()  # of facts and numbers
        case list():
            return [copied(each) for each in value]
        case set():
            return value.copy()
        case msgspec.Struct() if not value.__struct_config__.frozen:
            made = copy.copy(value)
            for name in value.__struct_fields__:
                setattr(made, name, copied(getattr(value, name)))
            return made
    return value
