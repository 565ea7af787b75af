"""Conducts: each use of the engine from settings to result, on a page of its own.

Nothing here prints, draws or reads a command line: command line, screens, Python and scripts call the same functions,
and hear of the work through a `Listener`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.engine.record.events import Emit

EventSink = Callable[[str], "AbstractContextManager[Emit]"]
"""Gets the kind of the devices, and opens what takes their events."""


def no_events(device_kind: str) -> "AbstractContextManager[Emit]":
    """Take events, and tell nobody."""
    return nullcontext(lambda event: None)


@dataclass(frozen=True)
class Listener:
    """Who hears of work while it is done: its events, a line of text, and how much of how much is done under a name
    (a model's, a collection's)."""

    events: EventSink = no_events
    say: Callable[[str], object] = lambda text: None
    progress: Callable[[str, int, int], object] = lambda name, done, total: None
