"""The summary viewer: a tree of the JSON, and what is to say of the chosen place of it; or two summaries compared.

It is given documents that were read, and asks for nothing but the second file that an operator names.
"""

import asyncio
import time
from itertools import islice
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import Tree

from interlock.console.actions import VIEW, bindings_of
from interlock.console.look import Look
from interlock.console.screens.ask import Find
from interlock.console.screens.base import Keyed, copied
from interlock.console.screens.layout import LEAST_HEIGHT, LEAST_WIDTH, WIDE, too_small
from interlock.console.summary import detail
from interlock.console.summary.document import Document, header, load, told, top
from interlock.engine.errors import UsageError
from interlock.engine.record.words import drawn, human_bytes
from interlock.widgets.nodes import Node, Steps, children, differences, inside, sought
from interlock.widgets.pane import Bar, Note, Pane
from interlock.widgets.text import ELLIPSIS, Row, Span, fit, fitted, kept, width_of
from interlock.widgets.tree import DocumentTree

NOTE_LINES = 4
SLICE = 0.04
"""Seconds that a search takes before the keys are looked at again."""
REST = 0.25
"""Seconds without a key after which the first match is shown."""
AT_ONCE = 500
"""Places that are looked at between two looks at the clock."""
MOST = 20_000
"""Matches after which nobody wants another one."""


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
    }
    """

    def __init__(self, document: Document, other: Document | None = None, look: Look | None = None) -> None:
        super().__init__()
        self._document = document
        self._look = look or Look()
        self._search = Search(top(document), "")
        self._place = -1
        """Of the places that are walked through, the one that was shown last."""
        self._prompt: Find | None = None
        self._tree = DocumentTree(top(document), "", id="tree")
        self._detail = Pane(id="detail")
        self._take(other)

    def compose(self) -> ComposeResult:
        yield Bar(id="run")
        with Container(id="parts"):
            yield self._tree
            yield self._detail
        yield Note(id="note")
        yield Bar(id="keys")

    def on_mount(self) -> None:
        self._tree.focus()

    @on(Tree.NodeHighlighted)
    def _chosen(self) -> None:
        self._draw_detail()

    def say(self, text: str) -> None:
        """Write a few lines for the operator, until the next key."""
        self.query_one(Note).tell(text, NOTE_LINES)

    def on_key(self, event: events.Key) -> None:
        if self.query_one(Note).display:
            self.say("")

    # What is shown

    def _take(self, other: Document | None) -> None:
        """Show the document beside another one, or alone again."""
        self._other = other
        node = top(self._document, other)
        self._every = differences(node) if other else []
        self._found, _ = told(self._every)
        self._search, self._place = Search(node, ""), -1
        name, size = Path(self._document.name).name, self._document.size
        called = "1 and 2" if other else f"{name}  {human_bytes(size)}" if size is not None else name
        self._tree.take(node, called, _first_opened(node), inside(self._found) if other else None)

    def _draw(self) -> None:
        headers = [_header(self._document, "1" if self._other else "", self.size.width)]
        if self._other and not too_small(*self.size):
            headers.append(_header(self._other, "2", self.size.width))
        bar = self.query_one("#run", Bar)
        bar.styles.height = len(headers)
        bar.show(headers)
        self.query_one("#keys", Bar).offer(self.footer_keys("find_next", "copy", "copy_value"), self.size.width)
        self._draw_detail()

    def _draw_detail(self) -> None:
        node, pane = self._tree.node, self._detail
        shown = detail.rows(self._document, node, self._siblings(), self._every, pane.inner_width)
        # The end of a path says more than its beginning.
        path, width = node.path, pane.inner_width - 4
        pane.entitle(above=path if len(path) <= width else ELLIPSIS + path[max(0, len(path) - width + 1) :])
        pane.show(shown)
        pane.scroll_to(0, 0, animate=False)
        self._tree.entitle(self._status())

    def _siblings(self) -> list[Node]:
        """The items of the list that the chosen field's object is in."""
        steps, item = self._tree.node.steps, self._tree.chosen.parent
        among = item.parent if item and len(steps) > 1 and isinstance(steps[-2], int) else None
        return list(children(among.data)) if among and among.data else []

    def _status(self) -> str:
        """What n and N walk through, and where in it the chosen line is."""
        search, places, chosen = self._search, self._places, self._tree.node.steps
        if not search.text and not self._other:
            return ""
        place = f"{places.index(chosen) + 1:,} of " if chosen in places else ""
        if not search.text:
            return f"differences {place}{len(places):,}"
        more = "" if search.over else f" so far, searching... ({self.shown_key('back')} ends it)"
        return f"/{drawn(search.text, 20)} {place}{search.count}{more}"

    @property
    def _places(self) -> list[Steps]:
        return self._search.places if self._search.text else [node.steps for node in self._found]

    # What an operator asks

    def action_move(self, where: str) -> None:
        """Move in the tree; in the other pane, where that has the focus, scroll."""
        if where in ("in", "out"):
            (self._tree.inward if where == "in" else self._tree.outward)()
        elif self._detail.has_focus:
            getattr(self._detail, f"scroll_{ENDS.get(where, where)}")(animate=False)
        else:
            page, every = max(1, self._tree.scrollable_content_region.height - 1), self._tree.last_line
            lines = {"down": 1, "up": -1, "page_down": page, "page_up": -page, "first": -every, "last": every}
            self._tree.move(lines[where])

    def action_fold(self) -> None:
        self._tree.fold()

    def action_find(self) -> None:
        self._prompt = Find("/", self._search.text, self._look_for)
        self.app.push_screen(self._prompt, self._keep)

    def _look_for(self, pattern: str) -> str:
        """Begin to look for it; what a moment does not find is looked for in slices. How many there are so far."""
        if pattern != self._search.text or not pattern:
            self._search, self._place = Search(top(self._document, self._other), pattern), -1
            self._search.go_on(SLICE)
            self._look_on(self._search)
        return self._search.progress

    @work(exclusive=True, group="search")
    async def _look_on(self, search: "Search") -> None:
        """Look on, and go to the first match once the keys rest: another key begins another search."""
        await asyncio.sleep(REST)
        while True:
            if self._place < 0:
                self._go_to_first()
            if self._prompt and self._prompt.is_active:
                self._prompt.tell(search.progress)
            self._tree.entitle(self._status())
            if search.over:
                break
            search.go_on(SLICE)
            await asyncio.sleep(SLICE / 4)
        if self.is_active:
            self._say_none()

    def _keep(self, pattern: str | None) -> None:
        """Keep what was typed; escape ends the search."""
        self._prompt = None
        self._look_for(pattern or "")
        if self._place < 0:
            self._go_to_first()
        self._say_none()

    def _say_none(self) -> None:
        """Say it where the search is over and nothing was found."""
        if self._search.text and self._search.over and not self._search.places:
            self.say(f"no match for {self._search.text!r}")
            self._look_for("")
        self._tree.entitle(self._status())

    def _go_to_first(self) -> None:
        """Show the first match, unless one is chosen; from then on the operator moves."""
        if self._search.places and self._tree.node.steps not in self._search.places:
            self._go(+1)

    def action_find_next(self) -> None:
        self._go(+1)

    def action_find_previous(self) -> None:
        self._go(-1)

    def _go(self, way: int) -> None:
        """To the next place that was found, or that differs; round at the ends."""
        places, chosen = self._places, self._tree.node.steps
        if not places:
            find, compare = map(self.shown_key, ("find", "open"))
            self.say(f"nothing to step through: {find} searches, {compare} compares with another summary")
            return
        if chosen in places:
            self._place = places.index(chosen)
        self._place = (self._place + way if self._place >= 0 or way > 0 else -1) % len(places)
        self._tree.reveal(places[self._place])
        self._draw_detail()

    def action_copy(self) -> None:
        self.say(copied(self.app, self._tree.node.path, "the path"))

    def action_copy_value(self) -> None:
        self.say(copied(self.app, detail.copied(self._tree.node.value), "the value"))

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
        self._draw()

    def action_back(self) -> None:
        """Go one step back: from a search, from the screen."""
        if self._search.text:
            self._look_for("")
            self._draw_detail()
        elif len(self.app.screen_stack) > 2:
            self.dismiss()
        else:
            self.say(f"{self.shown_key('quit')} leaves")


class Search:
    """Finds where a key or a value contains `text`, in any case of letters: in slices, so that a screen goes on while a
    large document is walked through."""

    def __init__(self, node: Node, text: str) -> None:
        self.text = text
        self.places: list[Steps] = []
        self.over = not text
        self._left = sought(node, text)

    def go_on(self, seconds: float) -> None:
        """Look for so long, or to the end."""
        until = time.monotonic() + seconds
        while not self.over and time.monotonic() < until:
            looked_at = list(islice(self._left, AT_ONCE))
            self.places += [steps for steps in looked_at if steps is not None]
            self.over = len(looked_at) < AT_ONCE or len(self.places) >= MOST

    @property
    def count(self) -> str:
        """How many places were found, in a word."""
        return f"{len(self.places):,}" + "+" * (len(self.places) >= MOST)

    @property
    def progress(self) -> str:
        """How many places were found, and whether that is all."""
        said = f"{self.count} {'match' if len(self.places) == 1 else 'matches'}" if self.places else "no match"
        return "" if not self.text else said if self.over else f"{said} so far, searching..."


ENDS = {"first": "home", "last": "end"}
"""What Textual calls the ends of what is scrolled."""


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
