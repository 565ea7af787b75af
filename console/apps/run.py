"""The console: one timer looks at the source and gives what it sees to the screens; how it was left is its result.

It owns nothing of the run. Whatever becomes of it (quit, detached, the terminal gone), the engine's thread goes on
until somebody asks it to stop.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace
from textual.driver import Driver

from interlock.console.actions import first_key, named
from interlock.console.apps.base import Frame
from interlock.console.look import Leave, Look
from interlock.console.screens.ask import Choice, Dialog, Recap
from interlock.console.screens.main import Main
from interlock.console.sources.session import Session, Source
from interlock.console.terminal.driver import HangupSafeDriver
from interlock.console.text.recap import recap
from interlock.engine.errors import ExitCode, InterlockError
from interlock.engine.record import atomic
from interlock.engine.record.atomic import user_name
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.state import Pace
from interlock.engine.record.summary import summarise
from interlock.engine.record.words import safe, several
from interlock.engine.standing.health import ended
from interlock.widgets.text import wrapped

CALL = 200
"""Signs of a message that calls an operator who looks elsewhere."""


def call(text: str) -> str:
    """Write what makes a terminal ring and show `text` on the desktop (OSC 9), which cannot steer it."""
    return f"\a\x1b]9;{safe(text, CALL)[:CALL]}\x1b\\"


def words(snapshot: Snapshot) -> str:
    """Say how the run ended. It begins with a word, because terminals read numbers after OSC 9 as something else."""
    kind = " SCRIPTED" if snapshot.scripted else " SIMULATED" if snapshot.simulated else ""
    state = ended(snapshot.phase, snapshot.reason)
    return f"interlock{kind} {snapshot.run_id or 'run'} {': '.join(filter(None, [state.word, state.detail]))}"


class Console(Frame[Leave]):
    """The operator's screens on one source."""

    def __init__(
        self, source: Source, look: Look | None = None,
        *, session: Session | None = None, summary: Path | None = None, listed: bool = False,
        painted: Callable[[], object] = lambda: None, uploaded: bool = False,
        driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        """`session` is that of a run of this process; `summary` is where that of another run is; `listed` whether it
        was chosen in a list that is gone back to; `painted` is called when there is something on the screen; where the
        run is `uploaded` at its end, the screen is left then."""
        super().__init__(look, driver=driver)
        self.source = source
        self.who = f"{user_name()} at the console"
        self._session = session
        self._summary = summary
        self.listed = listed
        self._painted = painted
        self._uploaded = uploaded
        self.seen_seq = -1
        """The last entry that the main screen has told of."""
        self._over = False
        self._stop_heard = False
        """Whether the run has said that it is to stop."""

    def open(self) -> None:
        self.push_screen(Main(self.source, self.look, self))

    def on_ready(self) -> None:
        """Begin when the main screen is laid out, which some other screen may have been before."""
        self.main.call_after_refresh(self._painted)
        self.main.call_after_refresh(self.set_interval, 1 / self.look.rate, self.poll)

    def poll(self) -> None:
        """Look once; the main screen is kept up to date under whatever is laid over it."""
        if not self.is_running:  # timers outlive the screens of an application that is being left
            return
        snapshot = self.seen()
        told = self.source.told()
        self._follow_stop(told)
        self.main.update(snapshot)
        self.main.foresee()
        if told:
            self.main.say(told)
        self.seen_seq = self.main.seen
        if self.source.over and not self._over:
            self._over = True
            session = self._session
            if session and (session.work is None or (session.failure and not self.seen().over)):
                self.exit(Leave.OVER)  # a run that was refused has nothing to show: the error is told to the shell
                return
            if not self.app_focus and self._driver and not self.is_headless:
                self._driver.write(call(words(snapshot)))
            self.main.finish()

    def _follow_stop(self, told: str) -> None:
        """Show that the run is to stop: a signal asked for it, a key, or somebody at the control socket. A run of
        another process is believed what it says, and what it was `told` in vain is not shown."""
        box = self._session.controls if self._session else self.source.controls
        if box and box.stop_requested:
            self.main.stopping = self._stop_heard = True
        elif self.main.stopping and not self._session and (self._stop_heard or told or not box):
            self.main.stopping = self._stop_heard = False
            self.main.say("")

    def stop_run(self) -> bool:
        if box := self.source.controls:
            box.stop(ExitCode.STOPPED, self.who)
        return box is not None

    def show_recap(self) -> None:
        """Say what became of the run, and offer its summary."""
        if self._uploaded:
            self.exit(Leave.OVER)
            return
        path = self._summary_path
        if path is None:
            return
        columns = min(Recap.WIDTH, self.size.width) - Recap.FRAME
        lines = recap(self.seen(), path.parent, columns)
        if sum(len(wrapped(line, columns)) for line in lines) > self.size.height - Recap.TAKEN:
            lines.sort(key=lambda line: not line.startswith("next: "))  # what there is to do is never below the edge
        choices = [Choice("s,enter", "show the summary", "summary"), Choice("q", "quit", Leave.OVER)]
        self.push_screen(Recap("The run has ended", lines, choices, Leave.OVER), self._after_recap)

    def _after_recap(self, chosen: str | None) -> None:
        if chosen == "summary":
            self.show_summary()
        elif chosen:
            self.exit(Leave(chosen))

    @property
    def run_directory(self) -> Path | None:
        return self._summary_path.parent if self._summary_path else None

    def show_summary(self) -> None:
        """Open the summary: of a run of this process as it stands now, of any other as it is on disk."""
        from interlock.console.screens.summary import SummaryScreen
        from interlock.console.summary.document import load, of_summary

        try:
            if self._summary_path is None:
                raise InterlockError("no summary yet: the run has not started work")
            work = self._session.work if self._session and not self._session.over else None
            document = of_summary(work.recorder.look(summarise)) if work else load(self._summary_path)
            self.push_screen(SummaryScreen(document, None, self.look))
        except InterlockError as error:
            self.main.say(str(error))

    def export(self, lines: Sequence[str]) -> str:
        directory = self._summary_path.parent if self._summary_path else Path()
        target = directory / f"events-{time.strftime('%H%M%S')}.txt"
        try:
            atomic.write_bytes(target, "".join(f"{line}\n" for line in lines).encode())
        except (InterlockError, OSError) as error:
            return f"not saved: {error}"
        return f"saved {several(len(lines), 'event')} to {target}"

    @property
    def _summary_path(self) -> Path | None:
        return (self._session.summary if self._session else None) or self._summary

    @property
    def runs_in(self) -> Path:
        return self.run_shown.parent if self.run_shown else self.look.out

    @property
    def run_shown(self) -> Path | None:
        return self._summary_path.absolute().parent if self._summary_path else None

    def may_leave(self, command: str) -> bool:
        return self._session is None and super().may_leave(command)

    @property
    def skipped(self) -> int:
        return self._driver.skipped if isinstance(self._driver, HangupSafeDriver) else 0

    def redraw(self) -> None:
        """Send the whole screen anew, whatever the terminal has made of it."""
        if isinstance(self._driver, HangupSafeDriver):
            self._driver.repaint()
        self.refresh()

    def seen(self) -> Snapshot:
        """Take the source's snapshot at this second, without curves on a slow link."""
        now = self.source.snapshot()
        ages = not self.source.past and (self.source.kind == "live" or not self.source.note)
        if ages and now.latest_at and not now.over:
            now = replace(now, elapsed=now.elapsed + max(0.0, time.time() - now.latest_at))
        if self.look.slow_link:
            plain = tuple(replace(device, latest=(), course=()) for device in now.devices)
            now = replace(now, devices=plain, pace=Pace())
        return now

    @property
    def main(self) -> Main:
        return next(screen for screen in self.screen_stack if isinstance(screen, Main))

    async def action_quit(self) -> None:
        """Leave as the main screen does, where Textual would end the app."""
        self.action_help_quit()

    def action_help_quit(self) -> None:
        """Ask as `q` does; a question that stands while the run goes on is answered by its own keys."""
        if self.source.over or not isinstance(self.screen, Dialog):
            self.main.action_quit()

    @property
    def why_not_suspend(self) -> str:
        """That the run of this process would stand still as well, with what it holds of the GPUs."""
        if not self._session or self.source.over:
            return ""
        suspend, leave = (first_key(named(name), self.look.keys) for name in ("suspend", "quit"))
        return f"{suspend} would suspend the run as well and keep its GPUs; {leave} then d detaches"
