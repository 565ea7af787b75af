"""The tree of a JSON document, or of two that are compared, on Textual's `Tree`.

A branch gets its children when it is opened first, so a document costs what is looked at of it. A difference has a sign
before it (`-` only in the first, `+` only in the second, `~` differs), a branch with differences inside says how many;
colour only repeats that.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import on
from textual.content import Content
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from interlock.engine.record.words import drawn, several
from interlock.widgets.nodes import No, Node, Steps, children, human, title, written
from interlock.widgets.text import CURSOR, FOLDED, UNFOLDED, Row, Span, fit, fitted, plain, width_of

MARKS = {"": "", "-": "error", "+": "ok", "~": "warn"}
STYLES = ("dim", "bold", "title", "ok", "warn", "error")
"""The chosen line, a closed branch, an open one."""
INDENT = 2
DEEPEST = 100
"""Levels below which nothing is opened: a summary has ten."""


def line(
    node: Node, width: int, *, name: str = "$", chosen: bool = False, opened: bool = False,
    differing: Mapping[Steps, int] | None = None,
) -> Row:  # fmt: skip
    """Draw a node in `width` cells; `differing` counts the differences inside branches."""
    fold = " " if not node.branch else UNFOLDED if opened else FOLDED
    mark = "" if differing is None else f"{node.mark or ' '} "
    head = [Span(f"{CURSOR if chosen else ' '}{fold} {mark}", MARKS[node.mark]), *_label(node, name)]
    room = width - sum(width_of(span.text) for span in head)
    count = 0 if node.there in (No.OTHER, No.VALUE) else (differing or {}).get(node.steps, 0)
    inside = [Span(f"  {several(count, 'difference')}", "warn")] * bool(count)
    return fitted([*head, *_value(node, room), *inside], width)


def _label(node: Node, name: str) -> list[Span]:
    if not node.steps:
        return [Span(name, "title")]
    if isinstance(node.steps[-1], str):
        return [Span(drawn(node.label, 80), MARKS[node.mark])]
    called = title(node.value)
    return [Span(node.label, "dim"), *([Span(f" {drawn(called, 80)}", "bold")] if called else [])]


def _value(node: Node, room: int) -> list[Span]:
    if node.mark == "~":
        half = max(6, (room - len(":  -> ")) // 2)
        one, other = written(node.here), written(node.there)
        one = fit(one, half) if width_of(one) > max(half, room - len(":  -> ") - width_of(other)) else one
        return [Span(f": {one} -> {other}", "warn")]
    if isinstance(node.value, dict | list):
        return [Span(f" {written(node.value)}", "dim")]
    extra = human(node.steps, node.value)
    style = MARKS[node.mark] or ("dim" if node.value is None else "")
    return [Span(f": {written(node.value)}", style), *([Span(f"  {extra}", "dim")] if extra else [])]


class DocumentTree(Tree[Node], inherit_bindings=False):
    """A document on the screen; `differing` counts the differences inside its branches, where two are compared."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"tree--{name}" for name in STYLES}
    DEFAULT_CSS = """
    DocumentTree {
        background: $background; background-tint: $background 0%; scrollbar-size: 0 0;
        border: round $foreground 30%; border-subtitle-color: $text;
        &:focus { border: round $accent; background-tint: $background 0%; }
        & > .tree--highlight-line { background: $background; }
        & > .tree--cursor, &:focus > .tree--cursor { background: $accent 30%; color: $foreground; text-style: none; }
        &:ansi > .tree--cursor, &:ansi:focus > .tree--cursor {
            background: ansi_default; color: ansi_default; text-style: reverse;
        }
        & > .tree--dim { color: $text-muted; }
        & > .tree--bold { text-style: bold; }
        & > .tree--title { color: $accent; text-style: bold; }
        & > .tree--ok { color: $success; }
        & > .tree--warn { color: $warning; text-style: bold; }
        & > .tree--error { color: $error; text-style: bold; }
    }
    """

    def __init__(
        self, node: Node, name: str, opened: Sequence[Steps] = (),
        *, differing: Mapping[Steps, int] | None = None, id: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__("", id=id)
        self._below = ""
        self.show_guides, self.guide_depth = False, INDENT
        self.take(node, name, opened, differing)

    def take(
        self, node: Node, name: str, opened: Sequence[Steps] = (), differing: Mapping[Steps, int] | None = None
    ) -> None:
        """Show this document, its first level and the branches `opened`."""
        self.clear()
        self.root.data, self.called, self.differing = node, name, differing
        for steps in ((), *opened):
            if found := self.unfolded(steps):
                self.unfold(found)
        if self.is_attached:
            self.cursor_line = 0

    def on_mount(self) -> None:
        self.cursor_line = 0

    @property
    def chosen(self) -> TreeNode[Node]:
        return self.cursor_node or self.root

    @property
    def node(self) -> Node:
        """What is chosen of the document."""
        return _of(self.chosen)

    def process_label(self, label: str | Text) -> Text:
        """Take it as it is: a line is drawn from its node."""
        return label if isinstance(label, Text) else Text(label)

    def get_label_width(self, node: TreeNode[Node]) -> int:
        """Count nothing: a line has the width of the tree."""
        return 0

    def render_label(self, node: TreeNode[Node], base_style: Style, style: Style) -> Text:
        chosen = node is self.cursor_node
        drawn = line(
            _of(node), max(0, self.scrollable_content_region.width - INDENT * len(_of(node).steps)), name=self.called,
            chosen=chosen, opened=node.is_expanded, differing=self.differing,
        )  # fmt: skip
        text = Text(style=style if chosen else base_style)
        for (_, name), safely in zip(drawn, plain((span,) for span in drawn), strict=True):
            # Blended with what is behind it: a partial style would lose the alpha of its colour.
            plainly = chosen or not name
            text.append(safely, Style.null() if plainly else self.get_component_rich_style(f"tree--{name}"))
        if chosen:
            text.rstrip()
        text.apply_meta({"toggle": True}, 0, 2)
        return text

    def entitle(self, below: str) -> None:
        """Write on the lower border."""
        if below != self._below:
            self._below, self.border_subtitle = below, Content(below)  # what was searched for is no markup

    def unfold(self, node: TreeNode[Node]) -> None:
        """Open a branch, with a line for each thing in it."""
        for child in () if node.children else children(_of(node)):
            node.add("", child, allow_expand=child.branch and len(child.steps) < DEEPEST)
        if node.allow_expand and not node.is_expanded:
            node.expand()

    @on(Tree.NodeExpanded)
    def _expanded(self, event: Tree.NodeExpanded[Node]) -> None:
        self.unfold(event.node)

    def fold(self) -> None:
        """Open the chosen branch, or close it."""
        if self.chosen.is_expanded:
            self.chosen.collapse()
        else:
            self.unfold(self.chosen)

    def inward(self) -> None:
        """Open the chosen branch; go to its first child where it is open."""
        if self.chosen.is_expanded:
            self.move(1)
        else:
            self.fold()

    def outward(self) -> None:
        """Close the chosen branch; go to the one above where there is nothing to close."""
        if self.chosen.is_expanded and self.chosen.parent:
            self.chosen.collapse()
        elif self.chosen.parent:
            self._go_to(self.chosen.parent)

    def move(self, lines: int) -> None:
        """Choose a line further down, or up; the ends hold."""
        self.cursor_line = max(0, min(self.last_line, self.cursor_line + lines))
        self.scroll_to_line(self.cursor_line, animate=False)

    def reveal(self, steps: Steps) -> bool:
        """Open what hides a place and choose it; False where there is no such place."""
        if found := self.unfolded(steps):
            self._go_to(found)
        return found is not None

    def unfolded(self, steps: Steps) -> TreeNode[Node] | None:
        """Open what hides a place, and find its line; of a place too deep the deepest line above it."""
        found: TreeNode[Node] | None = self.root
        for depth in range(1, min(len(steps), DEEPEST) + 1):
            if found:
                self.unfold(found)
                found = next((child for child in found.children if _of(child).steps == steps[:depth]), None)
        return found

    def _go_to(self, node: TreeNode[Node]) -> None:
        _ = self.last_line  # counts the lines anew, where some were added
        self.move_cursor(node)


def _of(node: TreeNode[Node]) -> Node:
    assert node.data
    return node.data
