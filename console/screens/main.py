"""The main screen: header, five panes, footer.

It draws how a source tells that the run stands (`update`); a replay, a journal and a live run look the same.
"""

import time
from collections.abc import Callable, Hashable
from functools import cache
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult

from interlock.console.actions import MAIN, bindings_of, named
from interlock.console.look import Leave, Look
from interlock.console.screens.ask import Help
from interlock.console.screens.base import Host
from interlock.console.screens.event import EventScreen
from interlock.console.screens.layout import Wants, layout, too_small
from interlock.console.screens.lists import Kinds, Listing, cause_of, mitigations
from interlock.console.screens.steering import Steering
from interlock.console.sources.journal import Replayed
from interlock.console.sources.session import Source
from interlock.console.text import dialog_text as wording
from interlock.console.text.event_lists import Feed, Steps, grouped
from interlock.engine.record.health import Attention, attention, health
from interlock.engine.record.snapshot import PassCells, Snapshot
from interlock.engine.record.words import drawn, several
from interlock.widgets import header
from interlock.widgets.pane import Bar, Pane, RunPane, View
from interlock.widgets.panes import PANES
from interlock.widgets.panes.events import EventsPane
from interlock.widgets.panes.vram import lines_wanted
from interlock.widgets.text import row


class Picture(NamedTuple):
    """The run at one moment, in seconds since the epoch, with the batches of each of its passes."""

    snapshot: Snapshot
    at: float
    cells: Callable[[int], PassCells]


