"""A list laid over a screen: earlier runs."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from interlock.console.text import runs_text
from interlock.engine.record.runs import Overview
from interlock.widgets.choices import Choices
from interlock.widgets.text import Row, Span, fitted

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


def earlier(runs: Sequence[Overview], width: int) -> Listed:
    """Draw runs, to begin as one of them was begun."""
    lines: dict[Hashable, Row] = {}
    for run in runs:
        age = f"{runs_text.age(time.time() - run.began_at)} ago" if run.began_at else ""
        told = f"  {run.health.word}  {age}  {run.chunks}: {', '.join(run.models)}"
        lines[run.path] = fitted([Span(run.id, "bold"), Span(told)], width)
    return (), lines
