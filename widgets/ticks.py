"""A list of models to tick: the number of a ticked one is its place in the roster, the first of them is the primary.

`rows` is pure. Space ticks, `+` and `-` change the weight of the line under the cursor, and digits type it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from interlock.engine.record.words import human_bytes
from interlock.widgets.pane import Pane
from interlock.widgets.text import CURSOR, Row, Span, ascii_only, fit, fitted, kept

GAP = " "
HEADS = 1
"""Lines above the models."""
RANKS = (0, 1, 3, 4, 2, 5, 6)
"""Of the columns: the lowest stay where room is short."""
LEAST_LICENCE = 18
STEP = 0.1
LONGEST_WEIGHT = 6
"""Signs of a weight."""


@dataclass(frozen=True)
class ModelRow:
    """A model that can be ticked; what is None is not known (yet). `size` is bytes on this machine."""

    key: str
    dim: int | None = None
    tokens: int | None = None
    languages: str = ""
    licence: str = ""
    here: bool | None = None
    size: int | None = None


def rows(
    models: Sequence[ModelRow], ticked: Sequence[tuple[str, str]], cursor: int | None, width: int,
    *, ascii: bool = False,
) -> list[Row]:  # fmt: skip
    """Draw one row of `width` cells for each model; columns that matter less give way where room is short."""
    if width < 1 or not models:
        return []
    longest = max(len(each.key) for each in models)
    heads = [fit("    model", longest + 5), "weight", " dim", "tokens", fit("on disk", 9, right=True)]
    spoken = max(len("languages"), *(len(each.languages) for each in models))
    heads += [fit("languages", spoken), "licence"]
    lines = [_cells(each, ticked, cursor == line, longest, spoken) for line, each in enumerate(models)]
    columns = kept([*map(len, heads[:-1]), LEAST_LICENCE], RANKS, width, gap=len(GAP)) or [0]
    shown = [fitted([Span(GAP.join(heads[column] for column in columns), "title")], width)]
    for line, cells in enumerate(lines):
        spans = [Span(GAP * (column > 0) + cells[column].text, cells[column].style) for column in columns]
        shown.append(fitted([Span(span.text, "chosen") for span in spans] if line == cursor else spans, width))
    return ascii_only(shown) if ascii else shown


def _cells(each: ModelRow, ticked: Sequence[tuple[str, str]], chosen: bool, longest: int, spoken: int) -> list[Span]:
    """The columns of a model, each as wide for all of them."""
    weights = dict(ticked)
    picked = each.key in weights
    place = str([name for name, _ in ticked].index(each.key) + 1) if picked else " "
    size = human_bytes(each.size) if each.size is not None else "yes"
    here = {None: "...", True: size, False: "to fetch"}[each.here]
    return [
        Span(fit(f"{CURSOR if chosen else ' '}[{place}] {each.key}", longest + 5), "bold" if picked else ""),
        Span(fit(weights[each.key] or "_" if picked else "", LONGEST_WEIGHT, right=True), "accent"),
        Span(fit(str(each.dim or "?"), 4, right=True)),
        Span(fit(f"{each.tokens:,}" if each.tokens else "?", 6, right=True)),
        Span(fit(here, 9, right=True), "ok" if each.here else "dim"),
        Span(fit(each.languages, spoken), "dim"),
        Span(each.licence, "dim"),
    ]


class ModelList(Pane):
    """Models on the screen; it tells when what is ticked changed."""

    class Changed(Message):
        """Something else is ticked, or weighs something else."""

    class Moved(Message):
        """The cursor stands on another line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("space,enter", "tick", show=False),
        Binding("plus", "weigh(1)", show=False),
        Binding("minus", "weigh(-1)", show=False),
    ]
    DEFAULT_CSS = """
    ModelList { border: none; height: auto; &:focus { border: none; } }
    """

    def __init__(self, *, id: str, ascii: bool = False) -> None:
        super().__init__(id=id)
        self._ascii = ascii
        self._models: Sequence[ModelRow] = ()
        self.ticked: tuple[tuple[str, str], ...] = ()
        """Names in the order in which they were ticked, each with its weight as it was typed."""
        self._cursor = 0
        self._typing = False

    @property
    def chosen(self) -> ModelRow | None:
        """The model under the cursor; None where there is none."""
        return self._models[self._cursor] if self._models else None

    @property
    def line(self) -> int:
        """The line of the cursor."""
        return HEADS + self._cursor

    def take(self, models: Sequence[ModelRow]) -> None:
        """Show these models."""
        self._models = models
        self.styles.height = HEADS + len(models)
        self._draw()

    def tick(self, ticked: Sequence[tuple[str, str]]) -> None:
        """Tick these, and no others."""
        self.ticked = tuple(ticked)
        self._draw()

    def action_move(self, lines: int) -> None:
        """Move the cursor; who leaves the list by its end comes to the field beside it."""
        self._typing = False
        if not 0 <= self._cursor + lines < len(self._models):
            (self.screen.focus_next if lines > 0 else self.screen.focus_previous)()
            return
        self._cursor += lines
        self._draw()
        self.post_message(self.Moved())

    def action_tick(self) -> None:
        self._typing = False
        name, names = self._chosen, [each for each, _ in self.ticked]
        rest = tuple(each for each in self.ticked if each[0] != name)
        self._changed(rest if name in names else (*rest, (name, "1")))

    def action_weigh(self, steps: int) -> None:
        """Make the weight a step larger or smaller; it stays above 0."""
        self._typing = False
        try:
            weight = round(float(self._weight or 1) + steps * STEP, 3)
        except ValueError:
            return
        if weight > 0:
            self._weighs(f"{weight:g}")

    def on_key(self, event: events.Key) -> None:
        """Digits type a weight: the first one in place of what was there."""
        if event.character and event.character in "0123456789.":
            self._weighs(((self._weight if self._typing else "") + event.character)[:LONGEST_WEIGHT])
            self._typing = True
            event.stop()
        elif event.key == "backspace":
            self._weighs(self._weight[:-1])
            self._typing = True
            event.stop()

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place and HEADS <= place.y < HEADS + len(self._models):
            self._cursor = place.y - HEADS
            self.action_tick()

    def on_resize(self) -> None:
        self._draw()

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self._typing = False
        self._draw()

    @property
    def _chosen(self) -> str:
        return self._models[self._cursor].key

    @property
    def _weight(self) -> str:
        return dict(self.ticked).get(self._chosen, "")

    def _weighs(self, text: str) -> None:
        """Give the line under the cursor a weight, ticked or not."""
        names = [name for name, _ in self.ticked]
        others = self.ticked if self._chosen in names else (*self.ticked, (self._chosen, text))
        self._changed(tuple((name, text if name == self._chosen else weight) for name, weight in others))

    def _changed(self, ticked: tuple[tuple[str, str], ...]) -> None:
        self.ticked = ticked
        self._draw()
        self.post_message(self.Changed())

    def _draw(self) -> None:
        cursor = self._cursor if self.has_focus else None
        self.show(rows(self._models, self.ticked, cursor, self.inner_width, ascii=self._ascii))
