"""Journal entries as the lines that the events pane shows: each fact in plain text, many of one kind as a count.

Batches and samples are no lines; what is left is bounded, and how much of it is gone is known.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from interlock.console.text.event_text import text_of
from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.safe import safe
from interlock.widgets.events import Line, Severity

MOST = 4096
TOLD = 20
"""So many of one kind in a row are told one by one; the rest of them is a count."""


class Kind(NamedTuple):
    """How much an event matters, and what it is about in a word."""

    severity: Severity
    word: str


OTHER = Kind("note", "event")
"""Of an event that only a later version knows."""


class Held(NamedTuple):
    """A line and what it tells of; of a count, the first that was counted."""

    line: Line
    entry: Entry


class Feed:
    """The latest lines of a run."""

    def __init__(self, most: int = MOST) -> None:
        self.dropped = 0
        """Lines that gave way to later ones."""
        self.missed = 0
        """Entries that never came: the source had dropped them."""
        self._held: deque[Held] = deque(maxlen=most)
        self._lines: tuple[Line, ...] = ()
        self._latest = -1
        self._row: tuple[str, ...] = ()
        self._in_row = 0

    def take(self, entries: Iterable[Entry]) -> tuple[Line, ...]:
        """Take in what came, in its order; all lines there are now, the same tuple where nothing became a line."""
        changed = False
        for entry in entries:
            changed = self._gap(entry) or changed
            self._latest = entry.seq
            changed = self._tell(entry) or changed
        if changed:
            self._lines = tuple(held.line for held in self._held)
        return self._lines

    def held(self) -> tuple[Line, ...]:
        """All lines there are now."""
        return self._lines

    def entry(self, seq: int) -> Entry | None:
        """What a line tells of; None where it is gone, or tells of what is missing."""
        return next((held.entry for held in self._held if held.line.seq == held.entry.seq == seq), None)

    def _gap(self, entry: Entry) -> bool:
        """Say that entries are missing before this one."""
        gone = entry.seq - self._latest - 1 if self._latest >= 0 else 0
        if gone <= 0:
            return False
        self.missed += gone
        self._row = ()
        text = f"{gone} events came too fast to be shown; the journal has them all"
        self._add(Line(entry.seq - 1, entry.at, entry.elapsed, "notice", "missed", text), entry)
        return True

    def _tell(self, entry: Entry) -> bool:
        kind = kind_of(entry.body)
        if kind is None:
            return False
        row = _row_of(entry.body)
        self._in_row = self._in_row + 1 if row and row == self._row else 1
        self._row = row
        if self._in_row > TOLD + 1:
            last = self._held.pop()
            self._held.append(Held(replace(last.line, text=_count(entry.body, self._in_row - TOLD)), last.entry))
            return True
        timed = ev.timed(entry.device_kind)
        told = text_of(entry.body, timed=timed) if self._in_row <= TOLD else _count(entry.body, 1)
        self._add(Line(entry.seq, entry.at, entry.elapsed, *kind, safe(told)), entry)
        return True

    def _add(self, line: Line, entry: Entry) -> None:
        self.dropped += len(self._held) == self._held.maxlen
        self._held.append(Held(line, entry))


def kind_of(event: ev.AnyEvent) -> Kind | None:
    """What kind of line an event is; None for one that is no line."""
    match event:
        case ev.PassPlanned(reused=0):
            return None
        case ev.ModelResolved(outcome="download" | "refresh"):
            return Kind("notice", "cache")
        case ev.StoreVerified(ok=False):
            return Kind("error", "export")
        case ev.CollectionClosed():
            return Kind(_BY_STATUS[event.status], "collection")
        case ev.RunClosed():
            return Kind(_BY_STATUS[event.status], "run")
        case ev.LeaseReleased() if any(receipt.lost for receipt in event.receipts):
            return Kind("warning", "lease")
        case _:
            return _KINDS.get(type(event), OTHER)


_BY_STATUS: dict[ev.Status, Severity] = {
    "completed": "notice",
    "skipped": "notice",
    "stopped": "warning",
    "incomplete": "warning",
    "failed": "error",
}
_KINDS: dict[type[ev.Event], Kind | None] = {
    ev.RunStarted: Kind("notice", "run"),
    ev.RunResumed: Kind("notice", "run"),
    ev.DevicesFound: Kind("note", "device"),
    ev.DeviceSampled: None,
    ev.DeviceLost: Kind("error", "device"),
    ev.ControlApplied: Kind("notice", "control"),
    ev.ControlRefused: Kind("warning", "control"),
    ev.ModelResolved: Kind("note", "cache"),
    ev.DownloadRetried: Kind("warning", "cache"),
    ev.RosterResolved: Kind("note", "roster"),
    ev.RecordRefused: Kind("warning", "refused"),
    ev.CollectionRead: Kind("note", "collection"),
    ev.CorpusTokenised: Kind("note", "tokens"),
    ev.PassPlanned: Kind("note", "cache"),
    ev.RowsReused: Kind("note", "cache"),
    ev.BatchesLost: Kind("warning", "pass"),
    ev.LeaseGranted: Kind("notice", "lease"),
    ev.ModelAttached: Kind("note", "lease"),
    ev.MemoryCalibrated: Kind("note", "memory"),
    ev.BatchCommitted: None,
    ev.Mitigated: Kind("warning", "mitigation"),
    ev.PressurePassed: Kind("notice", "mitigation"),
    ev.RowParked: Kind("error", "parked"),
    ev.LeaseReleased: Kind("notice", "lease"),
    ev.ResidueFound: Kind("warning", "lease"),
    ev.EnsemblePassCompleted: Kind("notice", "pass"),
    ev.PassFailed: Kind("error", "pass"),
    ev.ArtefactWritten: Kind("note", "export"),
    ev.StoreVerified: Kind("notice", "export"),
    ev.Warned: Kind("warning", "warning"),
}


def _row_of(event: ev.AnyEvent) -> tuple[str, ...]:
    """What makes an event one of a row with others; empty where each stands for itself."""
    match event:
        case ev.RecordRefused():
            return ("refused", event.collection)
        case ev.RowParked():
            return ("parked", event.model, event.collection)
    return ()


def _count(event: ev.AnyEvent, more: int) -> str:
    match event:
        case ev.RecordRefused():
            text = f"{more} more of {event.collection}: the journal names all of them"
        case ev.RowParked():
            text = (
                f"{more} more rows of {event.collection} have no vector of {event.model}: the journal names all of them"
            )
        case _:
            text = f"{more} more"
    return safe(text)
