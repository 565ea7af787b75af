"""What lists show of journal entries: the lines of the events pane, and mitigations by what was done, why and where.

Batches and samples are no lines, many of one kind are a count, and only the latest lines are kept. Pure but for `Feed`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from interlock.console.text.event_text import describe
from interlock.engine.record.events import Entry, NodeRefused, ResidueFound, Warned
from interlock.engine.record.words import safe, several
from interlock.widgets.panes.events import Line

MOST_LINES = 4096
ONE_BY_ONE = 20
"""So many of one kind in a row are told one by one; the rest of them is a count."""


class HeldLine(NamedTuple):
    """A line and what it tells of; of a count, the first that was counted."""

    line: Line
    entry: Entry


class Feed:
    """The latest lines of a run."""

    def __init__(self, *, verbose: bool = False) -> None:
        """`verbose` is told, too, what was as it should be."""
        self._verbose = verbose
        self._held: deque[HeldLine] = deque(maxlen=MOST_LINES)
        self._lines: tuple[Line, ...] = ()
        self._latest = -1
        self._row = ""
        self._in_row = 0

    def take(self, entries: Iterable[Entry]) -> tuple[Line, ...]:
        """Take in what came, in its order and with nothing left out that would be a line; return all lines, the same
        tuple where nothing became a line."""
        changed = False
        for place, entry in enumerate(entries):
            changed = (place == 0 and self._gap(entry)) or changed
            self._latest = entry.seq
            changed = self._append(entry) or changed
        if changed:
            self._lines = tuple(held.line for held in self._held)
        return self._lines

    def held(self) -> tuple[Line, ...]:
        """Get all lines there are now."""
        return self._lines

    def entry(self, seq: int) -> Entry | None:
        """Find the entry of a line; None where it is gone, or is a count of others."""
        return next((held.entry for held in self._held if held.line.seq == held.entry.seq == seq), None)

    @property
    def warned(self) -> str:
        """The latest of what is counted as a warning; empty where it is no line any more."""
        kinds = Warned | ResidueFound | NodeRefused
        return next((held.line.text for held in reversed(self._held) if isinstance(held.entry.body, kinds)), "")

    def _gap(self, entry: Entry) -> bool:
        """Say that entries are missing before this one."""
        gone = entry.seq - self._latest - 1 if self._latest >= 0 else 0
        if gone <= 0:
            return False
        self._row = ""
        text = f"{several(gone, 'event')} skipped, too fast to show (the journal has them all)"
        self._held.append(HeldLine(Line(entry.seq - 1, entry.at, "notice", "missed", text), entry))
        return True

    def _append(self, entry: Entry) -> bool:
        severity, word, text, more, *_, usual = describe(entry.body, entry.device_kind)
        if severity is None or (usual and not self._verbose):
            return False
        self._in_row = self._in_row + 1 if more and more == self._row else 1
        self._row = more
        if self._in_row > ONE_BY_ONE:
            text = f"{self._in_row - ONE_BY_ONE:,} more {more} (the journal has them all)"
        text = safe(text)
        if self._in_row > ONE_BY_ONE + 1:
            last = self._held.pop()
            self._held.append(HeldLine(replace(last.line, text=text), last.entry))
        else:
            self._held.append(HeldLine(Line(entry.seq, entry.at, severity, word, text), entry))
        return True
