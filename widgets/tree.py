"""The tree of a JSON document, or of two that are compared: draws the lines of an outline that are in sight.

`rows` is pure. A difference has a sign before it (`-` only in the first, `+` only in the second, `~` differs), a branch
with differences inside says how many; colour only repeats that.
"""

from collections.abc import Mapping
from typing import ClassVar

from textual import events
from textual.message import Message

from interlock.engine.record.words import safe, several
from interlock.widgets.nodes import No, Node, Steps, human, title, written
from interlock.widgets.outline import Outline
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, ascii_only, fit, fitted, width_of

MARKS = {"": "", "-": "error", "+": "ok", "~": "warn"}
SIGNS = (">", "▶", "▼")
PLAIN_SIGNS = ("*", ">", "v")
"""The chosen line, a closed branch, an open one."""


def rows(
    outline: Outline, top: int, width: int, height: int,
    *, name: str = "$", differing: Mapping[Steps, int] | None = None, ascii: bool = False,
) -> list[Row]:  # fmt: skip
    """Draw the lines from `top` on, each `width` cells; `differing` counts the differences inside branches."""
    shown = []
    for line in range(top, min(top + height, len(outline.nodes))):
        node, chosen = outline.nodes[line], line == outline.chosen
        cursor, closed, opened = PLAIN_SIGNS if ascii else SIGNS
        fold = opened if node.steps in outline.opened else closed if node.branch else " "
        mark = "" if differing is None else f"{node.mark or ' '} "
        indent = "  " * max(0, len(node.steps) - 1)
        lead = Span(f"{cursor if chosen else ' '}{mark}{indent}{fold} ", MARKS[node.mark])
        head = [lead, *_label(node, name)]
        room = width - sum(width_of(span.text) for span in head)
        spans = [*head, *_value(node, room), *_inside(node, differing)]
        if chosen:
            spans = [Span("".join(span.text for span in spans), "chosen")]
        shown.append(fitted(spans, width))
    return ascii_only(shown) if ascii else shown


def window(top: int, chosen: int, count: int, height: int) -> int:
    """Choose the first line in sight, moved no further than the chosen one needs."""
    return max(0, min(max(min(top, chosen), chosen - height + 1), count - height))


def _label(node: Node, name: str) -> list[Span]:
    if not node.steps:
        return [Span(name, "title")]
    if isinstance(node.steps[-1], str):
        return [Span(safe(node.label, 80), MARKS[node.mark])]
    called = title(node.value)
    return [Span(node.label, "dim"), *([Span(f" {safe(called, 80)}", "bold")] if called else [])]


def _value(node: Node, room: int) -> list[Span]:
    if node.mark == "~":
        one, other = _side_by_side(written(node.here), written(node.there), room - len(":  -> "))
        return [Span(f": {one} -> {other}", "warn")]
    if isinstance(node.value, dict | list):
        return [Span(f" {written(node.value)}", "dim")]
    extra = human(node.steps, node.value)
    style = MARKS[node.mark] or ("dim" if node.value is None else "")
    return [Span(f": {written(node.value)}", style), *([Span(f"  {extra}", "dim")] if extra else [])]


def _side_by_side(one: str, other: str, room: int) -> tuple[str, str]:
    """Two texts in so many cells together; one that is short leaves its room to the other."""
    half = max(6, room // 2)
    first = max(half, room - width_of(other))
    one = fit(one, first) if width_of(one) > first else one
    rest = max(half, room - width_of(one))
    return one, fit(other, rest) if width_of(other) > rest else other


def _inside(node: Node, differing: Mapping[Steps, int] | None) -> list[Span]:
    count = (differing or {}).get(node.steps, 0)
    if not count or node.there in (No.OTHER, No.VALUE):
        return []
    return [Span(f"  {several(count, 'difference')}", "warn")]


class TreePane(Pane, inherit_bindings=False):
    """An outline on the screen; it keeps the chosen line in sight."""

    class Chosen(Message):
        """Another line was chosen, or it was folded."""

    DEFAULT_CSS = "TreePane { overflow: hidden; }"
    BINDINGS: ClassVar = []

    def __init__(self, outline: Outline, name: str, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.outline = outline
        self.differing: Mapping[Steps, int] | None = None
        self.called = name
        self._ascii = ascii
        self._top = 0

    def draw(self) -> None:
        outline, width, height, name = self.outline, self.inner_width, self.inner_height, self.called
        self._top = window(self._top, outline.chosen, len(outline.nodes), height)
        self.show(rows(outline, self._top, width, height, name=name, differing=self.differing, ascii=self._ascii))

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    def on_click(self, event: events.Click) -> None:
        """Choose a line; fold it where it is chosen."""
        place = event.get_content_offset(self)
        line = self._top + place.y if place else len(self.outline.nodes)
        if line >= len(self.outline.nodes):
            return
        if line == self.outline.chosen:
            self.outline.fold()
        self.outline.chosen = line
        self._changed()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scrolled(event, 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scrolled(event, -3)

    def _scrolled(self, event: events.MouseEvent, lines: int) -> None:
        event.stop()
        event.prevent_default()
        self.outline.move(lines)
        self._changed()

    def _changed(self) -> None:
        self.draw()
        self.post_message(self.Chosen())
