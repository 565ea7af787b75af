"""What an operator asks of a run while it goes on: written by a front end, applied by the workers between two batches.

What was asked is pending until it is applied; then it counts, or it is refused with a reason, and an event says which,
with who asked.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from interlock.engine.errors import ExitCode, InterlockError
from interlock.engine.passes.schedule import Placement, Schedule
from interlock.engine.record.events import AnyEvent, ControlApplied, ControlRefused

PAUSE_SECONDS = 0.1
YES, NO = "yes", "no"
VALUES: dict[str, tuple[str, ...]] = {
    "schedule": tuple(schedule.value for schedule in Schedule),
    "cpu_fallback": (YES, NO),
    "pause": (YES, NO),
}
"""Every control and the values that it may have."""


class Controls:
    """The box between a front end and the engine."""

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        """Set to stop: the exit code that stopping means."""
        self.schedule = Schedule.EXCLUSIVE
        self.window = 0
        self.cpu_fallback = True
        self.paused = False
        self.reorders = 0
        """How often the order of the remaining cells was changed: what is leased is given back then."""
        self.preview: Callable[[Schedule], Placement | None] | None = None
        """What another schedule would lease next, while there are cells left to walk."""
        self.unaffected_by: Callable[[Schedule], bool] = lambda _: False
        """Whether what is leased now serves another schedule just as it is."""
        self.tell: Callable[[AnyEvent], object] | None = None
        """Where refusals go that are known when something is asked; None: they wait until it is applied."""
        self._refused: dict[str, str] = {}
        self._asked: list[ControlApplied] = []
        self._over = False
        self._lock = threading.Lock()

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to stop at the next batch."""
        return self.code is not None

    def begin(self, schedule: Schedule, window: int, *, cpu_fallback: bool) -> None:
        """What counts when a run begins."""
        self.schedule, self.window, self.cpu_fallback = schedule, window, cpu_fallback

    def refuse(self, control: str, reason: str) -> None:
        """From now on `control` cannot be changed."""
        self._refused[control] = reason

    def refusal(self, control: str) -> str:
        """Why `control` cannot be changed, whoever asks; empty where it can."""
        return self._refused.get(control, "")

    def end(self, tell: Callable[[AnyEvent], object]) -> None:
        """Nothing is left that a control could change."""
        self.preview = None
        for control in VALUES:
            self.refuse(control, "nothing is left to compute")
        with self._lock:
            self.tell, self._over = None, True
        self.settle(tell)

    def ask(self, control: str, value: str, who: str) -> str:
        """Ask for `control` to become `value`; empty, or why that cannot be, which is told at once."""
        if value not in VALUES.get(control, ()):
            return f"{control} cannot be {value!r}: use one of {', '.join(VALUES.get(control, ('nothing',)))}"
        asked = ControlApplied(control=control, value=value, who=who)
        with self._lock:
            tell, reason = self.tell, self.refusal(control)
            if not reason or (tell is None and not self._over):
                self._asked.append(asked)
                return ""
        # A journal that cannot be written ends the run where it is written next; one that is closed wants no answer.
        with suppress(InterlockError, ValueError):
            if tell:
                tell(ControlRefused(control=control, value=value, who=who, reason=reason))
        return reason

    def pending(self) -> list[ControlApplied]:
        """What was asked and does not count yet."""
        with self._lock:
            return list(self._asked)

    def apply_pending(self, tell: Callable[[AnyEvent], object]) -> None:
        """Let everything count that was asked; waits here while the run is paused and not to stop."""
        while True:
            self.settle(tell)
            if not self.paused or self.stop_requested:
                return
            threading.Event().wait(PAUSE_SECONDS)

    def settle(self, tell: Callable[[AnyEvent], object]) -> None:
        """Let everything count that was asked, or refuse it; waits for nothing."""
        with self._lock:
            asked, self._asked = self._asked, []
            answers = [self._answer(each) for each in asked]
        for answer in answers:
            tell(answer)

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
