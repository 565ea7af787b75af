"""Mitigations of a run by what was done, why and where: how often, how many texts, bytes, seconds, and when. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from interlock.engine.record.events import Entry, Mitigated
from interlock.engine.record.facts import timed
from interlock.engine.record.words import human_bytes
from interlock.widgets.formats import clock

HEADS = ("step", "cause", "device", "times", "texts", "needs", "free", "lost", "first", "last")
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


def tabled(groups: Sequence[Steps]) -> tuple[list[str], list[list[str]]]:
    """Write the groups as the heads and cells of a table, without columns of which nothing is known."""
    lines = [_cells(each) for each in groups]
    told = [column for column in range(len(HEADS)) if any(line[column] for line in lines)]
    return [HEADS[column] for column in told], [[line[column] for column in told] for line in lines]


def _cells(each: Steps) -> tuple[str, ...]:
    return (
        each.rung or "step",
        each.cause,
        each.device,
        f"{each.times:,}",
        f"{each.rows:,}",
        "" if each.needs is None else human_bytes(each.needs),
        "" if each.free is None else human_bytes(each.free),
        "" if each.seconds is None else f"{each.seconds:.1f} s",
        clock(each.first),
        clock(each.last),
    )
