"""What an operator may ask of a run from the main screen: each is pending until the engine answers, or refused at once.

What costs time is shown before it is asked for, as the engine foresees it.
"""

from collections.abc import Mapping, Sequence

from interlock.console.actions import Action, line_key, named
from interlock.console.control.client import Remote
from interlock.console.look import Leave
from interlock.console.screens.ask import Choice, Dialog
from interlock.console.screens.base import Host, Keyed
from interlock.console.sources.session import Source
from interlock.console.text import dialog_text as wording
from interlock.engine.compute.controls import NO, STOP, YES, Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.record.snapshot import Snapshot
from interlock.widgets.formats import yes_no

CONTROLS = {"exclusive": "schedule", "fallback": "cpu_fallback", "pause": "pause"}
"""The control that an action changes."""


class Steering(Keyed):
    """A screen that knows how the run stands and where to ask."""

    source: Source
    host: Host
    snapshot: Snapshot
    stopping = False
    _wanted: Schedule | None = None
    """The schedule that was asked about, until it is known what it would do."""
    recap_due = False
    """Whether the run has ended and nothing was said of that yet."""
    _question: Dialog | None = None
    """The latest question whether to stop or to leave."""

    @property
    def readonly(self) -> bool:
        return self.source.controls is None

    @property
    def pending(self) -> Mapping[str, str]:
        """What was asked for and is not answered, by control."""
        controls = self.source.controls
        asked = {each.control: each.value for each in controls.pending()} if controls else {}
        return asked | ({STOP: YES} if self.stopping else {})

    def why_not(self, action: Action) -> str:
        """Say why a key does nothing now; empty where it does something."""
        if not action.changes:
            return ""
        if self.source.over or (self.snapshot.over and not self.source.past):
            return "the run is over"
        if self.source.past and self.source.kind == "watch":
            return f"this is the past: {line_key(named('follow'), self._look.keys)} goes back to the run as it is now"
        if self.readonly:
            return self.source.unsteered
        controls, control = self.source.controls, CONTROLS.get(action.name, "")
        refusal = controls.refusal(control) if controls else ""
        return f"cannot change {action.label}: {refusal}" if refusal else ""

    def action_exclusive(self) -> None:
        """Ask for one model at a time, or models side by side; what that does to the cells left is shown first."""
        if not self._controls("exclusive"):
            return
        if why := wording.no_other(self.snapshot):
            self.app.push_screen(Dialog("Nothing to change", [why], []))
            return
        exclusive = self.pending.get("schedule", self.snapshot.schedule) != Schedule.SHARED
        self._wanted = Schedule.SHARED if exclusive else Schedule.EXCLUSIVE
        self.foresee()

    def foresee(self) -> None:
        """Ask about the schedule that is wanted once it is known what it would do; a run of another process is asked
        for that first, and who opened something else meanwhile is not asked any more."""
        if not (wanted := self._wanted) or not (then := self.source.foresee(wanted)):
            return
        self._wanted = None
        if not self.is_active:
            return
        lines = wording.staying(self.snapshot) if then.unaffected else wording.foreseen(wanted, then, self.snapshot)
        shared = wanted is Schedule.SHARED
        title = "Keep models resident side by side?" if shared else "Run one model at a time?"
        since = "the next batch" if then.leases and not then.unaffected else "the next lease"
        self.confirm(title, lines, f"yes, from {since}", lambda: self._ask("schedule", wanted), "y,enter")

    def action_fallback(self) -> None:
        """Allow or forbid the CPU to models and batches: allowed it costs time, forbidden it may cost rows."""
        if not self._controls("fallback"):
            return
        if self.pending.get("cpu_fallback", yes_no(self.snapshot.cpu_fallback)) == YES:
            word, lines, value = "forbid", wording.no_fallback(self.snapshot), NO
        else:
            word, lines, value = "allow", wording.fallback(self.snapshot), YES
        title = f"{word.capitalize()} CPU fallback?"
        self.confirm(title, lines, f"yes, {word} it", lambda: self._ask("cpu_fallback", value), "y,enter")

    def action_pause(self) -> None:
        """Pause the run or let it go on."""
        if self._controls("pause"):
            paused = self.pending.get("pause", yes_no(self.snapshot.paused)) == YES
            self._ask("pause", NO if paused else YES)

    def action_stop(self) -> None:
        if self._controls(STOP):
            self._ask_to_leave("Stop the run?", [Choice("y,enter", "stop after the current batch (resumable)", STOP)])

    def action_quit(self) -> None:
        """Leave at once what is over or only watched; a live run is asked about, and one that stops once more. ^C again
        goes on as it does without a screen: it stops the run after its batch, and one that stops at once."""
        if self.source.kind != "live" or self.source.over:
            self.host.exit(Leave.OVER)
            return
        choices = [Choice("d,D,q", "detach: the run continues, with log lines on stderr; q too", Leave.DETACH)]
        if not self.readonly and not self.stopping:
            choices.append(Choice("S", "stop after the current batch (resumable); ^C too", STOP))
        if not self.readonly:
            too = "; ^C too" * self.stopping
            choices.append(Choice("A", f"abort now: lose the current batch (resumable){too}", Leave.ABORT))
        again = "" if self.readonly else Leave.ABORT if self.stopping else STOP
        title = "The run stops after its batch" if self.stopping else "The run is still running"
        self._ask_to_leave(title, choices, again)

    def _ask_to_leave(self, title: str, choices: Sequence[Choice], again: str = "") -> None:
        self._question = Dialog(title, wording.stopping(self.snapshot), choices, again)
        self.app.push_screen(self._question, self._leave)

    def follow_question(self) -> None:
        """Have the question about the end say how far the run is now; once it has ended, nothing is left to ask."""
        if self._question and self._question.is_active:
            if self.source.over:
                self._question.dismiss("")
            else:
                self._question.tell(wording.stopping(self.snapshot))

    def _leave(self, how: str | None) -> None:
        if how and self.source.over:  # it ended while the question stood: nothing is left to stop or to lose
            self.recap_due = False
            self.host.exit(Leave.OVER)
        elif how == STOP:
            self._stop()
        elif how:
            self.host.exit(Leave(how))

    def _stop(self) -> None:
        """Ask for the end; nothing is pending where nobody could be asked."""
        if not self.host.stop_run():
            self.say(self.source.unsteered)
            return
        self.stopping = True
        abort = f"; {self.shown_key('quit')} asks whether to abort now" if self.source.kind == "live" else ""
        self.say(f"stopping after the current batch{abort}")
        self._draw()

    def _controls(self, name: str) -> Controls | Remote | None:
        """The box of controls, where this action may use it now; else the operator is told why not."""
        if reason := self.why_not(named(name)):
            self.say(reason)
            return None
        return self.source.controls

    def _ask(self, control: str, value: str) -> None:
        controls = self.source.controls
        if refused := controls.ask(control, value, self.host.who) if controls else self.source.unsteered:
            self.say(refused)
        self._draw()
