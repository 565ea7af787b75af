"""A list laid over a screen: earlier runs."""

import time
from collections.abc import Hashable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from interlock.console.text import runs_text
from interlock.engine.standing.runs import Overview
from interlock.widgets.choices import Choices
from interlock.widgets.text import Row, Span, fitted

KEYS = "enter fills the form as that run was begun  esc cancels"


class Listing(ModalScreen[Hashable]):
    """Runs of which one is chosen; gives its directory, None where it was left."""

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

    def __init__(self, runs: Sequence[Overview], out: str) -> None:
        """They are the `runs` in the directory `out`."""
        super().__init__()
        self._runs, self._list = runs, Choices()
        self._none = f"no runs in {out} yet: a run you start there is listed here"

    def compose(self) -> ComposeResult:
        yield self._list

    def on_mount(self) -> None:
        self._list.entitle("Earlier runs", KEYS)
        self._list.focus()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        width, now = self._list.inner_width, time.time()
        listed: dict[Hashable, list[Row]] = {}
        for run in self._runs:
            age = f"{runs_text.age(now - run.began_at)} ago" if run.began_at else ""
            told = f"  {run.health.word}  {age}  {run.chunks}: {', '.join(run.models)}"
            listed[run.path] = [fitted([Span(run.id, "bold"), Span(told)], width)]
        self._list.show(listed.items(), none=[self._none])

    def action_move(self, where: str) -> None:
        self._list.move(where)

    def action_choose(self) -> None:
        self.dismiss(self._list.chosen)
