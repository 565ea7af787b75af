"""Where a screen looks: a run that is live in this process, or one that is read from its journal.

A source is polled and never waits. `entries` gives what happened since, and how much of it is already gone.
"""

from typing import Protocol

from interlock.console.control.protocol import Foreseen, foreseen
from interlock.console.sources.session import Session
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode
from interlock.engine.record.events import ControlApplied, Entry
from interlock.engine.record.snapshot import PassCells, Snapshot, cells_of


class ControlBox(Protocol):
    """Where an operator's requests go; none of it waits."""

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to stop after its batch."""

    def pending(self) -> list[ControlApplied]:
        """List what was asked and is not answered yet."""

    def refusal(self, control: str) -> str:
        """Say why `control` cannot be changed; empty where it can."""

    def ask(self, control: str, value: str, who: str) -> str:
        """Ask for `control` to become `value`; returns why that cannot be, where that is known at once."""

    def stop(self, code: ExitCode, who: str) -> None:
        """Ask the run for an end after its batch."""


class Source(Protocol):
    """What a screen shows."""

    kind: str
    """`live`, `watch` or `replay`: what the header says of it."""
    begun: int
    """How often it was told from its beginning: once more where entries were taken back."""

    @property
    def controls(self) -> ControlBox | None:
        """Where to ask; None where nothing can be asked."""

    @property
    def unsteered(self) -> str:
        """Why nothing can be asked; empty where something can."""

    def foresee(self, schedule: Schedule) -> Foreseen | None:
        """Find what another schedule would lease next; None: that is being asked for, ask again."""

    def told(self) -> str:
        """Take what an operator must hear of what was asked; mostly nothing."""

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""

    @property
    def note(self) -> str:
        """What an operator must know of where this comes from; mostly nothing."""

    def snapshot(self) -> Snapshot:
        """Copy the state of the run."""

    def cells(self, model_pass: int) -> PassCells:
        """Copy what is known of the batches of a pass."""

    def mitigations(self) -> list[Entry]:
        """List the entries that tell of mitigations, those of earlier sessions too."""

    def entries(self, after: int) -> tuple[list[Entry], int]:
        """List entries with a `seq` above `after`, and count those before them that were dropped."""


class Live:
    """The run of a session of this process."""

    kind, begun = "live", 1

    def __init__(self, session: Session, *, readonly: bool = False) -> None:
        self.controls = None if readonly else session.controls
        self.unsteered = "--readonly: controls are off" if readonly else ""
        self._session = session

    @property
    def over(self) -> bool:
        return self._session.over

    @property
    def note(self) -> str:
        return self._session.note

    def snapshot(self) -> Snapshot:
        work = self._session.work
        return work.recorder.snapshot() if work else Snapshot()

    def cells(self, model_pass: int) -> PassCells:
        work = self._session.work
        return work.recorder.look(lambda state: cells_of(state, model_pass)) if work else PassCells()

    def mitigations(self) -> list[Entry]:
        work = self._session.work
        return work.recorder.look(lambda state: list(state.mitigations)) if work else []

    def entries(self, after: int) -> tuple[list[Entry], int]:
        work = self._session.work
        return work.recorder.drain(max(after, work.recorder.first - 1)) if work else ([], 0)

    def foresee(self, schedule: Schedule) -> Foreseen:
        controls = self._session.controls
        then = controls.preview(schedule)
        return foreseen(then, unaffected=then is not None and controls.unaffected_by(schedule))

    def told(self) -> str:
        return ""
