"""The summary viewer: a tree of the JSON, and what is to say of the chosen place of it; or two summaries compared.

It is given documents that were read, and asks for nothing but the second file that an operator names.
"""

import asyncio
import time
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container

from interlock.console.actions import VIEW, actions_of, bindings_of, first_key
from interlock.console.look import Look
from interlock.console.screens.ask import Find
from interlock.console.screens.base import Keyed, copied
from interlock.console.screens.layout import LEAST_HEIGHT, LEAST_WIDTH, WIDE, too_small
from interlock.console.summary import detail
from interlock.console.summary.document import Document, header, load, told, top
from interlock.console.summary.search import Search
from interlock.engine.errors import UsageError
from interlock.engine.record.words import human_bytes, safe
from interlock.widgets.nodes import Node, Steps, children, differences, inside
from interlock.widgets.outline import Outline
from interlock.widgets.pane import Bar, Key, Pane
from interlock.widgets.text import CUT, ELLIPSIS, Row, Span, ascii_only, fit, fitted, kept, row, width_of, wrapped
from interlock.widgets.tree import TreePane

NOTE_LINES = 4
SLICE = 0.04
"""Seconds that a search takes before the keys are looked at again."""
REST = 0.25
"""Seconds without a key after which the first match is shown."""


class SummaryScreen(Keyed):
    """What a run did, or how two runs differ."""

    ACTIONS = VIEW
    BINDINGS: ClassVar = bindings_of(VIEW)
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (LEAST_WIDTH, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LEAST_HEIGHT, "-high")]  # noqa: RUF012
    DEFAULT_CSS = """
    SummaryScreen {
        & > #parts { height: 1fr; layout: vertical; }
        & #tree { height: 3fr; }
        & #detail { height: 2fr; overflow-x: hidden; }
        &.-wide > #parts { layout: horizontal; }
        &.-wide #tree { width: 2fr; height: 100%; }
        &.-wide #detail { width: 3fr; height: 100%; }
        &.-thin > #parts, &.-low > #parts { display: none; }
        & > #note { display: none; }
    }
    """

    def __init__(self, document: Document, other: Document | None = None, look: Look | None = None) -> None:
        super().__init__()
        self._document = document
        self._look = look or Look()
        self._ascii = self._look.ascii
        self._pattern = ""
        self._places: list[Steps] = []
        self._prompt: Find | None = None
        self._gone = False  # whether the first match was shown
        self._take(other)

    def compose(self) -> ComposeResult:
        yield Bar(id="run")
        with Container(id="parts"):
            tree = TreePane(self._outline, self._called, ascii=self._ascii, id="tree")
            tree.differing = inside(self._found) if self._other else None
            yield tree
            yield Pane(id="detail")
        yield Bar(id="note")
        yield Bar(id="keys")

    def on_mount(self) -> None:
        self._tree.focus()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._draw)

    @on(TreePane.Chosen)
    def _chosen(self) -> None:
        self._draw_detail()

    def say(self, text: str) -> None:
        """Write a few lines for the operator, until the next key."""
        width = self.size.width
        lines = [line for each in text.splitlines() for line in wrapped(safe(each, 1000), width - 1)][:NOTE_LINES]
        note = self.query_one("#note", Bar)
        note.styles.display = "block" if lines else "none"
        note.styles.height = max(1, len(lines))
        shown = [row((f" {line}", "warn")) for line in lines]
        note.show(ascii_only(shown) if self._ascii else shown)

    def on_key(self, event: events.Key) -> None:
        if self.query_one("#note", Bar).display:
            self.say("")

    # What is shown

    def _take(self, other: Document | None) -> None:
        """Show the document beside another one, or alone again."""
        self._other = other
        node = top(self._document, other)
        self._every = differences(node) if other else []
        self._found, _ = told(self._every)
        self._outline = Outline(node, opened=_first_opened(node))
        self._searching = Search(node, "")

    @property
    def _called(self) -> str:
        if self._other:
            return "1 and 2"
        name = Path(self._document.name).name
        return f"{name}  {human_bytes(self._document.size)}" if self._document.size is not None else name

    @property
    def _tree(self) -> TreePane:
        return self.query_one(TreePane)

    @property
    def _detail(self) -> Pane:
        return self.query_one("#detail", Pane)

    def _draw(self) -> None:
        headers = [_header(self._document, "1" if self._other else "", self.size.width)]
        if self._other and not too_small(*self.size):
            headers.append(_header(self._other, "2", self.size.width))
        bar = self.query_one("#run", Bar)
        bar.styles.height = len(headers)
        bar.show(ascii_only(headers) if self._ascii else headers)
        shown = [
            Key(first_key(action, self._look.keys), action.label, action=action.name)
            for action in actions_of(VIEW)
            if action.stands(self.size.width) or action.name in ("find_next", "copy", "copy_value")
        ]
        self.query_one("#keys", Bar).offer([] if too_small(*self.size) else shown, self.size.width)
        self._redraw()

    def _draw_detail(self) -> None:
        node, pane = self._outline.node, self._detail
        shown = detail.rows(self._document, node, self._siblings(), self._every, pane.inner_width, ascii=self._ascii)
        # The end of a path says more than its beginning.
        path, width, cut = node.path, pane.inner_width - 4, CUT if self._ascii else ELLIPSIS
        pane.entitle(above=path if len(path) <= width else cut + path[max(0, len(path) - width + 1) :])
        pane.show(shown)
        pane.scroll_to(0, 0, animate=False)
        self._tree.entitle(below=self._status())

    def _siblings(self) -> list[Node]:
        """The items of the list that the chosen field's object is in."""
        steps = self._outline.node.steps
        if len(steps) < 2 or not isinstance(steps[-2], int):
            return []
        above = next((node for node in self._outline.nodes if node.steps == steps[:-2]), None)
        return list(children(above)) if above else []

    def _status(self) -> str:
        """What n and N walk through, and where in it the chosen line is."""
        if not self._pattern and not self._other:
            return ""
        places, chosen = self._walk(), self._outline.node.steps
        place = f"{places.index(chosen) + 1:,} of " if chosen in places else ""
        what = f"/{safe(self._pattern, 20)}" if self._pattern else "differences"
        ends = f" so far, searching... ({self.shown_key('back')} ends it)"
        more = "" if not self._pattern or self._searching.over else ends
        count = self._searching.count if self._pattern else f"{len(places):,}"
        return f"{what} {place}{count}{more}"

    def _walk(self) -> list[Steps]:
        return self._places if self._pattern else [node.steps for node in self._found]

    # What an operator asks

    def action_move(self, where: str) -> None:
        """Move in the tree; in the other pane, where that has the focus, scroll."""
        if self._detail.has_focus and where in SCROLLS:
            getattr(self._detail, SCROLLS[where])(animate=False)
            return
        outline, page = self._outline, max(1, self._tree.inner_height - 1)
        if where in ("in", "out"):
            (outline.inward if where == "in" else outline.outward)()
        else:
            every = len(outline.nodes)
            lines = {"down": 1, "up": -1, "page_down": page, "page_up": -page, "first": -every, "last": every}
            outline.move(lines[where])
        self._redraw()

    def action_fold(self) -> None:
        self._outline.fold()
        self._redraw()

    def action_find(self) -> None:
        self._prompt = Find("/", self._pattern, self._search)
        self.app.push_screen(self._prompt, self._keep)

    def _search(self, pattern: str) -> str:
        """Begin to look for it; what a moment does not find is looked for in slices."""
        if pattern != self._pattern or not pattern:
            self._pattern = pattern
            self._searching = Search(self._outline.nodes[0], pattern)
            self._searching.go_on(SLICE)
            self._places, self._gone = self._searching.places, False
            self._search_on()
        return self._progress()

    @work(exclusive=True, group="search")
    async def _search_on(self) -> None:
        """Look on, and go to the first match once the keys rest."""
        search = self._searching
        while not (search.over and self._gone):
            until = time.monotonic() + REST
            while not search.over and time.monotonic() < until:
                search.go_on(SLICE)
                await asyncio.sleep(SLICE / 4)
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            if not self._gone and (search.places or search.over):
                self._go_to_first()
            if self._prompt and self._prompt.is_active:
                self._prompt.tell(self._progress())
            self._tree.entitle(below=self._status())
        if self.is_active:
            self._settle()

    def _progress(self) -> str:
        """How many places were found, and whether that is all."""
        found = f"{self._searching.count} {'match' if len(self._places) == 1 else 'matches'}"
        found = found if self._places else "no match"
        return "" if not self._pattern else found if self._searching.over else f"{found} so far, searching..."

    def _keep(self, pattern: str | None) -> None:
        """Keep what was typed; escape ends the search."""
        self._prompt = None
        self._search(pattern or "")
        if self._places and not self._gone:
            self._go_to_first()
        self._settle()

    def _go_to_first(self) -> None:
        """Show the first match, once: from then on the operator moves."""
        self._gone = True
        self._go(+1, stay=True)

    def _settle(self) -> None:
        """Say it where the search is over and nothing was found."""
        if self._pattern and self._searching.over and not self._places:
            self.say(f"no match for {self._pattern!r}")
            self._pattern = ""
        self._redraw()

    def action_find_next(self) -> None:
        self._go(+1)

    def action_find_previous(self) -> None:
        self._go(-1)

    def _go(self, way: int, *, stay: bool = False) -> None:
        """To the next place that was found, or that differs; round at the ends."""
        places = self._walk()
        if places and not (stay and self._outline.node.steps in places):
            self._outline.reveal(places[self._outline.following(places, way)])
        elif not places and not stay:
            find, compare = map(self.shown_key, ("find", "open"))
            self.say(f"nothing to step through: {find} searches, {compare} compares with another summary")
        self._redraw()

    def action_copy(self) -> None:
        self._copy(self._outline.node.path, "the path")

    def action_copy_value(self) -> None:
        self._copy(detail.copied(self._outline.node.value), "the value")

    def _copy(self, text: str, what: str) -> None:
        self.say(copied(self.app, text, what))

    def action_open(self) -> None:
        run = Path(self._document.name).absolute().parent  # the next summary probably is beside this one
        place = f"{run.parent}/" if self._document.size is not None else ""
        self.app.push_screen(Find("compare with a summary or run:", place), self._open)

    def _open(self, path: str | None) -> None:
        if not path:
            return
        try:
            other = load(Path(path.strip()).expanduser())
        except (UsageError, RuntimeError) as error:
            self.say(str(error))
            return
        self._take(other)
        self._pattern = ""
        self._tree.outline, self._tree.called, self._tree.differing = self._outline, self._called, inside(self._found)
        self._draw()

    def action_back(self) -> None:
        """Go one step back: from a search, from the screen."""
        if self._pattern:
            self._search("")
            self._redraw()
        elif len(self.app.screen_stack) > 2:
            self.dismiss()
        else:
            self.say(f"{self.shown_key('quit')} leaves")

    async def action_quit(self) -> None:
        """Leave as the app does, which asks while a run is live."""
        await self.app.action_quit()

    def _redraw(self) -> None:
        self._tree.draw()
        self._draw_detail()


SCROLLS = {
    "down": "scroll_down", "up": "scroll_up", "page_down": "scroll_page_down", "page_up": "scroll_page_up",
    "first": "scroll_home", "last": "scroll_end",
}  # fmt: skip


def _first_opened(node: Node) -> list[Steps]:
    """One collection is shown open; several, as a list."""
    found = node.value.get("collections") if isinstance(node.value, dict) else None
    if not isinstance(found, list):
        return []
    return [("collections",), ("collections", 0)] if len(found) == 1 else [("collections",)]


def _header(document: Document, number: str, width: int) -> Row:
    facts = header(document)
    gap = 2 if width >= WIDE else 1
    texts = [fit(fact.text, min(width_of(fact.text), max(1, width - 2))).strip() for fact in facts]
    lead = f"{number or ' '}{' ' * bool(number)}"
    places = kept([width_of(text) for text in texts], [fact.rank for fact in facts], width - len(lead), gap)
    spans = [Span(lead, "dim")]
    for place in places:
        spans += [Span(texts[place], facts[place].style), Span(" " * gap)]
    return fitted(spans, width)
