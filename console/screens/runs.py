"""The screen of runs: each a line, the latest first; one is watched, viewed, resumed, compared or deleted from here.

It looks at runs and changes none but by `delete`. To go on with a run in another command the screen is left, where the
application under it can be.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, cast

from textual import events, on
from textual.app import ComposeResult

from interlock.console.actions import RUNS, Action, bindings_of
from interlock.console.look import Look
from interlock.console.screens.base import Host, Keyed
from interlock.console.screens.summary import SummaryScreen
from interlock.console.sources.runs import RunList
from interlock.console.summary.document import load
from interlock.console.text import runs_text
from interlock.engine.errors import InterlockError
from interlock.engine.record.words import command, drawn, few, human_bytes, several
from interlock.engine.standing.health import Level
from interlock.engine.standing.judgement import HISTORY
from interlock.engine.standing.runs import Overview, delete
from interlock.widgets.choices import Choices
from interlock.widgets.header import SIGNS
from interlock.widgets.pane import Bar, Note
from interlock.widgets.panes.events import LONGEST_PATTERN
from interlock.widgets.text import Row, Span, fitted, row, width_of

BEAT = 0.5
LEVELS: tuple[Level, ...] = ("error", "warn")


class RunsScreen(Keyed):
    """Every run of a directory."""

    ACTIONS = RUNS
    BINDINGS: ClassVar = bindings_of(RUNS)
    DEFAULT_CSS = """
    RunsScreen {
        & > Bar { width: 100%; }
        & > #list { height: 1fr; }
    }
    """

    def __init__(self, runs: RunList, look: Look, now: Callable[[], float], chosen: Path | None = None) -> None:
        """The cursor begins at the run that is `chosen`."""
        super().__init__()
        self._runs = runs
        self._look = look
        self._now = now
        self._begin = chosen
        self._marked: list[Path] = []
        self._pattern = ""
        self._notice = ""
        self._drawn = 0
        """Which look was drawn last."""
        self._head, self._list, self._why, self._keys = (
            Bar(id="head"), Choices("Runs", id="list"), Note(id="why"), Bar(id="keys"),
        )  # fmt: skip

    def compose(self) -> ComposeResult:
        yield from (self._head, self._list, self._why, self._keys)

    def on_mount(self) -> None:
        self._runs.open()
        self._list.focus()
        self.set_interval(BEAT, self._look_again)

    def on_unmount(self) -> None:
        self._runs.close()

    def on_key(self, event: events.Key) -> None:
        if self._notice:
            self.say("")

    def say(self, text: str) -> None:
        """Write in the footer, until the next key."""
        self._notice = text
        self._draw_keys()

    @property
    def _seen(self) -> Sequence[Overview]:
        """The runs that say what is looked for."""
        return [each for each in self._runs.seen if runs_text.says(each, self._pattern)]

    def offers(self, action: Action) -> bool:
        """Nobody leaves a run of this process for one that is to be watched."""
        return action.name != "enter" or self._host.may_leave("watch") or not (self._chosen and self._chosen.lives)

    @property
    def _host(self) -> Host:
        return cast(Host, self.app)

    @property
    def _chosen(self) -> Overview | None:
        return next((each for each in self._seen if each.path == self._list.chosen), None)

    def _look_again(self) -> None:
        """Draw what was found, where it was looked anew."""
        if self._drawn != self._runs.looks or not self._runs.complete:
            self._draw()

    def _draw(self) -> None:
        self._drawn = self._runs.looks
        seen, width, now = self._seen, self._list.inner_width, self._now()
        there = {each.path for each in self._runs.seen}
        self._marked = [path for path in self._marked if path in there]
        self._head.show([self._heading(seen, len(there), now)])
        heads, lines = runs_text.rows(seen, self._marked, now, width)
        none = (
            [f"No run matches: {self.shown_key('back')} shows all."] if there else runs_text.nothing(self._runs.places)
        )
        listed = [(each.path, [line]) for each, line in zip(seen, lines, strict=True)]
        self._list.show(listed, heads=[heads], none=["", *none] if self._runs.complete else [])
        if self._begin in [path for path, _ in listed] and self._runs.complete:  # from then on the operator moves
            self._list.choose(self._begin)
            self._begin = None
        self._list.entitle(f"Runs  /{drawn(self._pattern, LONGEST_PATTERN)}" if self._pattern else "Runs")
        self._why.tell(runs_text.about(self._chosen) if self._chosen else "", self.size.height // 4)
        self._draw_keys()

    def _heading(self, seen: Sequence[Overview], there: int, now: float) -> Row:
        """How many runs there are, in use, and in trouble that is no history; how large, and where."""
        levels = [each.health.level for each in seen if each.need(now) < HISTORY]
        found = f"{len(seen)} of " if self._pattern else ""
        spans = [Span(f" {found}{several(there, 'run')}", "title"), Span(f"  {sum(each.held for each in seen)} in use")]
        spans += [Span(f"  {SIGNS[each]} {levels.count(each)}", each) for each in LEVELS if each in levels]
        size = human_bytes(sum(each.bytes for each in seen))
        spans.append(Span(f"  {size}  {few([*map(str, self._runs.places)], 2)}", "dim"))
        spans += [Span("  reading...", "dim")] * (not self._runs.complete)
        failure = f" {self._runs.failure} " * bool(self._runs.failure)
        return (*fitted(spans, max(0, self.size.width - width_of(failure))), Span(failure, "error"))

    def _draw_keys(self) -> None:
        if self._notice:
            self._keys.show([row((f" {drawn(self._notice, 1000)}", "warn"))])
            return
        self._keys.offer(self.footer_keys(), self.size.width)

    def action_move(self, where: str) -> None:
        self._list.move(where)

    @on(Choices.OptionHighlighted)
    def _moved(self) -> None:
        self._draw()

    def action_enter(self) -> None:
        """Watch a run that is not closed, view one that is; say what is wrong with one that cannot be read."""
        if not (chosen := self._chosen):
            return
        if chosen.unreadable:
            self.say(chosen.health.told)
        elif chosen.lives:
            self._go(["watch", str(chosen.path)])
        else:
            self._view(chosen.path)

    def action_find(self) -> None:
        self.narrow(self._pattern, self._find)

    def _find(self, pattern: str) -> str:
        """List only the runs that say it; tell how many there are."""
        self._pattern = pattern
        self._draw()
        return several(len(self._seen), "run") if pattern else ""

    def action_mark(self) -> None:
        """Mark a run to be compared, or take the mark back; the third mark takes the place of the first."""
        if chosen := self._chosen:
            if chosen.path in self._marked:
                self._marked.remove(chosen.path)
            else:
                self._marked = [*self._marked, chosen.path][-2:]
            self.action_move("down")

    def action_compare(self) -> None:
        """Compare the two runs that are marked, the older one first."""
        marked = [each.path for each in reversed(self._runs.seen) if each.path in self._marked]
        if len(marked) != 2:
            self.say(f"mark two runs first ({self.shown_key('mark')})")
            return
        self._view(*marked)

    def action_resume(self) -> None:
        """Continue a run, once its command was seen."""
        if not (chosen := self._chosen) or self._refused():
            return
        if not chosen.resumable:
            why = "in use" if chosen.held else "complete" if chosen.exit_code == 0 else "not readable"
            self.say(f"{chosen.id} is {why}: nothing to resume")
            return
        words = chosen.onward
        if not self._host.may_leave(words[0]):
            self._go(words)
            return
        self.confirm(f"Resume {chosen.id}?", [command(words)], "run it", lambda: self._go(words), "y,enter")

    def action_delete(self) -> None:
        """Delete a run for good, once that was confirmed; never one in use."""
        if not (chosen := self._chosen) or self._refused():
            return
        if chosen.held:
            self.say(f"{chosen.id} is in use by {chosen.occupant or 'another session'}: it is not deleted")
            return
        lines = [f"{chosen.path}: {human_bytes(chosen.bytes)}, {chosen.health.word}.", "This cannot be undone."]
        self.confirm(f"Delete {chosen.id}?", lines, "delete it for good", lambda: self._delete(chosen.path))

    def _refused(self) -> bool:
        """Whether this list only looks, which is said then."""
        if self._look.readonly:
            self.say("--readonly: no run is resumed or deleted from here")
        return self._look.readonly

    def _delete(self, path: Path) -> None:
        try:
            delete(path)
            self.say(f"deleted {path}")
        except InterlockError as error:
            self.say(str(error))
        self._runs.look()

    def action_back(self) -> None:
        """List all runs again; then go back to what is under the list, if anything is."""
        if self._pattern:
            self._find("")
        elif len(self.app.screen_stack) > 2:
            self.dismiss()
        else:
            self.say(f"{self.shown_key('quit')} quits")

    def _view(self, *paths: Path) -> None:
        try:
            one, *other = [load(path) for path in paths]
        except InterlockError as error:
            self.say(str(error))
            return
        self.app.push_screen(SummaryScreen(one, other[0] if other else None, self._look))

    def _go(self, words: Sequence[str]) -> None:
        """Leave for a command; say which one it is where leaving would end more than a look."""
        if self._host.may_leave(words[0]):
            self._host.leave_for(words)
        else:
            self.say(f"in another terminal: {command(words)}")
