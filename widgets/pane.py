"""What a pane of the main screen is, and the widget under every pane: it is given rows, and writes to the terminal only
the lines that changed.

The line API costs about 85 bytes for a changed row, where a widget that is updated whole costs thousands.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from interlock.engine.record.events import Entry
from interlock.engine.record.snapshot import PassCells, Snapshot
from interlock.engine.record.words import drawn
from interlock.widgets.text import LONGEST, STYLES, Row, Span, fitted, row, width_of, wrapped

GAP = "  "


class Pane(ScrollView, can_focus=True):
    """Rows under a title; scrolls where there are more of them than lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"pane--{name}" for name in STYLES if name}
    DEFAULT_CSS = """
    Pane {
        border: round $foreground 30%;
        border-title-color: $text;
        scrollbar-size: 0 0;
        &:focus { border: round $accent; }
        & > .pane--dim { color: $text-muted; }
        & > .pane--bold { text-style: bold; }
        & > .pane--title { color: $accent; text-style: bold; }
        & > .pane--ok { color: $success; }
        & > .pane--warn { color: $warning; text-style: bold; }
        & > .pane--error { color: $error; text-style: bold; }
        & > .pane--accent { color: $accent; }
        & > .pane--fill { color: $primary; }
        & > .pane--work { color: $accent; }
        & > .pane--context { color: $text-muted; }
        & > .pane--others { color: $secondary; }
        & > .pane--limit { color: $foreground; text-style: bold; }
        & > .pane--rest { color: $foreground 25%; }
        & > .pane--mark { color: $warning; }
        & > .pane--hit { color: $warning; text-style: bold reverse; }
        & > .pane--chosen { background: $accent 30%; }
        &:ansi > .pane--warn { text-style: bold underline; }
        &:ansi > .pane--rest { color: ansi_bright_black; }
        &:ansi > .pane--chosen { background: ansi_default; text-style: reverse; }
    }
    """

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = title or None
        self._rows: list[Row] = []
        self._above, self._below, self._hint = Content(title), Content(""), ""

    @property
    def inner_width(self) -> int:
        """Cells that a row may have."""
        return self.scrollable_content_region.width

    @property
    def inner_height(self) -> int:
        """Lines that are visible at once."""
        return self.scrollable_content_region.height

    def entitle(self, *, above: str | Row | None = None, below: str | Row | None = None) -> None:
        """Write on the border, and paint nothing else: to set `border_title` would paint every line with it."""
        if above is not None and not (drawn := self._styled(above)).is_same(self._above):
            self._above = drawn
            self._head()
        if below is not None and not (drawn := self._styled(below)).is_same(self._below):
            self._below = self._border_subtitle = drawn
            self.refresh(Region(0, self.inner_height, self.inner_width, 1))

    def hint(self, keys: str) -> None:
        """Say behind the title what keys do here now."""
        if keys != self._hint:
            self._hint = keys
            self._head()

    def notify_style_update(self) -> None:
        """Draw the title in the colours that the theme has now."""
        super().notify_style_update()
        if self.is_mounted:
            self._head()

    def _head(self) -> None:
        hint = (f"  {self._hint}", self.get_visual_style("pane--dim")) if self._hint else ""
        drawn = Content.assemble(self._above, hint)
        if self._border_title is None or not drawn.is_same(self._border_title):
            self._border_title = drawn
            self.refresh(Region(0, -1, self.inner_width, 1))

    def _styled(self, spans: str | Row) -> Content:
        """A row for the border, in the colours that the theme has now."""
        if isinstance(spans, str):
            return Content(spans)
        return Content.assemble(
            *((text, self.get_visual_style(f"pane--{name}")) if name else text for text, name in spans)
        )

    def show(self, rows: Sequence[Row]) -> None:
        """Draw these rows; lines that are as they were cost nothing."""
        old, self._rows = self._rows, list(rows)
        if len(old) != len(self._rows):
            self.virtual_size = Size(self.inner_width, len(self._rows))
        top, width = self.scroll_offset.y, self.inner_width
        for line in range(top, top + self.inner_height):
            before = old[line] if line < len(old) else None
            after = self._rows[line] if line < len(self._rows) else None
            if before != after:
                self.refresh(Region(0, line - top, width, 1))

    def render_line(self, y: int) -> Strip:
        line, width = y + self.scroll_offset.y, self.inner_width
        base = self.rich_style
        if line >= len(self._rows):
            return Strip.blank(width, base)
        segments = []
        for text, name in self._rows[line]:
            # Blended with what is behind it: a partial style would lose the alpha of its colour.
            first, _, over = name.partition(" ")  # of a second name its colour alone
            style = self.get_component_rich_style(f"pane--{first}") if first else Style.null()
            if over:
                style += Style(color=self.get_component_rich_style(f"pane--{over}").color, bold=True)
            segments.append(Segment(drawn(text, LONGEST), base + style))
        return Strip(segments).adjust_cell_length(width, base)


