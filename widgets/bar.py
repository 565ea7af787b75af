"""One line without a border: the header at the top of a screen, and its keys at the bottom."""

from collections.abc import Sequence
from typing import NamedTuple

from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, fitted, width_of

GAP = "  "


class Key(NamedTuple):
    """A key of the footer, and what it does now; `off` is why it does nothing."""

    key: str
    label: str
    off: str = ""


class Bar(Pane, can_focus=False):
    """A line of the screen."""

    DEFAULT_CSS = """
    Bar { border: none; height: 1; background: $surface; }
    """


def keys(shown: Sequence[Key], width: int) -> Row:
    """Keys with their labels as far as they go, those that matter most first; the last of them is never left out."""
    if not shown:
        return ()
    last = _key(shown[-1])
    left = width - sum(width_of(span.text) for span in last)
    spans: list[Span] = []
    for key in shown[:-1]:
        found = [*_key(key), Span(GAP)]
        size = sum(width_of(span.text) for span in found)
        if size > left:
            break
        spans += found
        left -= size
    return fitted([*spans, *last], width)


def _key(key: Key) -> list[Span]:
    return [Span(key.key, "dim" if key.off else "title"), Span(" " + key.label, "dim" if key.off else "")]