class Main(Steering):
    """What an operator looks at while a run goes on."""

    ACTIONS = MAIN
    BINDINGS: ClassVar = bindings_of(MAIN)
    DEFAULT_CSS = """
    Main > Pane { position: absolute; }
    Main > Bar { width: 100%; }
    Main > .hidden { display: none; }
    """

    def __init__(self, source: Source, look: Look, host: Host) -> None:
        super().__init__()
        self.source = source
        self.host = host
        self.snapshot = Snapshot()
        self._marks: object = None
        """What the batches of passes depend on, as far as they were asked for."""
        self._cells = cache(source.cells)
        self._look = look
        self._feed = Feed()
        self.seen = -1
        """The `seq` of the last entry that was taken in."""
        self._dropped = 0
        self._begun = source.begun
        self._wants = Wants(1, 1)
        self._chosen = "events"
        self._zoomed = False
        self._frozen: Picture | None = None
        """What the screen was frozen on, until it is released."""
        self._since = time.time()
        self._looked = Attention()
        self._notice = ""
        self._header = Bar(id="header")
        self._events = EventsPane("4 Events", id="events", back=self.shown_key("unzoom"))
        self._panes: dict[str, Pane] = {kind.name: RunPane(kind) if kind.rows else self._events for kind in PANES}
        self._footer = Bar(id="footer")

    def compose(self) -> ComposeResult:
        yield from (self._header, *self._panes.values(), self._footer)

    def on_mount(self) -> None:
        self._events.focus()
        self._arrange()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()
        self.call_after_refresh(self._draw)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if event.widget.id in self._panes and event.widget.id != self._chosen:
            self._chosen = str(event.widget.id)
            self._arrange()

    def update(self, snapshot: Snapshot) -> None:
        """Take in how the run stands; nothing is drawn while the screen is frozen."""
        if self._begun != self.source.begun:  # what was told was taken back
            self._begun, self.seen, self._dropped, self._feed = self.source.begun, -1, 0, Feed()
        entries, dropped = self.source.entries(self.seen)
        if entries:
            # What happened before the screen was there, as in a journal that is caught up with, was not missed.
            before = self.seen < 0 or (self.source.kind == "watch" and entries[0].at < self._since)
            self._dropped += 0 if before else dropped
            self.seen = entries[-1].seq
        lines = self._feed.take(entries)
        self.snapshot = snapshot
        marks = [(each.batches_done, each.mitigations, each.parked) for each in snapshot.passes]
        if marks != self._marks:
            self._marks, self._cells = marks, cache(self.source.cells)
        if not self._frozen:
            self._events.feed(lines)
            self._draw()

    def finish(self) -> None:
        """Leave where the run was to be stopped; else stay, and say to who waited for it what became of it."""
        if self.stopping and self.source.kind == "live":
            self.host.exit(Leave.STOP)
            return
        self.stopping = False
        self._notice = f"the run has ended: {self.shown_key('freeze')} shows it" if self._frozen else ""
        self._draw()
        self.recap_due = self.source.kind == "live"
        if self.is_active:
            self.on_screen_resume()

    def on_screen_resume(self) -> None:
        """Show the recap that is due: what lay over this screen when the run ended was answered first."""
        if self.recap_due:
            self.recap_due = False
            self.host.show_recap()

    def say(self, text: str) -> None:
        """Write in the footer, until the next key."""
        self._notice = text
        self._draw_footer()

    def asked(self) -> None:
        self._draw_header()

    @property
    def _picture(self) -> Picture:
        """What is drawn: the run now, or as it was when the screen was frozen."""
        return self._frozen or Picture(self.snapshot, time.time(), self._cells)

    def _draw(self) -> None:
        snapshot = self._picture.snapshot
        wants = Wants(max(1, lines_wanted(snapshot.devices)), max(1, len(snapshot.passes)))
        if wants != self._wants:
            self._wants = wants
            self._arrange()
        self._draw_header()
        self._draw_footer()
        pace = self.source.pace if isinstance(self.source, Replayed) else ""
        self._events.entitle(below=drawn("  ".join(filter(None, [self.source.note, pace]))))
        shown = [name for name, pane in self._panes.items() if pane.display]
        view = View(snapshot, zoomed=self._zoomed, shown=shown, cells=self._picture.cells)
        for pane in self._panes.values():
            if pane.display and isinstance(pane, RunPane):
                pane.draw(view)
        self._draw_hints()

    def _draw_hints(self) -> None:
        """Say above the pane that has the focus what keys do in it."""
        keys = {name: self.shown_key(name) for name in ("zoom", "unzoom", "detail")}
        for pane in self._panes.values():
            hints = [f"{keys['unzoom']} all panes" if self._zoomed else f"{keys['zoom']} zoom"]
            hints[:0] = [pane.keys] if isinstance(pane, RunPane) and pane.keys else []
            hints += [f"{keys['detail']} detail"] * (pane is self._events)
            pane.hint("  ".join(hints) if pane.has_focus else "")

    def _draw_header(self) -> None:
        width = self.size.width
        snapshot, now, _ = self._picture
        replayed = self.source.kind == "replay"  # it stands as it did at the moment that is shown
        state = health(snapshot, snapshot.latest_at if replayed else now)
        # Seconds since anything was heard of a run that is expected to say something.
        stale = None if snapshot.over or replayed or not snapshot.latest_at else now - snapshot.latest_at
        shown = header.rows(
            snapshot, width, state, fresh=attention(snapshot) - self._looked, source_kind=self.source.kind,
            pending=self.pending, stale=stale, dropped=self._dropped + self.host.skipped,
            frozen=self._frozen is not None, readonly=self.readonly, small=too_small(*self.size),
        )  # fmt: skip
        self._header.show(shown)

    def _draw_footer(self) -> None:
        if self._notice and not too_small(*self.size):
            self._footer.show([row((" " + self._notice, "warn"))])
        else:
            shown = []
            for key in self.footer_keys():
                action = named(key.action)
                shown.append(key._replace(label=wording.label(action, self.snapshot), off=self.why_not(action)))
            self._footer.offer(shown, self.size.width)

    def _arrange(self) -> None:
        """Put every pane where this size of the terminal has it."""
        boxes = layout(*self.size, self._wants, self._chosen, zoomed=self._zoomed)
        for name, pane in self._panes.items():
            box = boxes.get(name)
            pane.set_class(box is None, "hidden")
            if box:
                pane.styles.offset = (box.x, box.y)
                pane.styles.width, pane.styles.height = box.width, box.height
        self._footer.styles.offset = (0, max(0, self.size.height - 1))

    def action_freeze(self) -> None:
        """Stop drawing, or go on and show what came meanwhile."""
        if not self._frozen:
            cells = {each.model_pass: self._cells(each.model_pass) for each in self.snapshot.passes}
            self._frozen = Picture(self.snapshot, time.time(), cells.__getitem__)
        else:
            self._frozen = None
            self._events.feed(self._feed.held())
        self._draw()

    def action_pane(self, name: str) -> None:
        self._chosen = name
        self._arrange()
        self._panes[name].focus()
        self.call_after_refresh(self._draw)

    def action_zoom(self) -> None:
        self._zoomed = not self._zoomed
        self._arrange()
        self.call_after_refresh(self._draw)

    def action_unzoom(self) -> None:
        if not self._events.clear() and self._zoomed:
            self.action_zoom()

    def action_find(self) -> None:
        self.narrow("", self._find)

    def _find(self, pattern: str) -> str:
        """Show only the events that have it; say how many there are."""
        count = self._events.find(pattern)
        matches = f"{several(count, 'match', 'matches')}" if count else "no match"
        return matches if pattern else ""

    def action_find_next(self) -> None:
        self._events.walk(1)

    def action_find_previous(self) -> None:
        self._events.walk(-1)

    def action_filter(self) -> None:
        self.say(f"events: {self._events.cycle_level()}")

    def action_kinds(self) -> None:
        """Let kinds of events be shown or hidden."""
        self.app.push_screen(Kinds(self._events.kinds, self._events.toggle))

    def action_mitigations(self) -> None:
        """Show the mitigations by their causes; then the events of the one that was chosen."""
        keys, none = "enter shows its events  esc closes", "no mitigations: memory and devices have sufficed so far"
        listing = Listing("Mitigations", keys, lambda width: mitigations(self._steps, width), none)
        self.app.push_screen(listing, self._show_steps)

    @property
    def _steps(self) -> list[Steps]:
        return grouped(self.source.mitigations())

    def _show_steps(self, cause: Hashable) -> None:
        if steps := next((each for each in self._steps if cause_of(each) == cause), None):
            self._events.show_only(steps.seqs, steps.name)
            self.action_pane("events")
            told = f"{several(steps.times, 'mitigation')}, {steps.name}"
            self.say(f"{told}: {self.shown_key('unzoom')} shows all events again")

    def action_attend(self) -> None:
        """Show what went wrong, and count only what is new from here on."""
        counted = attention(self.snapshot)
        self._looked = counted
        self._events.show_level("warnings")
        self.action_pane("events")
        told = "  ".join(counted.words) or "nothing went wrong so far"
        self.say(f"{told}: {self.shown_key('unzoom')} shows all events again")

    def action_follow(self) -> None:
        self._events.follow()

    def action_detail(self) -> None:
        line = self._events.chosen
        if line and (entry := self._feed.entry(line.seq)):
            self.app.push_screen(EventScreen(entry, self._look.keys))

    def action_copy(self) -> None:
        if line := self._events.chosen:
            self.app.copy_to_clipboard(line.text)
            self.say("copied")

    def action_export(self) -> None:
        self.say(self.host.export([wording.exported(line) for line in self._events.listed()]))

    def action_summary(self) -> None:
        self.host.show_summary()

    def action_faster(self) -> None:
        self._faster(+1)

    def action_slower(self) -> None:
        self._faster(-1)

    def _faster(self, step: int) -> None:
        """A replay goes faster; anything else is looked at more often."""
        if isinstance(self.source, Replayed):
            self.source.go_at(self.source.speed * 2.0**step)
        else:
            self.say(f"{self.host.change_rate(step):g} refreshes per second")

    def action_redraw(self) -> None:
        self.host.redraw()

    def action_help(self) -> None:
        self.app.push_screen(Help(MAIN, self._look, self._chosen))

    def on_key(self, event: events.Key) -> None:
        if self._notice and not self.stopping:
            self._notice = ""
            self._draw_footer()
