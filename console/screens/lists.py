"""Lists laid over a screen: the kinds of events to show or hide, the mitigations by their causes, and earlier runs."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, ScreenResultType

from interlock.console.text import runs_text
from interlock.console.text.event_lists import Steps, tabled
from interlock.engine.record.runs import Overview
from interlock.engine.record.words import several
from interlock.widgets.choices import Choices
from interlock.widgets.panes.events import Kind
from interlock.widgets.text import Row, Span, fit, fitted, row, table_rows

STEADY = 1.0
"""Seconds after which a list that is open is drawn anew."""


class Listing(ModalScreen[ScreenResultType]):
    """Lines of which one is chosen; a subclass says which there are."""

    DEFAULT_CSS = """
    Listing { align: center middle; background: $background 60%; }
    Listing > Choices { width: 116; max-width: 100%; max-height: 80%; min-height: 5; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back"),
        Binding("up,k", "move('up')", show=False),
        Binding("down,j", "move('down')", show=False),
    ]
    TITLE, SUBTITLE, NONE = "", "", ""

    def __init__(self) -> None:
        super().__init__()
        self._list = Choices()

    def compose(self) -> ComposeResult:
        yield self._list

    def on_mount(self) -> None:
        self._list.entitle(self.TITLE or "", self.SUBTITLE or "")
        self._list.focus()
        self.set_interval(STEADY, self.draw)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw)

    def content(self, width: int) -> tuple[list[Row], Mapping[Hashable, Row]]:
        """Draw what stands above the lines, and the lines by what they are about, each `width` cells."""
        raise NotImplementedError

    def draw(self) -> None:
        heads, lines = self.content(self._list.inner_width)
        self._list.show(((key, [each]) for key, each in lines.items()), heads=heads, none=[self.NONE])

    def action_move(self, where: str) -> None:
        self._list.move(where)

    def action_leave(self) -> None:
        self.dismiss(None)


class Kinds(Listing[None]):
    """Kinds of events with their counts; `toggle` shows or hides one, at once."""

    TITLE, SUBTITLE = "Kinds of events", "space toggles  a all  esc closes"
    NONE = "no events yet"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "Show or hide"),
        Binding("a", "all", "All"),
    ]
    DEFAULT_CSS = """
    Kinds > Choices { width: 44; }
    """

    def __init__(self, kinds: Callable[[], Sequence[Kind]], toggle: Callable[[Sequence[str]], object]) -> None:
        super().__init__()
        self._kinds = kinds
        self._toggle = toggle

    def content(self, width: int) -> tuple[list[Row], Mapping[Hashable, Row]]:
        return [], {
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


class Mitigations(Listing[Steps]):
    """The mitigations of the run, one line for each step, device and cause; gives the one whose events are wanted."""

    TITLE, SUBTITLE = "Mitigations", "enter shows its events  esc closes"
    NONE = "no mitigations: memory and devices have sufficed so far"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "Events")]

    def __init__(self, groups: Callable[[], list[Steps]]) -> None:
        super().__init__()
        self._groups = groups

    def content(self, width: int) -> tuple[list[Row], Mapping[Hashable, Row]]:
        if not (groups := self._groups()):
            return [], {}
        times, kinds = sum(each.times for each in groups), several(len(groups), "kind")
        names, *lines = table_rows(*tabled(groups), width)[: len(groups) + 1]
        return [row((f"{several(times, 'mitigation')} of {kinds}", "bold")), names], {
            _key(each): line for each, line in zip(groups, lines, strict=True)
        }

    def action_choose(self) -> None:
        self.dismiss(next((each for each in self._groups() if _key(each) == self._list.chosen), None))


class EarlierRuns(Listing[Path]):
    """The runs in a directory, to begin as one of them was begun."""

    TITLE, SUBTITLE = "Earlier runs", "enter fills the form as that run was begun  esc cancels"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", "Choose")]

    def __init__(self, runs: Sequence[Overview], out: str) -> None:
        super().__init__()
        self._runs = {run.path: run for run in runs}
        self.NONE = f"no runs in {out} yet: a run you start there is listed here"

    def content(self, width: int) -> tuple[list[Row], Mapping[Hashable, Row]]:
        lines: dict[Hashable, Row] = {}
        for path, run in self._runs.items():
            age = f"{runs_text.age(time.time() - run.began_at)} ago" if run.began_at else ""
            told = f"  {run.health.word}  {age}  {run.chunks}: {', '.join(run.models)}"
            lines[path] = fitted([Span(run.id, "bold"), Span(told)], width)
        return [], lines

    def action_choose(self) -> None:
        self.dismiss(self._runs[self._list.chosen].path if isinstance(self._list.chosen, Path) else None)


def _key(steps: Steps) -> Hashable:
    """What tells these mitigations from others, however many they become."""
    return steps.rung, steps.device, steps.cause
