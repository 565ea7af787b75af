"""Lists laid over a screen: the kinds of events to show or hide, the mitigations by their causes, and earlier runs."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from interlock.console.text import runs_text
from interlock.console.text.event_lists import Steps, tabled
from interlock.engine.record.runs import Overview
from interlock.engine.record.words import several
from interlock.widgets.choices import Choices
from interlock.widgets.panes.events import Kind
from interlock.widgets.text import Row, Span, fit, fitted, row, table_rows

STEADY = 1.0
"""Seconds after which a list that is open is drawn anew."""
Listed = tuple[Sequence[Row], Mapping[Hashable, Row]]
"""What stands above the lines, and each line by what it is about."""


class Listing(ModalScreen[Hashable]):
    """Lines of which one is chosen; gives what that is about, None where it was left."""

    DEFAULT_CSS = """
    Listing { align: center middle; background: $background 60%; }
    Listing > Choices { width: 116; max-width: 100%; max-height: 80%; min-height: 5; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
        Binding("enter", "choose", "Choose"),
        Binding("up,k", "move('up')", show=False),
        Binding("down,j", "move('down')", show=False),
    ]

    def __init__(self, title: str, keys: str, content: Callable[[int], Listed], none: str) -> None:
        """`content` draws the list in rows of so many cells, `none` is said of an empty one."""
        super().__init__()
        self._said, self._content, self._none = (title, keys), content, none
        self._list = Choices()

    def compose(self) -> ComposeResult:
        yield self._list

    def on_mount(self) -> None:
        self._list.entitle(*self._said)
        self._list.focus()
        self.set_interval(STEADY, self.draw)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        heads, lines = self._content(self._list.inner_width)
        self._list.show(((key, [each]) for key, each in lines.items()), heads=heads, none=[self._none])

    def action_move(self, where: str) -> None:
        self._list.move(where)

    def action_choose(self) -> None:
        self.dismiss(self._list.chosen)


class Kinds(Listing):
    """Kinds of events with their counts; `toggle` shows or hides one, at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "Show or hide"),
        Binding("a", "all", "All"),
    ]
    DEFAULT_CSS = """
    Kinds > Choices { width: 44; }
    """

    def __init__(self, kinds: Callable[[], Sequence[Kind]], toggle: Callable[[Sequence[str]], object]) -> None:
        self._kinds, self._toggle = kinds, toggle
        super().__init__("Kinds of events", "space toggles  a all  esc closes", self._drawn, "no events yet")

    def _drawn(self, width: int) -> Listed:
        return (), {
            each.word: fitted([Span(f"[{'x' if each.shown else ' '}] {fit(each.word, 14)}{each.count:>7,}")], width)
            for each in self._kinds()
        }

    def action_switch(self) -> None:
        if self._list.chosen:
            self._toggle([str(self._list.chosen)])
            self.draw()

    def action_all(self) -> None:
        """Show all that are hidden; hide all where none is."""
        kinds = self._kinds()
        hidden = [each.word for each in kinds if not each.shown]
        self._toggle(hidden or [each.word for each in kinds])
        self.draw()


def cause_of(steps: Steps) -> Hashable:
    """Tell these mitigations from others, however many they become."""
    return steps.rung, steps.device, steps.cause


def mitigations(groups: Sequence[Steps], width: int) -> Listed:
    """Draw the mitigations of a run, one line for each step, device and cause."""
    if not groups:
        return (), {}
    times, kinds = sum(each.times for each in groups), several(len(groups), "kind")
    names, *lines = table_rows(*tabled(groups), width)[: len(groups) + 1]
    heads = [row((f"{several(times, 'mitigation')} of {kinds}", "bold")), names]
    return heads, {cause_of(each): line for each, line in zip(groups, lines, strict=True)}


def earlier(runs: Sequence[Overview], width: int) -> Listed:
    """Draw runs, to begin as one of them was begun."""
    lines: dict[Hashable, Row] = {}
    for run in runs:
        age = f"{runs_text.age(time.time() - run.began_at)} ago" if run.began_at else ""
        told = f"  {run.health.word}  {age}  {run.chunks}: {', '.join(run.models)}"
        lines[run.path] = fitted([Span(run.id, "bold"), Span(told)], width)
    return (), lines
