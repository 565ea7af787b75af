"""One entry of the journal in full, laid over the screen: every field of it, and its JSON for the clipboard.

Whatever the entry holds is shown as text on lines of its own, escaped and folded to the width; nothing is left out.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec
from textual.binding import Binding, BindingType

from interlock.console.actions import EVENT, bindings_of
from interlock.console.screens.base import DetailScreen
from interlock.engine.record.events import Entry
from interlock.engine.record.words import drawn, human_bytes, several
from interlock.widgets.formats import clock
from interlock.widgets.nodes import is_bytes
from interlock.widgets.text import Row, Span, fitted, wrapped

INDENT = 2
LEAST_VALUE = 8
"""Cells that a value has at least, however deep it stands."""


class EventScreen(DetailScreen):
    """Everything about one event."""

    ACTIONS = EVENT
    DEFAULT_CSS = "EventScreen > Pane { width: 100; height: 80%; }"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(EVENT), Binding("enter", "close", show=False)]

    def __init__(self, entry: Entry, keymap: Mapping[str, str] | None = None) -> None:
        super().__init__(f"event {entry.seq}", keymap or {})
        self.entry = entry

    def rows(self, width: int) -> list[Row]:
        return rows(self.entry, width)

    def action_copy(self) -> None:
        """Copy the entry as one line of JSON, without its checksum, through the terminal (OSC 52)."""
        self.app.copy_to_clipboard(msgspec.json.encode(self.entry).decode())
        self.notify("copied as JSON", markup=False)


def rows(entry: Entry, width: int) -> list[Row]:
    """Draw where the entry stands in its run, and below that every field of its event, in rows of at most `width`."""
    if width < 1:
        return []
    body = msgspec.to_builtins(entry.body)
    about = {
        "event": body.pop("event"),
        "seq": entry.seq,
        "time": f"{clock(entry.at, '%Y-%m-%d %H:%M:%S', otherwise=str(entry.at))} ({clock(entry.at, utc=True)} UTC)",
        "session": entry.session,
        "elapsed": f"{entry.elapsed:.3f} s into the session",
        "device_kind": entry.device_kind,
    }
    lines = [line for name, value in about.items() for line in _folded(0, name, str(value), width)]
    lines.append(())
    for name, value in body.items():
        lines += [line for field in _fields(0, name, value) for line in _folded(*field, width)]
    return lines


def _fields(depth: int, name: str, value: object) -> Iterator[tuple[int, str, str]]:
    """A field as its depth, name and text, and what is in it below; what is short and flat stays in one text."""
    named = isinstance(value, dict)
    inner = [*value.items()] if isinstance(value, dict) else [*enumerate(value, 1)] if isinstance(value, list) else None
    if inner is None:
        yield depth, name, _text(name, value)
    elif any(isinstance(each, Mapping | list) for _, each in inner) or (named and len(inner) > 2):
        yield depth, name, "" if named else several(len(inner), "item")
        for key, each in inner:
            yield from _fields(depth + 1, str(key), each)
    else:
        told = (f"{key} = {_text(str(key), each)}" if named else _text("", each) for key, each in inner)
        yield depth, name, ", ".join(told) or "none"


def _text(name: str, value: object) -> str:
    """A plain value; bytes also as people read them."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and is_bytes(name):
        return f"{value} ({human_bytes(value)})"
    return "(empty)" if value == "" else str(value)


def _folded(depth: int, name: str, text: str, width: int) -> Iterator[Row]:
    """`name: value` in rows of `width`; what the first has no room for stands below it, indented."""
    indent = min(depth * INDENT, max(0, width - LEAST_VALUE))
    name = drawn(name, sys.maxsize) + ":"
    first, *others = wrapped(f"{name} {drawn(text, sys.maxsize)}".rstrip(), max(1, width - indent - INDENT))
    yield fitted([Span(" " * indent + first[: len(name)], "title"), Span(first[len(name) :])], width)
    for other in others:
        yield fitted([Span(" " * (indent + INDENT) + other)], width)