class View(NamedTuple):
    """What a pane is drawn from: the run at one moment, the cells that there are, and what an operator did to it."""

    snapshot: Snapshot
    width: int = 0
    height: int = 0
    zoomed: bool = False
    """Whether it has the screen to itself, for all that is known."""
    chosen: str = ""
    """The thing that an operator chose, by its name; nothing before that."""
    opened: frozenset[str] = frozenset()
    """The things that are unfolded."""
    focused: bool = False
    shown: Collection[str] = ()
    """The panes that are on the screen with it."""
    cells: Callable[[int], PassCells] = lambda _: PassCells()
    """Tells of a pass's batches."""
    mitigations: Callable[[], Sequence[Entry]] = tuple
    """Lists what was done where memory, a device or a vector fell short."""


class Cursor(NamedTuple):
    """Things of which a pane tells of one: their names, which it is, and which stand in sight from line `top` on.
    `branch` is what enter unfolds, or folds; nothing where it does neither."""

    names: Sequence[str]
    place: int
    sight: range
    top: int = 0
    branch: str = ""


def around(count: int, place: int, room: int) -> range:
    """Choose which of `count` things are in sight where there is `room` for so many, one `place` in the middle."""
    first = max(0, min(place - room // 2, count - room))
    return range(first, min(first + room, count))


def zoomed_on(names: Sequence[str], view: View, share: int, *, first: int = 0, top: int = 1) -> Cursor | None:
    """Choose one of these in a pane that is zoomed, the `first` before anybody did; those around it have a `share` of
    the lines, from line `top` on. None where nothing can be chosen."""
    if not view.zoomed or not names:
        return None
    place = names.index(view.chosen) if view.chosen in names else first
    return Cursor(names, place, around(len(names), place, max(1, min(len(names), view.height // share))), top)


class PaneKind(NamedTuple):
    """A pane of the main screen: a pure function from what there is to see to rows, and what is said about it."""

    name: str
    key: int
    """The digit that goes to it."""
    title: str
    rows: Callable[[View], list[Row]] | None = None
    """None for one with a widget of its own."""
    cursor: Callable[[View], Cursor | None] = lambda _: None
    """What can be chosen in it now."""
    legend: Callable[[int], Row] = lambda _: ()
    """What its signs mean, for a border of so many cells."""
    counter: Callable[[Snapshot], str] = lambda _: ""
    """What its title counts."""
    help: Sequence[tuple[str, str]] = ()
    """Keys in it, and what they do; `{zoom}` is the key of that action."""
    sign: str = ""
    """What the help says of its signs."""


class RunPane(Pane):
    """A pane that draws rows of a run; up and down choose one of the things that it tells of, or scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "Up", show=False),
        Binding("down,j", "choose(1)", "Down", show=False),
        Binding("enter", "unfold", "Unfold", show=False),
        Binding("right,l", "unfold(True)", "Unfold", show=False),
        Binding("left,h", "unfold(False)", "Fold", show=False),
        Binding("home", "screen.first", show=False),
        Binding("end", "screen.follow", show=False),
    ]

    def __init__(self, kind: PaneKind) -> None:
        super().__init__(f"{kind.key} {kind.title}", id=kind.name)
        self._kind = kind
        self._view = View(Snapshot())
        self._cursor: Cursor | None = None

    @property
    def keys(self) -> str:
        """Say what keys do to what can be chosen now."""
        return "" if not self._cursor else "up/down choose" + "  enter unfold" * bool(self._cursor.branch)

    def draw(self, view: View) -> None:
        """Show this moment of the run, with what was chosen and unfolded before."""
        chosen, opened = self._view.chosen, self._view.opened
        self._again(view._replace(chosen=chosen, opened=opened))

    def _again(self, view: View) -> None:
        self._view = view._replace(width=self.inner_width, height=self.inner_height, focused=self.has_focus)
        self._cursor = self._kind.cursor(self._view)
        self.entitle(below=self._kind.legend(self.inner_width))
        self.show(self._kind.rows(self._view) if self._kind.rows else [])

    def action_choose(self, places: int) -> None:
        """Choose the next one, or the one before; scroll where nothing is chosen."""
        if self._cursor:
            names, place = self._cursor.names, self._cursor.place + places
            self._again(self._view._replace(chosen=names[max(0, min(place, len(names) - 1))]))
        else:
            self.scroll_relative(y=places, animate=False)

    def action_unfold(self, wanted: bool | None = None) -> None:
        """Unfold what is chosen, or fold it; without `wanted`, whichever it is not."""
        if not (self._cursor and self._cursor.branch):
            raise SkipAction
        branch, opened = self._cursor.branch, self._view.opened
        unfold = branch not in opened if wanted is None else wanted
        chosen = self._cursor.names[self._cursor.place] if unfold else branch
        self._again(self._view._replace(chosen=chosen, opened=opened | {branch} if unfold else opened - {branch}))

    def on_click(self, event: events.Click) -> None:
        """Choose a line; unfold it, or fold it."""
        where, cursor = event.get_content_offset(self), self._cursor
        line = where.y + self.scroll_offset.y - cursor.top if where and cursor else -1
        if cursor and 0 <= line < len(cursor.sight):
            self._again(self._view._replace(chosen=cursor.names[cursor.sight[line]]))
            if cursor.branch:
                self.action_unfold()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the cells that there are now: of a frozen screen nobody else would, and an old Textual lays out
        after it has called back."""
        if (self.inner_width, self.inner_height) != (self._view.width, self._view.height):
            self._again(self._view)

    def on_focus(self, event: events.Focus) -> None:
        self.call_next(self._mark)

    def on_blur(self, event: events.Blur) -> None:
        """Go back to the top of what can be unfolded: who looks elsewhere has the worst in sight."""
        if self._cursor and self._cursor.branch:
            self._view = self._view._replace(chosen="")
        self.call_next(self._mark)

    def _mark(self) -> None:
        """Draw the cursor, or leave it out: only after a handler of ours the widget knows whether it has the focus."""
        if self._cursor:
            self._again(self._view)


class Key(NamedTuple):
    """A key of the footer, and what it does now; `action` is what a click on it calls."""

    key: str
    label: str
    action: str = ""


class Bar(Pane, can_focus=False):
    """One line without a border: the header at the top of a screen, its keys at the bottom."""

    DEFAULT_CSS = """
    Bar { border: none; height: 1; background: $surface; }
    """
    _offered: Sequence[tuple[range, str]] = ()
    """The cells of each key that is shown, and its action."""

    def show(self, rows: Sequence[Row]) -> None:
        self._offered = ()
        super().show(rows)

    def offer(self, shown: Sequence[Key], width: int) -> None:
        """Show keys with their labels as far as they go, in the order of what matters; the last is never left out. A
        click on one is as good as the key."""
        sizes = [width_of(f"{key.key} {key.label}") + len(GAP) for key in shown]
        left = width + len(GAP) - sum(sizes[-1:])
        count = sum(end <= left for end in accumulate(sizes[:-1]))
        spans: list[Span] = []
        places, begin = [], 0
        for key, size in zip([*shown[:count], *shown[-1:]], [*sizes[:count], *sizes[-1:]], strict=True):
            spans += [Span(key.key, "title"), Span(f" {key.label}"), Span(GAP)]
            places.append((range(begin, begin + size - len(GAP)), key.action))
            begin += size
        self.show([fitted(spans[:-1], width) if spans else ()])
        self._offered = places

    async def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        for cells, action in self._offered:
            if action and offset and offset.x in cells:
                event.stop()
                await self.screen.run_action(action)
                return


class Note(Bar):
    """A few lines for the operator; it takes no room while there is nothing to say."""

    DEFAULT_CSS = "Note { display: none; }"

    def tell(self, text: str, most: int) -> None:
        """Say so many lines of it at most."""
        width = self.screen.size.width
        lines = [line for each in text.splitlines() for line in wrapped(drawn(each, 1000), width - 1)][:most]
        self.styles.display = "block" if lines else "none"
        self.styles.height = max(1, len(lines))
        self.show([row((f" {line}", "warn")) for line in lines])
