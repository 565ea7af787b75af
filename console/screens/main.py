"""The main screen: header, six panes, footer.

It draws how a source tells that the run stands (`update`); a replay, a journal and a live run look the same.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult

from interlock.console.actions import MAIN, bindings_of, named
from interlock.console.look import Leave, Look
from interlock.console.screens.ask import Help
from interlock.console.screens.base import Host, copied
from interlock.console.screens.event import EventScreen
from interlock.console.screens.layout import BORDER, SHARED, Wants, layout, reason_lines, tabs, too_small
from interlock.console.screens.seeking import Seeking
from interlock.console.sources.session import Source
from interlock.console.text import dialog_text as wording
from interlock.console.text.event_lists import Feed
from interlock.engine.record.events import Entry
from interlock.engine.record.inputs import onward
from interlock.engine.record.snapshot import GONE, PassCells, Snapshot
from interlock.engine.record.words import drawn, safe, several
from interlock.engine.standing.health import Concern, Remedy, goes_on
from interlock.engine.standing.judgement import Attention, Judgement, attention, judge
from interlock.widgets import header
from interlock.widgets.pane import Bar, Key, Pane, RunPane, View
from interlock.widgets.panes import PANES, leases
from interlock.widgets.panes.events import EventsPane, Line
from interlock.widgets.panes.mitigations import ladders
from interlock.widgets.panes.vram import lines_wanted
from interlock.widgets.text import Span, row

BACK = ("step('back')", "concern('previous')")


class Picture(NamedTuple):
    """The run at one moment, in seconds since the epoch, with the batches of its passes and its mitigations."""

    snapshot: Snapshot
    at: float
    cells: Callable[[int], PassCells]
    mitigations: Callable[[], list[Entry]]


class Main(Seeking):
    """What an operator looks at while a run goes on."""

    ACTIONS = MAIN
    BINDINGS: ClassVar = bindings_of(MAIN)
    DEFAULT_CSS = """
    Main > Pane { position: absolute; }
    Main > Bar { width: 100%; }
    Main > .hidden { display: none; }
    Main > .bare { border: none; }
    """

    def __init__(self, source: Source, look: Look, host: Host) -> None:
        super().__init__()
        self.source = source
        self.host = host
        self.snapshot = Snapshot()
        self._marks: object = None
        """What the batches of passes and the mitigations depend on, as far as they were asked for."""
        self._cells, self._mitigations = cache(source.cells), cache(source.mitigations)
        self._look = look
        self._feed = Feed(verbose=look.verbose)
        self.seen = -1
        """The `seq` of the last entry that was taken in."""
        self._dropped = 0
        self._begun = source.begun
        self._wants = Wants(1, 1)
        self._chosen, self._turn = "events", SHARED[0]
        self._zoomed = False
        self._frozen: Picture | None = None
        """What the screen was frozen on, until it is released."""
        self._since, self._looked, self._notice = time.time(), Attention(), ""
        self._remedy: Remedy | None = None
        self._header = Bar(id="header")
        self._header_lines = 1
        self._events = EventsPane("6 Events", id="events", back=self.shown_key("unzoom"))
        self._panes: dict[str, Pane] = {kind.name: RunPane(kind) if kind.rows else self._events for kind in PANES}
        self._footer = Bar(id="footer")

    def compose(self) -> ComposeResult:
        yield from (self._header, *self._panes.values(), self._footer)

    def on_mount(self) -> None:
        self._events.focus()
        self._arrange()

    def on_resize(self) -> None:
        self._arrange()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if event.widget.id in self._panes and event.widget.id != self._chosen:
            self._chosen = str(event.widget.id)
            self._arrange()

    def update(self, snapshot: Snapshot) -> None:
        """Take in how the run stands; nothing is drawn while the screen is frozen."""
        if self._begun != self.source.begun:  # another moment is shown, or what was told was taken back
            self._begun, self.seen, self._dropped = self.source.begun, -1, 0
            self._feed = Feed(verbose=self._look.verbose)
            self._marks, self._wants = None, Wants(1, 1)
            self._events.follow()
        entries, dropped = self.source.entries(self.seen)
        if entries:
            # What happened before the screen was there, as in a journal that is caught up with, was not missed.
            before = self.seen < 0 or (self.source.kind == "watch" and entries[0].at < self._since)
            self._dropped += 0 if before else dropped
            self.seen = entries[-1].seq
        lines = self._feed.take(entries)
        if snapshot.phase == GONE:
            died = safe(f"process died: {snapshot.reason}")
            lines = (*lines, Line(self.seen + 1, snapshot.latest_at, "error", "run", died))
        self.snapshot = snapshot
        self.follow_question()
        marks = [(each.batches_done, each.mitigations, each.parked) for each in snapshot.passes]
        if marks != self._marks:
            self._marks = marks
            self._cells, self._mitigations = cache(self.source.cells), cache(self.source.mitigations)
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

    @property
    def _picture(self) -> Picture:
        """What is drawn: the run now, or as it was when the screen was frozen."""
        return self._frozen or Picture(self.snapshot, time.time(), self._cells, self._mitigations)

    def _draw(self) -> None:
        snapshot = self._picture.snapshot
        mitigations = self._picture.mitigations
        wants = Wants(
            max(1, lines_wanted(snapshot.devices)), max(1, len(snapshot.passes)),
            leases.lines_wanted(snapshot), len(ladders(mitigations)),
        )  # fmt: skip
        wants = Wants(*map(max, wants, self._wants))  # what moves is painted anew: panes grow, and stay so
        if wants != self._wants:
            self._wants = wants
            self._arrange()
        self._draw_header()
        self._draw_footer()
        self._events.entitle(below=drawn(self.source.note) if goes_on(snapshot) else "")  # else the header tells it
        shown = [name for name, pane in self._panes.items() if pane.display]
        cells = self._picture.cells
        view = View(snapshot, zoomed=self._zoomed, shown=shown, cells=cells, mitigations=mitigations)
        for pane in self._panes.values():
            if pane.display and isinstance(pane, RunPane):
                pane.draw(view)
        self._draw_titles()

    def _draw_titles(self) -> None:
        """Write above each pane its key, its name and what it counts, with those that share its place; and above the
        one that has the focus what keys do in it."""
        sharing = () if self._zoomed else tabs(*self.size)
        counts = {kind.name: kind.counter(self._picture.snapshot) for kind in PANES}
        told = {kind.name: f"{kind.key} {kind.title} {counts[kind.name]}".rstrip() for kind in PANES}
        for name, pane in self._panes.items():
            if isinstance(pane, RunPane):
                names = sharing if name in sharing else (name,)
                spans = [Span(told[each], "" if each == name else "dim") for each in names]
                pane.entitle(above=(*(piece for each in spans for piece in (each, Span("  "))),)[:-1])
        keys = {name: self.shown_key(name) for name in ("zoom", "unzoom", "detail")}
        for pane in self._panes.values():
            hints = [f"{keys['unzoom']} all panes" if self._zoomed else f"{keys['zoom']} zoom"]
            hints[:0] = [pane.keys] if isinstance(pane, RunPane) and pane.keys else []
            hints += [f"{keys['detail']} detail"] * (pane is self._events)
            pane.hint("  ".join(hints) if pane.has_focus else "")

    def _judged(self) -> Judgement:
        """How the run stands that is shown, and what is to be said of that."""
        snapshot, now = self._picture[:2]
        past = self.source.past  # it stands as it did at the moment that is shown
        upload, run = (None, None) if past else (self.source.upload, self.host.run_directory)
        judged = judge(snapshot, snapshot.latest_at if past else now, upload, run)
        steers = snapshot.paused and not self.why_not(named("pause"))
        more = f"{self.shown_key('pause')} resumes it" if steers else self.source.note if snapshot.over else ""
        health, told = judged.health, [*judged.health.concerns, *[Concern(more)] * bool(more and not steers)]
        if steers:  # by a key, which is nearer than a command
            told[:1] = [Concern("; ".join([*(each.why for each in told[:1]), more]))]
        if health.level == "ok" and judged.attention.allowed and goes_on(snapshot):
            told = [Concern(f"{health.detail}: press {self.shown_key('summary')} for which and why", level="ok")]
        detail = "; ".join(filter(None, [health.detail, more]))
        return replace(judged, health=replace(health, detail=detail, concerns=tuple(told)))

    def _draw_header(self) -> None:
        width, judged, past = self.size.width, self._judged(), self.source.past
        self._remedy = judged.health.remedy
        snapshot, now = self._picture[:2]
        # Seconds since anything was heard of a run that is expected to say something.
        silent = past or not goes_on(snapshot) or not snapshot.latest_at
        shown = header.rows(
            snapshot, width, judged, fresh=judged.attention - self._looked, source_kind=self.source.kind,
            where=self._watched.pace if self._watched else "", find=f"{self.shown_key('find')}!",
            pending=self.pending, stale=None if silent else now - snapshot.latest_at, warned=self._feed.warned,
            dropped=self._dropped + self.host.skipped, frozen=self._frozen is not None, readonly=self.readonly,
            lines=reason_lines(*self.size, zoomed=self._zoomed, over=not goes_on(snapshot)),
        )  # fmt: skip
        if len(shown) != self._header_lines:
            self._header_lines = len(shown)
            self._header.styles.height = len(shown)
            self._arrange()
        self._header.show(shown)

    def _draw_footer(self) -> None:
        if self._notice and not too_small(*self.size):
            self._footer.show([row((" " + self._notice, "warn"))])
        else:
            shown, playing = [], bool(self._watched and self.source.past and not self._watched.paused)
            for key in self.footer_keys(*["freeze"] * self.source.past, *["copy"] * bool(self._remedy)):
                action = named(key.action)
                if not self.source.past and action.past and action.name not in BACK:  # from now one goes only back
                    continue
                now = {"past": self.source.past, "playing": playing, "watched": self.source.kind == "watch"}
                label = wording.label(action, self.snapshot, **now)
                shown.append(key._replace(label=label))
            if self.host.listed:  # which quitting goes back to as well
                shown[-1:] = [Key(self.shown_key("unzoom"), "All runs", action="quit")]
            self._footer.offer(shown, self.size.width)

    def _arrange(self) -> None:
        """Put every pane where this size of the terminal has it."""
        if self._chosen in SHARED:
            self._turn = self._chosen
        boxes = layout(
            *self.size, self._wants, self._chosen, zoomed=self._zoomed, turn=self._turn, header=self._header_lines
        )
        for name, pane in self._panes.items():
            box = boxes.get(name)
            pane.set_class(box is None, "hidden")
            if box:
                pane.set_class(box.height <= BORDER, "bare")
                pane.styles.offset = (box.x, box.y)
                pane.styles.width, pane.styles.height = box.width, box.height
        self._footer.styles.offset = (0, max(0, self.size.height - 1))

    def action_freeze(self) -> None:
        """Stop drawing, or go on and show what came meanwhile; what is past is played, or stands still."""
        if self._watched and self.source.past:
            self._watched.toggle_pause()
        elif not self._frozen:
            cells = {each.model_pass: self._cells(each.model_pass) for each in self.snapshot.passes}
            mitigations = self._mitigations()
            self._frozen = Picture(self.snapshot, time.time(), cells.__getitem__, lambda: mitigations)
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
        if self._events.clear():
            return
        if self._zoomed:
            self.action_zoom()
        elif self.host.listed:
            self.host.exit()

    def gone(self) -> None:
        self._frozen = None
        self.host.poll()

    def action_find(self) -> None:
        self.narrow(self._events.sieve.typed, self._find)

    def _find(self, typed: str) -> str:
        """Show only the events that are asked for; say how many there are. Who looks at what went wrong has it counted
        anew from here on."""
        count = self._events.sift(typed)
        if self._events.sieve.serious:
            self._looked = attention(self.snapshot)
        matches = several(count, "match", "matches") if count else "no match"
        return matches if typed else "! warnings and errors  lease: a kind  -lease without it"

    def action_detail(self) -> None:
        line = self._events.chosen
        if line and (entry := self._feed.entry(line.seq)):
            self.app.push_screen(EventScreen(entry, self._look.keys))

    def action_copy(self) -> None:
        """Copy the event that was gone to; else the command that goes on with the run, or the latest event."""
        if self._remedy and self._events.following:
            self.say(copied(self.app, self._remedy.command, "the command"))
        elif line := self._events.chosen:
            self.say(copied(self.app, line.text, "the event"))

    def action_export(self) -> None:
        self.say(self.host.export([wording.exported(line) for line in self._events.listed()]))

    def action_summary(self) -> None:
        self.host.show_summary()

    def action_redraw(self) -> None:
        self.host.redraw()

    def action_help(self) -> None:
        health, run = self._judged().health, self.host.run_directory
        after = onward(self._picture.snapshot, run) if run else ""
        whys = [each.why if each.remedy and each.remedy.command == after else each.told for each in health.concerns]
        told = {"next": after, health.word: "; ".join(whys) or health.detail}
        self.app.push_screen(Help(MAIN, self._look, self._chosen, self.offers, told))

    def on_key(self, event: events.Key) -> None:
        if self._notice and not self.stopping:
            self._notice = ""
            self._draw_footer()
