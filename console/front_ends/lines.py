"""Lines on stderr that are not one for each event: the last one, written over in place, and counts of what repeats."""

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from interlock.console.text.event_text import describe
from interlock.console.text.progress_text import bar
from interlock.engine.record.events import (
    AnyEvent,
    EnsemblePassCompleted,
    Mitigated,
    PassFailed,
    PressurePassed,
    RunClosed,
)
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import pass_of, safe

IN_PLACE_SECONDS = 1.0
LINE_SECONDS = 10.0
OVER = "end of memory pressure"


class InPlace:
    """The last line of a terminal, written over once a second."""

    def __init__(self) -> None:
        self._drawn, self._width = 0.0, 0

    def due(self, now: float) -> bool:
        """Tell whether it is time to draw again."""
        return now - self._drawn >= IN_PLACE_SECONDS

    def draw(self, snapshot: Snapshot) -> None:
        """Write how far the run is."""
        self._drawn = time.monotonic()
        text = safe(bar(snapshot, _columns() - 1))
        _overwrite(text.ljust(self._width))
        self._width = len(text)

    def clear(self) -> None:
        """Make room for a line."""
        if self._width:
            _overwrite(" " * self._width + "\r")
        self._width, self._drawn = 0, 0.0


def _columns() -> int:
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return 80


def _overwrite(text: str) -> None:
    with suppress(OSError, ValueError):
        print(f"\r{text}", end="", file=sys.stderr, flush=True)


class Folded:
    """Steps of the ladder that are counted instead of told: all but the first of a pass, a rung and a device."""

    def __init__(self) -> None:
        self._more: dict[tuple[int, str, str], int] = {}
        self._told = time.monotonic()

    def takes(self, event: AnyEvent) -> bool:
        """Whether an event is one more of its like, and counted."""
        if isinstance(event, PressurePassed):
            like = event.model_pass, OVER, event.device
        elif isinstance(event, Mitigated) and event.batch_index is not None:
            like = event.model_pass, event.rung, event.device
        else:
            return False
        first = like not in self._more
        self._more[like] = 0 if first else self._more[like] + 1
        return not first

    def due(self, now: float) -> list[str]:
        """The counts, every ten seconds."""
        return self._counts(self._more) if now - self._told >= LINE_SECONDS else []

    def ended_by(self, event: AnyEvent) -> list[str]:
        """The counts of a pass that an event ends; the next one of its like is told again."""
        if isinstance(event, RunClosed):
            ended = list(self._more)
        elif isinstance(event, EnsemblePassCompleted | PassFailed):
            ended = [like for like in self._more if like[0] == event.model_pass]
        else:
            return []
        counts = self._counts(ended)
        for like in ended:
            del self._more[like]
        return counts

    def _counts(self, likes: Iterable[tuple[int, str, str]]) -> list[str]:
        self._told = time.monotonic()
        counts = []
        for like in likes:
            if more := self._more[like]:
                self._more[like] = 0
                model_pass, what, device = like
                mark = "" if what == OVER else "warning: "
                counts.append(f"{mark}{what} in {pass_of(model_pass)} on {device}: ... and {more:,} like it")
        return counts


def is_error(event: AnyEvent) -> bool:
    """Whether it is told although progress is not: what went wrong for good, and an end that is no success."""
    return describe(event).severity == "error" or (isinstance(event, RunClosed) and event.exit_code != 0)
