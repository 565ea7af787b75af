"""The widget under every pane: it is given rows, and writes to the terminal only the lines that changed.

The line API costs about 85 bytes for a changed row, where a widget that is updated whole costs thousands.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from interlock.engine.record.words import safe
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
        &:ansi > .pane--rest { color: ansi_bright_black; }
        &:ansi > .pane--chosen { background: ansi_default; text-style: reverse; }
    }
    """

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = title or None
        self._rows: list[Row] = []
        self._above, self._hint = title, ""
        self._below = Content("")

    @property
    def inner_width(self) -> int:
        """Cells that a row may have."""
        return self.scrollable_content_region.width

    @property
    def inner_height(self) -> int:
        """Lines that are visible at once."""
        return self.scrollable_content_region.height

    def entitle(self, *, above: str | None = None, below: str | Row | None = None) -> None:
        """Write on the border, and paint nothing else: to set `border_title` would paint every line with it."""
        drawn = self._styled(below) if isinstance(below, tuple) else Content(below or "")
        if above is not None and above != self._above:
            self._above = above
            self._head()
        if below is not None and not drawn.is_same(self._below):
            self._below = self._border_subtitle = drawn
            self.refresh(Region(0, self.inner_height, self.inner_width, 1))

    def hint(self, keys: str) -> None:
        """Say behind the title what keys do here now."""
        if keys != self._hint:
            self._hint = keys
            self._head()

    def _head(self) -> None:
        hint = (f"  {self._hint}", self.get_visual_style("pane--dim")) if self._hint else ""
        self._border_title = Content.assemble(self._above, hint)
        self.refresh(Region(0, -1, self.inner_width, 1))

    def _styled(self, spans: Row) -> Content:
        """A row for the border, in the colours that the theme has now."""
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
            style = self.get_component_rich_style(f"pane--{name}") if name else Style.null()
            segments.append(Segment(safe(text, LONGEST), base + style))
        return Strip(segments).adjust_cell_length(width, base)


class Chooser(Pane):
    """A pane that, mostly while it is shown in detail, tells of one thing among several: up and down choose it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "Up", show=False),
        Binding("down,j", "choose(1)", "Down", show=False),
    ]
    KEYS: ClassVar[str] = "up/down choose"
    """What the keys of it do, while it tells of one thing."""

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self._again: Callable[[int], None] | None = None
        """Draws it anew, so many places further; None while there is nothing to choose."""

    @property
    def chooses(self) -> bool:
        """Whether there is something to choose now."""
        return self._again is not None

    def action_choose(self, places: int) -> None:
        """Choose the next one, or the one before; scroll where nothing is chosen."""
        if self._again:
            self._again(places)
        else:
            self.scroll_relative(y=places, animate=False)


class Key(NamedTuple):
    """A key of the footer, and what it does now; `off` is why it does nothing, `action` what a click on it calls."""

    key: str
    label: str
    off: str = ""
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
        """Show keys, as `keys` draws them; a click on one is as good as the key."""
        self.show([keys(shown, width)])
        begin, places = 0, []
        for key in _fitting(shown, width):
            end = begin + _size(key)
            places.append((range(begin, end), key.action))
            begin = end + len(GAP)
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
        lines = [line for each in text.splitlines() for line in wrapped(safe(each, 1000), width - 1)][:most]
        self.styles.display = "block" if lines else "none"
        self.styles.height = max(1, len(lines))
        shown = [row((f" {line}", "warn")) for line in lines]
        self.show(shown)


def keys(shown: Sequence[Key], width: int) -> Row:
    """Draw keys with their labels as far as they go, in the order of what matters; the last is never left out."""
    spans = [piece for key in _fitting(shown, width) for piece in (Span(GAP), *_key(key))]
    return fitted(spans[1:], width) if spans else ()


def _fitting(shown: Sequence[Key], width: int) -> list[Key]:
    """Those that have room."""
    left = width - (_size(shown[-1]) if shown else 0)
    fitting: list[Key] = []
    for key in shown[:-1]:
        left -= _size(key) + len(GAP)
        if left < 0:
            break
        fitting.append(key)
    return [*fitting, *shown[-1:]]


def _size(key: Key) -> int:
    return sum(width_of(span.text) for span in _key(key))


def _key(key: Key) -> list[Span]:
    return [Span(key.key, "dim" if key.off else "title"), Span(" " + key.label, "dim" if key.off else "")]
