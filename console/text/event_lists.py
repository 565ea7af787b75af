"""What lists show of journal entries: the lines of the events pane, and mitigations by what was done, why and where.

Batches and samples are no lines, many of one kind are a count, and only the latest lines are kept. Pure but for `Feed`.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from interlock.console.text.event_text import describe
from interlock.engine.record.events import Entry, Mitigated
from interlock.engine.record.facts import timed
from interlock.engine.record.words import human_bytes, safe, several
from interlock.widgets.formats import clock
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

    def __init__(self) -> None:
        self._held: deque[HeldLine] = deque(maxlen=MOST_LINES)
        self._lines: tuple[Line, ...] = ()
        self._latest = -1
        self._row = ""
        self._in_row = 0

    def take(self, entries: Iterable[Entry]) -> tuple[Line, ...]:
        """Take in what came, in its order; return all lines, the same tuple where nothing became a line."""
        changed = False
        for entry in entries:
            changed = self._gap(entry) or changed
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

    def _gap(self, entry: Entry) -> bool:
        """Say that entries are missing before this one."""
        gone = entry.seq - self._latest - 1 if self._latest >= 0 else 0
        if gone <= 0:
            return False
        self._row = ""
        text = f"{several(gone, 'event')} skipped, too fast to show (the journal has them all)"
        self._held.append(HeldLine(Line(entry.seq - 1, entry.at, entry.elapsed, "notice", "missed", text), entry))
        return True

    def _append(self, entry: Entry) -> bool:
        severity, word, text, more, *_ = describe(entry.body, entry.device_kind)
        if severity is None:
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
            self._held.append(HeldLine(Line(entry.seq, entry.at, entry.elapsed, severity, word, text), entry))
        return True


LONGEST_CAUSE = 60


@dataclass
class Steps:
    """Mitigations of one kind. `needs` is the most bytes that one needed, `free` the fewest that were there for it;
    None where no journal entry says so. `seconds` were lost to all of them, None where time means nothing."""

    rung: str
    device: str
    cause: str
    first: float
    times: int = 0
    rows: int = 0
    needs: int | None = None
    free: int | None = None
    seconds: float | None = None
    last: float = 0.0
    seqs: set[int] = field(default_factory=set)
    """The entries of the journal that tell of them."""

    @property
    def name(self) -> str:
        return f"{self.rung or 'step'} on {self.device}" if self.device else self.rung or "step"


def grouped(entries: Iterable[Entry]) -> list[Steps]:
    """Group what of these is a mitigation, the group that happened most often first."""
    groups: dict[tuple[str, str, str], Steps] = {}
    for entry in entries:
        if isinstance(entry.body, Mitigated):
            key = entry.body.rung, entry.body.device, cause_of(entry.body.cause)
            _add(groups.setdefault(key, Steps(*key, first=entry.at)), entry, entry.body)
    return sorted(groups.values(), key=lambda each: (-each.times, each.first))


def _add(group: Steps, entry: Entry, step: Mitigated) -> None:
    group.times += 1
    group.rows += step.rows
    group.needs = max(group.needs or 0, step.predicted_bytes or 0) or None
    group.free = min((size for size in (group.free, step.free) if size is not None), default=None)
    if timed(entry.device_kind):
        group.seconds = (group.seconds or 0.0) + (step.cost_seconds or 0.0)
    group.last = entry.at
    group.seqs.add(entry.seq)


def cause_of(text: str) -> str:
    """Take the kind of a cause from its sentence: what stands before its figures."""
    return re.split(r" \(|: | \d", text, maxsplit=1)[0][:LONGEST_CAUSE]


COLUMNS: Mapping[str, Callable[[Steps], str]] = {
    "step": lambda each: each.rung or "step",
    "cause": lambda each: each.cause,
    "device": lambda each: each.device,
    "times": lambda each: f"{each.times:,}",
    "texts": lambda each: f"{each.rows:,}",
    "needs": lambda each: "" if each.needs is None else human_bytes(each.needs),
    "free": lambda each: "" if each.free is None else human_bytes(each.free),
    "lost": lambda each: "" if each.seconds is None else f"{each.seconds:.1f} s",
    "first": lambda each: clock(each.first),
    "last": lambda each: clock(each.last),
}


def tabled(groups: Sequence[Steps]) -> tuple[list[str], list[list[str]]]:
    """Write the groups as the heads and cells of a table, without columns of which nothing is known."""
    cells = {name: [text(each) for each in groups] for name, text in COLUMNS.items()}
    told = {name: column for name, column in cells.items() if any(column)}
    return list(told), [list(line) for line in zip(*told.values(), strict=True)]
