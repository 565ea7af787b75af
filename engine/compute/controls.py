"""What an operator asks of a run while it goes on: written by a front end, applied by the workers between two batches.

A request is pending until it is applied or refused; an event says which, with the reason and with who asked.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from interlock.engine.compute.schedule import Placement, Schedule
from interlock.engine.errors import ExitCode, InterlockError
from interlock.engine.record.events import ControlApplied, ControlRefused, Emit

PAUSE_SECONDS = 0.1
YES, NO = "yes", "no"
STOP = "stop"
VALUES: dict[str, tuple[str, ...]] = {
    "schedule": tuple(schedule.value for schedule in Schedule),
    "cpu_fallback": (YES, NO),
    "pause": (YES, NO),
}
"""Every control and the values that it may have."""
SIGNALS = {ExitCode.INTERRUPTED: "^C (SIGINT)", ExitCode.TERMINATED: "SIGTERM", ExitCode.HANGUP: "a hang-up"}
"""What stops a run with such a code."""


class Steered(Protocol):
    """The passes that a schedule steers; asked from a front end's thread."""

    def preview(self, schedule: Schedule) -> Placement | None:
        """Find what another schedule would lease next; None: nothing is left to compute."""

    def unaffected_by(self, schedule: Schedule) -> bool:
        """Whether what is leased now serves another schedule just as it is."""


class Controls:
    """Holds what a front end asks for until the engine applies it, and what is in force."""

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        """Set to stop: the exit code that stopping means."""
        self.stopped_by = "the operator"
        """A signal, or who asked for the stop, as far as is known."""
        self.schedule = Schedule.EXCLUSIVE
        self.window = 0
        self.cpu_fallback = True
        self.paused = False
        self.pause_lasts = False
        """Whether the pause was asked for by somebody who can still lift it."""
        self.reorders = 0
        """How often the order of the remaining cells was changed: what is leased is given back then."""
        self.due: Callable[[], object] = lambda: None
        """Asked again and again while the run is paused: a deadline does not wait for anybody."""
        self._steered: Steered | None = None
        self._emit: Emit | None = None
        self._refused: dict[str, str] = {}
        self._asked: list[ControlApplied] = []
        self._over = False
        self._lock = threading.RLock()  # a signal may stop the run while its thread holds it

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to stop at the next batch."""
        return self.code is not None

    @property
    def in_force(self) -> dict[str, str]:
        """The value that every control has."""
        fallback, pause = (YES if on else NO for on in (self.cpu_fallback, self.paused))
        return {"schedule": self.schedule.value, "cpu_fallback": fallback, "pause": pause}

    def stop(self, code: ExitCode, who: str = "") -> None:
        """Have the run stop after its batch; one that stops already keeps its code. `who` asked is told, if anybody."""
        with self._lock:
            emit, stopping = self._emit, self.stop_requested
            if not stopping:
                self.code, self.stopped_by = code, SIGNALS.get(code) or who or self.stopped_by
        with suppress(InterlockError, ValueError):
            if emit and who and not stopping:
                emit(ControlApplied(control=STOP, value=YES, who=who))

    def rearrange(self) -> None:
        """Have what is leased given back at the next batch, and what is left placed anew."""
        with self._lock:
            self.reorders += 1

    def begin(self, schedule: Schedule, window: int, *, cpu_fallback: bool) -> None:
        """Set what is in force when a run begins."""
        self.schedule, self.window, self.cpu_fallback = schedule, window, cpu_fallback

    def attend(self, steered: Steered, emit: Emit) -> None:
        """Answer questions about `steered` from now on, and emit refusals at once; before, they wait with the rest."""
        self._steered, self._emit = steered, emit

    def preview(self, schedule: Schedule) -> Placement | None:
        """Find what another schedule would lease next; None: nothing is left to compute, or not yet known."""
        steered = self._steered  # the engine may end in the middle of this
        return steered.preview(schedule) if steered else None

    def unaffected_by(self, schedule: Schedule) -> bool:
        """Whether what is leased now serves another schedule just as it is."""
        steered = self._steered
        return steered is not None and steered.unaffected_by(schedule)

    def refuse(self, control: str, reason: str) -> None:
        """Refuse every change of `control` from now on."""
        self._refused[control] = reason

    def refusal(self, control: str) -> str:
        """Say why `control` cannot be changed, whoever asks; empty where it can."""
        return self._refused.get(control, "")

    def end(self, emit: Emit) -> None:
        """Refuse what is pending and whatever is asked later: nothing is left that a control could change."""
        self._steered = None
        for control in VALUES:
            self.refuse(control, "nothing is left to compute")
        with self._lock:
            self._emit, self._over = None, True
        self.settle(emit)

    def ask(self, control: str, value: str, who: str, *, elsewhere: bool = False) -> str:
        """Ask for `control` to become `value`; returns why that cannot be, empty where it can. What was asked for from
        `elsewhere` is not undone where a screen of this process goes."""
        if value not in VALUES.get(control, ()):
            return f"{control} cannot be {value!r}: use one of {', '.join(VALUES.get(control, ('nothing',)))}"
        asked = ControlApplied(control=control, value=value, who=who)
        with self._lock:
            emit, reason = self._emit, self.refusal(control)
            if not reason or (emit is None and not self._over):
                self._asked.append(asked)
                self.pause_lasts = elsewhere if control == "pause" else self.pause_lasts
                return ""
        # A journal that cannot be written ends the run where it is written next; one that is closed wants no answer.
        with suppress(InterlockError, ValueError):
            if emit:
                emit(ControlRefused(control=control, value=value, who=who, reason=reason))
        return reason

    def pending(self) -> list[ControlApplied]:
        """List what was asked and is not answered yet."""
        with self._lock:
            return list(self._asked)

    def apply_pending(self, emit: Emit) -> None:
        """Apply or refuse everything that was asked; waits here while the run is paused and not to stop."""
        while True:
            self.settle(emit)
            if self.paused:
                self.due()
            if not self.paused or self.stop_requested:
                return
            threading.Event().wait(PAUSE_SECONDS)

    def settle(self, emit: Emit) -> None:
        """Apply or refuse everything that was asked; waits for nothing."""
        with self._lock:
            asked, self._asked = self._asked, []
            answers = [self._answer(each) for each in asked]
        for answer in answers:
            emit(answer)

    def _answer(self, asked: ControlApplied) -> ControlApplied | ControlRefused:
        """Apply one request, or say why it cannot be."""
        if reason := self.refusal(asked.control):
            return ControlRefused(control=asked.control, value=asked.value, who=asked.who, reason=reason)
        match asked.control:
            case "schedule":
                wanted = Schedule(asked.value)
                self.reorders += wanted != self.schedule and not self.unaffected_by(wanted)
                self.schedule = wanted
            case "cpu_fallback":
                self.cpu_fallback = asked.value == YES
            case "pause":
                self.paused = asked.value == YES
        return asked
