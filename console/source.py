"""Where a screen looks: a run that is live in this process, or one that is told by its journal.

A source is polled and never waits. `entries` gives what happened since, and how much of it is already gone.
"""

from typing import Protocol

from console.session import Session
from engine.passes.controls import Controls
from engine.record.events import Entry
from engine.record.snapshot import Snapshot


class Source(Protocol):
    """What a screen shows."""

    kind: str
    """`live`, `watch` or `replay`: what the header says of it."""
    controls: Controls | None
    """Where to ask; None where nothing can be asked."""

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""

    def snapshot(self) -> Snapshot:
        """The run now."""

    def entries(self, after: int) -> tuple[list[Entry], int]:
        """Those with a `seq` above `after`, and how many before them were dropped."""


class Live:
    """The run of a session of this process."""

    kind = "live"

    def __init__(self, session: Session, *, readonly: bool = False) -> None:
        self.controls = None if readonly else session.controls
        self._session = session

    @property
    def over(self) -> bool:
        return not self._session.alive

    def snapshot(self) -> Snapshot:
        work = self._session.work
        return work.recorder.snapshot() if work else Snapshot()

    def entries(self, after: int) -> tuple[list[Entry], int]:
        work = self._session.work
        return work.recorder.drain(max(after, work.recorder.first - 1)) if work else ([], 0)
