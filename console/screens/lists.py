"""Lists laid over the main screen: the kinds of events to show or hide, and the mitigations by their causes."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, ScreenResultType

from interlock.console.text.mitigation_table import Steps, tabled
from interlock.engine.record.words import several
from interlock.widgets import table
from interlock.widgets.events import Kind
from interlock.widgets.pane import Pane
from interlock.widgets.text import CURSOR, Row, Span, ascii_only, fit, fitted, row, wrapped

STEADY = 1.0
"""Seconds after which a list that is open is drawn anew."""


class Listing(ModalScreen[ScreenResultType]):
    """Lines under a heading, of which one is chosen; a subclass says which there are."""

    DEFAULT_CSS = """
    Listing { align: center middle; background: $background 60%; }
    Listing > Pane { width: 116; max-width: 100%; max-height: 80%; min-height: 5; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back"),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
    ]
    TITLE, SUBTITLE, NONE = "", "", ""

    def __init__(self, *, ascii: bool) -> None:
        super().__init__()
        self._ascii = ascii
        self._at = self._heads = 0
        self._keys: Sequence[Hashable] = ()
        """What the lines that were drawn are about."""
        self._chosen: Hashable = None
        self._pane = Pane(self.TITLE)

    def compose(self) -> ComposeResult:
        self._pane.border_subtitle = self.SUBTITLE
        yield self._pane

    def on_mount(self) -> None:
        self._pane.focus()
        self.set_interval(STEADY, self.draw)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw)

    def content(self, width: int) -> tuple[list[Row], Mapping[Hashable, Row]]:
        """Draw what stands above the lines, and the lines by what they are about, each `width` cells."""
        raise NotImplementedError

    def draw(self) -> None:
        width = max(1, self._pane.inner_width - 1)
        heads, lines = self.content(width)
        self._heads, self._keys = len(heads), list(lines)
        self._choose(self._keys.index(self._chosen) if self._chosen in lines else self._at)
        shown: list[Row] = [(Span(" "), *each) for each in heads]
        for line, each in enumerate(lines.values()):
            chosen = line == self._at
            text = "".join(span.text for span in each)
            shown.append((Span(CURSOR + text, "chosen"),) if chosen else (Span(" "), *each))
        if not lines:
            shown = [row((line, "dim")) for line in wrapped(self.NONE, width)]
        self._pane.styles.height = len(shown) + 2
        self._pane.show(ascii_only(shown) if self._ascii else shown)
        self._pane.scroll_to(0, max(0, self._heads + self._at + 2 - self._pane.inner_height), animate=False)

    def _choose(self, place: int) -> None:
        """Choose a line of those that were drawn; the cursor stays on what it is about, wherever that goes."""
        self._at = max(0, min(place, len(self._keys) - 1))
        self._chosen = self._keys[self._at] if self._keys else None

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self._pane)
        if place:
            self._choose(place.y + self._pane.scroll_offset.y - self._heads)
            self.draw()

    def action_move(self, lines: int) -> None:
        self._choose(self._at + lines)
        self.draw()

    def action_leave(self) -> None:
        self.dismiss(None)


class Kinds(Listing[None]):
    """Kinds of events with their counts; `toggle` shows or hides one, at once."""

    TITLE, SUBTITLE = "Kinds of events", "space toggles  a all  esc closes"
    NONE = "no events yet"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "Toggle"),
        Binding("a", "all", "All"),
    ]
    DEFAULT_CSS = """
    Kinds > Pane { width: 44; }
    """

    def __init__(
        self, kinds: Callable[[], Sequence[Kind]], toggle: Callable[[Sequence[str]], object], *, ascii: bool
    ) -> None:
        super().__init__(ascii=ascii)
        self._kinds = kinds
        self._toggle = toggle

    def content(self, width: int) -> tuple[list[Row], Mapping[Hashable, Row]]:
        return [], {
            each.word: fitted([Span(f"[{'x' if each.shown else ' '}] {fit(each.word, 14)}{each.count:>7,}")], width)
            for each in self._kinds()
        }

    def action_switch(self) -> None:
        if self._keys:
            self._toggle([str(self._chosen)])
            self.draw()

    def action_all(self) -> None:
        """Show all that are hidden; hide all where none is."""
        kinds = self._kinds()
        hidden = [each.word for each in kinds if not each.shown]
        self._toggle(hidden or [each.word for each in kinds])
        self.draw()


class Mitigations(Listing[Steps]):
    """The mitigations of the run, one line for each step, device and cause; gives the one whose events are wanted."""

    TITLE, SUBTITLE = "Mitigations", "enter shows its events  esc closes"
    NONE = "no mitigations: memory and devices have sufficed so far"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "Events")]

    def __init__(self, groups: Callable[[], list[Steps]], *, ascii: bool) -> None:
        super().__init__(ascii=ascii)
        self._groups = groups

    def content(self, width: int) -> tuple[list[Row], Mapping[Hashable, Row]]:
        if not (groups := self._groups()):
            return [], {}
        times, kinds = sum(each.times for each in groups), several(len(groups), "kind")
        names, *lines = table.rows(*tabled(groups), width)[: len(groups) + 1]
        return [row((f"{several(times, 'mitigation')} of {kinds}", "bold")), names], {
            _key(each): line for each, line in zip(groups, lines, strict=True)
        }

    def action_choose(self) -> None:
        self.dismiss(next((each for each in self._groups() if _key(each) == self._chosen), None))


def _key(steps: Steps) -> Hashable:
    """What tells these mitigations from others, however many they become."""
    return steps.rung, steps.device, steps.cause
