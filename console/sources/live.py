"""Where a screen looks: a run that is live in this process, or one that is read from its journal.

A source is polled and never waits. `entries` gives what happened since, and how much of it is already gone.
"""

from typing import Protocol, runtime_checkable

from interlock.console.sources.session import Session
from interlock.engine.passes.controls import Controls
from interlock.engine.record.events import Entry
from interlock.engine.record.snapshot import Snapshot


class Source(Protocol):
    """What a screen shows."""

    kind: str
    """`live`, `watch` or `replay`: what the header says of it."""
    controls: Controls | None
    """Where to ask; None where nothing can be asked."""

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""

    @property
    def note(self) -> str:
        """What an operator must know of where this comes from; mostly nothing."""

    def snapshot(self) -> Snapshot:
        """Copy the state of the run."""

    def entries(self, after: int) -> tuple[list[Entry], int]:
        """List entries with a `seq` above `after`, and count those before them that were dropped."""


@runtime_checkable
class Reel(Protocol):
    """A source that is played, and at what speed."""

    pace: str
    paused: bool
    speed: float

    def toggle_pause(self) -> None:
        """Stand still, or go on."""

    def go_at(self, speed: float) -> None:
        """Go on at another speed from here."""


class Live:
    """The run of a session of this process."""

    kind = "live"
    note = ""

    def __init__(self, session: Session, *, readonly: bool = False) -> None:
        self.controls = None if readonly else session.controls
        self._session = session

    @property
    def over(self) -> bool:
        return self._session.over

    def snapshot(self) -> Snapshot:
        work = self._session.work
        return work.recorder.snapshot() if work else Snapshot()

    def entries(self, after: int) -> tuple[list[Entry], int]:
        work = self._session.work
        return work.recorder.drain(max(after, work.recorder.first - 1)) if work else ([], 0)
