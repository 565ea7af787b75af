"""The engine's thread and what a front end may do with it: read, ask, wait; and `Source`, where any screen looks.

The thread belongs to who made the session (`dispatch`, or `interlock.embed`), not to a front end: a screen that goes
away takes nothing with it. What makes the run is called in that thread too, so that a screen is there before anything
heavy is imported. A source is polled and never waits: a live run (`Live`), or one that is read from its journal.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from interlock.console.control.client import Remote
from interlock.console.control.protocol import Foreseen, foreseen
from interlock.console.control.server import steerable
from interlock.engine.compute.controls import NO, Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode, InterlockError
from interlock.engine.record import summary
from interlock.engine.record.events import Entry, RunClosed
from interlock.engine.record.journal import Upload
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import PassCells, Snapshot, cells_of
from interlock.engine.standing.judgement import awaited, hung

LOOK = 15.0
"""Seconds from one look for a GPU that hangs to the next."""


class Work(Protocol):
    """What a session does: a run, or something that tells the same events."""

    recorder: Recorder
    directory: RunDirectory

    def go(self) -> ExitCode:
        """Do it; return how it ended."""


class Session:
    """One run in a thread of its own."""

    def __init__(self, make: Callable[[Controls], Work]) -> None:
        """`make` may take long and may raise; it is called in the engine's thread."""
        self.controls = Controls()
        self.work: Work | None = None
        self.failure: BaseException | None = None
        self.code = ExitCode.FAILED
        self.note = ""
        """What whoever watches must know of the session; mostly nothing."""
        self._make = make
        self._before: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._go, name="engine")
        self._done = threading.Event()  # a join that is interrupted takes the thread for ended

    def start(self) -> None:
        """Begin; once is enough."""
        if self._thread.ident is None:
            self._thread.start()
            threading.Thread(target=self._look_for_hung, name="watchdog", daemon=True).start()

    def detach(self) -> None:
        """Lift a pause that nobody is left to lift."""
        if self.controls.pause_lasts:
            return
        if self.controls.paused or any(each.control == "pause" for each in self.controls.pending()):
            self.controls.ask("pause", NO, "interlock")

    @property
    def alive(self) -> bool:
        """Whether the engine is still at work."""
        return self._thread.ident is not None and not self._done.is_set()

    @property
    def over(self) -> bool:
        """Whether the engine was at work and is no more; one that has not begun is not over."""
        return self._done.is_set()

    def wait(self, seconds: float) -> None:
        """Wait until the engine has ended, at most so long."""
        self._done.wait(seconds)

    def result(self) -> ExitCode:
        """Wait for the end; return how it ended. Raises what the run raised."""
        self._done.wait()
        if self.failure:
            raise self.failure
        return self.code

    @property
    def ended(self) -> ExitCode:
        """The exit code of what is over."""
        return getattr(self.failure, "exit_code", ExitCode.FAILED) if self.failure else self.code

    @property
    def summary(self) -> Path | None:
        """Where the summary is, once there is a run."""
        return self.work.directory.summary if self.work else None

    @property
    def summarised(self) -> bool:
        """Whether the summary is of this session: one that is refused leaves that of the session before."""
        return self.work is not None and _written(self.work.directory.summary) != self._before

    def close(self, reason: str, code: ExitCode) -> Snapshot | None:
        """Record the end of a run whose own thread is caught in a batch; None where none has begun."""
        if not self.work or not self.work.recorder.look(lambda state: state.started):
            return None
        mitigations = self.work.recorder.look(lambda state: sum(state.mitigated.values()))
        closed = RunClosed(status="stopped", reason=reason, exit_code=code, mitigations=mitigations)
        return self.work.recorder.end(closed)

    def _look_for_hung(self) -> None:
        """End the run where a GPU does not come back. What counts is looks, not the clock: a process that is halted, or
        a machine that sleeps, is not waited for."""
        still = progressed = 0.0
        while not self._done.wait(LOOK):
            if not self.work or self.work.recorder.device_kind == "cpu":
                continue
            seen = self.work.recorder.snapshot()
            still = still + LOOK if seen.progressed_at == progressed and awaited(seen) else 0.0
            progressed = seen.progressed_at
            if (why := hung(seen, still)) and self.close(f"{why}: --resume continues", ExitCode.STOPPED):
                with suppress(InterlockError):
                    summary.write(self.work.recorder.look(summary.summarise), self.work.directory.summary)
                self.code = ExitCode.STOPPED
                self._done.set()

    def _go(self) -> None:
        try:
            work = self._make(self.controls)
            self._before, self.work = _written(work.directory.summary), work
            answers = partial(work.recorder.look, lambda state: list(state.controls))
            with steerable(work.directory.path, self.controls, answers) as self.note:
                self.code = work.go()
        except BaseException as error:
            self.failure = error
            if self.work:
                self.work.directory.unmake()  # what of it waited for the socket to go
        finally:
            self._done.set()


def _written(file: Path) -> tuple[int, int] | None:
    """What changes each time a file is replaced; None where there is none."""
    with suppress(OSError):
        return (status := file.stat()).st_ino, status.st_mtime_ns
    return None


class Source(Protocol):
    """What a screen shows."""

    kind: str
    """`live`, `watch` or `replay`: what the header says of it."""
    begun: int
    """How often it was told from its beginning: once more where entries were taken back."""

    @property
    def controls(self) -> Controls | Remote | None:
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
    def past(self) -> bool:
        """Whether it shows a moment that is over."""

    @property
    def note(self) -> str:
        """What an operator must know of where this comes from; mostly nothing."""

    @property
    def upload(self) -> Upload | None:
        """How a run that has ended is brought to a server, as far as that is to be told."""

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

    kind, begun, past, upload = "live", 1, False, None

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
