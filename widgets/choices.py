"""A list of things of which one is chosen, on Textual's `OptionList`: each is a few rows, told from others by a key.

The choice stays on what it is about, wherever that goes when the list changes; where it is gone the place stays chosen.
A sign before the chosen one says it without colour.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from interlock.engine.record.words import drawn
from interlock.widgets.text import CURSOR, LONGEST, Row

COLOURS = {
    "dim": "$foreground-muted", "bold": "bold", "title": "bold $accent", "ok": "$success", "warn": "bold $warning",
    "error": "bold $error", "hit": "bold $warning",
}  # fmt: skip
"""The styles of rows that lists have, in the theme's colours."""


class Choices(OptionList, inherit_bindings=False):
    """Its keys are those of the screen it is on, which calls `move`."""

    DEFAULT_CSS = """
    Choices {
        background: $background; padding: 0; border: round $foreground 30%; border-title-color: $text;
        scrollbar-size: 0 0; text-wrap: nowrap;
        &:focus { border: round $accent; background-tint: $background 0%; }
        & > .option-list--option, & > .option-list--option-hover { padding: 0; background: transparent; }
        & > .option-list--option-highlighted, &:focus > .option-list--option-highlighted {
            background: $accent 30%; color: $foreground; text-style: none;
        }
        & > .option-list--option-disabled { color: $text-muted; }
        &:ansi > .option-list--option-highlighted, &:ansi:focus > .option-list--option-highlighted {
            background: ansi_default; color: ansi_default; text-style: reverse;
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._blocks: Mapping[Hashable, Sequence[Row]] = {}
        self._keys: Sequence[Hashable] = ()
        self._heads: Sequence[Row] = ()
        self._pointed: int | None = None
        """Which has the sign before it."""
        self._said = [title, ""]
        self.border_title = Content(title)

    @property
    def inner_width(self) -> int:
        """Cells that a row may have, beside the sign."""
        return max(0, self.scrollable_content_region.width - 1)

    @property
    def place(self) -> int:
        """Which one is chosen, counted from 0; the first where none is."""
        return max(0, (self.highlighted or 0) - bool(self._heads))

    @property
    def chosen(self) -> Hashable:
        """The key of what is chosen; None where there is nothing."""
        return self._keys[self.place] if self._keys else None

    def entitle(self, above: str, below: str = "") -> None:
        """Write on the border; what stands there already costs nothing."""
        if [above, below] != self._said:
            self._said = [above, below]
            self.border_title, self.border_subtitle = Content(above), Content(below)

    def show(
        self, listed: Iterable[tuple[Hashable, Sequence[Row]]],
        *, heads: Sequence[Row] = (), none: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """List these by their keys, under their `heads`, or say why there are `none`."""
        before, chosen, place = self._blocks, self.chosen, self.place
        self._blocks = blocks = dict(listed)
        same = self._keys and self._keys == list(blocks) and self._heads == heads
        if same:
            for number, key in enumerate(self._keys):
                if before[key] != blocks[key]:
                    self._draw(number)
            return
        self._keys, self._pointed, self._heads = list(blocks), None, heads if blocks else ()
        silent = [] if blocks else [Content("\n".join(f" {drawn(line)}" for line in none))]
        above = [_content(heads)] if self._heads else silent
        options = [self._content(number) for number in range(len(self._keys))]
        self.set_options([*(Option(each, disabled=True) for each in above), *map(Option, options)])
        if blocks:
            self.choose(chosen if chosen in blocks else self._keys[min(place, len(blocks) - 1)])

    def choose(self, key: Hashable) -> None:
        """Choose what has this key."""
        self.highlighted = self._keys.index(key) + bool(self._heads)

    def move(self, where: str) -> None:
        """Choose the next one down or up, one a page away, the first or the last."""
        rows = max(map(len, self._blocks.values()), default=1)
        page, last = max(1, self.scrollable_content_region.height // rows - 1), len(self._keys) - 1
        steps = {"down": 1, "up": -1, "page_down": page, "page_up": -page, "first": -last, "last": last}
        if self._keys:
            self.choose(self._keys[max(0, min(last, self.place + steps[where]))])

    def watch_highlighted(self, highlighted: int | None) -> None:
        super().watch_highlighted(highlighted)
        if not self._keys or highlighted is None:
            return
        before, self._pointed = self._pointed, self.place
        for place in {before, self._pointed} - {None}:
            self._draw(place or 0)
        if not self.place:
            self.scroll_to(0, 0, animate=False)

    def _draw(self, place: int) -> None:
        self.replace_option_prompt_at_index(place + bool(self._heads), self._content(place))

    def _content(self, place: int) -> Content:
        return _content(self._blocks[self._keys[place]], CURSOR if place == self._pointed else " ")


def _content(rows: Sequence[Row], sign: str = " ") -> Content:
    """Rows as Textual draws them, the sign before the first."""
    lines = []
    for number, row in enumerate(rows):
        spans = ((drawn(text, LONGEST), COLOURS.get(style, "")) for text, style in row)
        lines.append(
            Content.assemble(" " if number else sign, *((text, style) if style else text for text, style in spans))
        )
    return Content("\n").join(lines)
