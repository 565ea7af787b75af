"""Numbers and names as every pane says them: sizes, shares, paces, devices, and the one word for how a run stands."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from interlock.engine.record.snapshot import Snapshot

GIB = 2**30
NUMBER = re.compile(r"[-+]?[\d.,:]+%?( (B|KiB|MiB|GiB|TiB))?|\?|-|")
RECENT = 10
"""Seconds over which a pace is told."""


def numeric(cells: Sequence[Sequence[str]], columns: int) -> list[bool]:
    """Find the columns of a table that hold numbers only, and stand to the right."""
    return [bool(cells) and all(NUMBER.fullmatch(line[place]) for line in cells) for place in range(columns)]


def gib(size: float) -> str:
    """Write GiB with one decimal; what is too little for that is still not nothing."""
    return "<0.1" if 0 < size < 0.05 * GIB else f"{size / GIB:.1f}"


def count(number: float) -> str:
    """Write a number in at most six cells: 9876, 12.3k, 4.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= (1e4 if unit == "k" else 0.99995 * size):  # which would be told as 1000.0 of the unit below
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def yes_no(value: bool) -> str:
    """Write a switch as controls and journals have it."""
    return "yes" if value else "no"


def clock(at: float, form: str = "%H:%M:%S", *, utc: bool = False, otherwise: str = "--:--:--") -> str:
    """Write a moment (seconds since the epoch); `otherwise` for what is none, as a damaged journal may have it."""
    with suppress(ValueError, OverflowError, OSError):
        return time.strftime(form, time.gmtime(at) if utc else time.localtime(at))
    return otherwise


def tally(words: Iterable[str]) -> str:
    """Count words as `3 done, 1 failed`, in the order in which they come."""
    return ", ".join(f"{number} {word}" for word, number in Counter(words).items())


def trouble(mitigations: int, parked: int) -> str:
    """Write `!3 parked 1`: how often the ladder was climbed, and rows that have no vector."""
    return " ".join([f"!{mitigations}"] * bool(mitigations) + [f"parked {parked}"] * bool(parked))


def devices_of(names: Sequence[str]) -> str:
    """Name devices: `cuda:0,1` for two cards, `cuda:0-3` for four in a row."""
    cards = [int(name[5:]) for name in names if name.startswith("cuda:") and name[5:].isdecimal()]
    others = [name for name in names if not (name.startswith("cuda:") and name[5:].isdecimal())]
    if not cards:
        return ",".join(others)
    cards.sort()
    row = len(cards) > 2 and cards[-1] - cards[0] == len(cards) - 1
    name = f"cuda:{cards[0]}-{cards[-1]}" if row else "cuda:" + ",".join(map(str, cards))
    return ",".join([name, *others])


def rates(snapshot: Snapshot) -> tuple[float, float]:
    """Compute rows and tokens a second: of the latest whole seconds; once the run is over, the mean of its batches."""
    if snapshot.over:
        seconds = sum(each.seconds for each in snapshot.passes) or 1.0
        return sum(each.rows_done for each in snapshot.passes) / seconds, snapshot.tokens_done / seconds
    return recent(snapshot.pace.rows), recent(snapshot.pace.tokens)


def recent(seconds: Sequence[int]) -> float:
    """Take the mean of the latest seconds; the last one still counts and is left out, unless it is alone."""
    values = list(islice(reversed(seconds), 1, RECENT + 1)) or list(seconds)
    return sum(values) / max(1, len(values))


def unreal(snapshot: Snapshot) -> str:
    """Name what must stand beside every pace and peak of a run that is not what it looks like."""
    return "simulated" if snapshot.simulated else "scripted" if snapshot.scripted else ""
