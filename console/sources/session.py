"""The engine's thread and what a front end may do with it: read, ask, wait.

The thread belongs to who made the session (`dispatch`, or `interlock.embed`), not to a front end: a screen that goes
away takes nothing with it. What makes the run is called in that thread too, so that a screen is there before anything
heavy is imported.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from interlock.console.control.server import steerable
from interlock.engine.compute.controls import NO, Controls
from interlock.engine.errors import ExitCode
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory


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

    def stop(self, code: ExitCode) -> None:
        """Ask for an end after the batch in flight; one that was asked for before keeps its code."""
        self.controls.stop(code)

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
