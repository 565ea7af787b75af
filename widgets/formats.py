"""Numbers and names as every pane says them: sizes, shares, paces, devices, and the one word for how a run stands."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, islice

from interlock.engine.record.facts import node_of, on_host
from interlock.engine.record.snapshot import Snapshot, wall_seconds
from interlock.engine.record.words import drawn, safe, several
from interlock.engine.standing.health import at_rest, goes_on

RUNGS = {
    "replan": "smaller batches", "split": "halved", "stream": "layer by layer", "relocate": "model moved",
    "float32": "in float32", "cpu": "on the CPU", "park": "given up", "slice_mlp": "in slices", "chunk": "in slices",
}  # fmt: skip
"""What the rungs of the ladder do, in an operator's words; the last two are of old journals."""
MIB, GIB, TIB = 2**20, 2**30, 2**40
LONGEST = 4000
"""Signs of a line that are looked at."""
LEVEL_STYLES = {"ok": "ok", "idle": "title", "warn": "warn", "error": "error"}
"""The style of each level of a run's health."""
NUMBER = re.compile(r"[-+]?[\d.,:]+%?( (B|KiB|MiB|GiB|TiB))?|\?|-|")
EXACT = 28
"""Cells that the names of nodes' devices may take before they are counted instead."""
RECENT = 10
"""Seconds over which a pace is told, at least."""


def numeric(cells: Sequence[Sequence[str]], columns: int) -> list[bool]:
    """Find the columns of a table that hold numbers only, and stand to the right."""
    return [bool(cells) and all(NUMBER.fullmatch(line[place]) for line in cells) for place in range(columns)]


def gib(size: float) -> str:
    """Write GiB with one decimal; what is too little for that is still not nothing."""
    return amount(size, GIB)


def amount(size: float, most: float) -> str:
    """Write a size in the unit of the largest one beside it, without it; MiB whole, more with one decimal."""
    if most < GIB:
        return f"{size / MIB:.0f}"
    one = TIB if most >= TIB else GIB
    return "<0.1" if 0 < size < 0.05 * one else f"{size / one:.1f}"


def unit(most: float) -> str:
    """Name the unit that `amount` writes in."""
    return "TiB" if most >= TIB else "GiB" if most >= GIB else "MiB"


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


def last(snapshot: Snapshot) -> str:
    """Say when it was that what is shown was measured, of a run that does not go on."""
    return "" if goes_on(snapshot) else f"last {clock(snapshot.latest_at)}"


def tally(words: Iterable[str]) -> str:
    """Count words as `3 done, 1 failed`, in the order in which they come."""
    return ", ".join(f"{number} {word}" for word, number in Counter(words).items())


def parked(texts: int) -> str:
    """Write `1 text parked`; nothing where every text has its vector."""
    return f"{several(texts, 'text')} parked" * bool(texts)


def lack_style(snapshot: Snapshot) -> str:
    """The style of a text without a vector: until the run is over for good, there may yet be one."""
    return "error" if snapshot.phase == "incomplete" else "warn"


def devices_of(names: Sequence[str], lost: Collection[str] = ()) -> str:
    """Name devices: `cuda:0,1` for two GPUs, `cuda:0-3` for four in a row, `node-1/cuda:0,1` for those of a node, and
    `4 GPUs on 2 nodes` where that would be long; those that are `lost` apart: `cuda:0, lost cuda:1`."""
    if gone := [name for name in names if name in lost]:
        there = devices_of([name for name in names if name not in lost])
        return f"{there}, lost {devices_of(gone)}".removeprefix(", ")
    by_node: dict[str, list[str]] = {}
    for name in names:
        by_node.setdefault(node_of(name), []).append(name.rpartition("/")[2])
    exact = " ".join(f"{node}/{_local(local)}" if node else _local(local) for node, local in by_node.items())
    short = len(by_node) < 2 or len(exact) <= EXACT
    return exact if short else f"{several_devices(names)} on {len(by_node)} nodes"


def several_devices(names: Sequence[str]) -> str:
    """Count devices: `4 GPUs`, `1 CPU`, `4 GPUs, 2 CPUs`."""
    hosts = sum(map(on_host, names))
    counts = {"GPU": len(names) - hosts, "CPU": hosts}
    return ", ".join(several(number, kind) for kind, number in counts.items() if number)


def placed(names: Sequence[str], between: str = ",") -> str:
    """Name every device of one machine; those of nodes as `devices_of` does."""
    return devices_of(names) if any(map(node_of, names)) else between.join(names)


def _local(names: Sequence[str]) -> str:
    numbers = [int(name[5:]) for name in names if name.startswith("cuda:") and name[5:].isdecimal()]
    others = [name for name in names if not (name.startswith("cuda:") and name[5:].isdecimal())]
    if not numbers:
        return ",".join(others)
    numbers.sort()
    row = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    name = f"cuda:{numbers[0]}-{numbers[-1]}" if row else "cuda:" + ",".join(map(str, numbers))
    return ",".join([name, *others])


def rates(snapshot: Snapshot) -> tuple[float, float]:
    """Compute rows and tokens a second: of the latest whole seconds; where the run is at rest, the mean of its
    batches."""
    if at_rest(snapshot):
        seconds = wall_seconds(snapshot.passes) or 1.0
        return sum(each.done.rows for each in snapshot.passes) / seconds, snapshot.tokens_done / seconds
    return recent(snapshot.pace.rows, window(snapshot)), recent(snapshot.pace.tokens, window(snapshot))


def window(snapshot: Snapshot) -> int:
    """Choose the seconds over which a pace is told: more than the longest batch took, so that it is never nothing
    between two batches."""
    return max(RECENT, int(1.5 * snapshot.slowest) + 1)


def recent(seconds: Sequence[int], window: int) -> float:
    """Take the mean of the latest seconds; the last one still counts and is left out, unless it is alone."""
    values = list(islice(reversed(seconds), 1, window + 1)) or list(seconds)
    return sum(values) / max(1, len(values))


def smoothed(seconds: Sequence[int], window: int) -> list[float]:
    """Take the mean of every second and those before it in `window`; the last second still counts and is left out."""
    sums = [0, *accumulate(islice(seconds, max(0, len(seconds) - 1)))]
    begins = (max(0, end - window) for end in range(1, len(sums)))
    return [(sums[end] - sums[begin]) / (end - begin) for end, begin in enumerate(begins, 1)]


def unreal(snapshot: Snapshot) -> str:
    """Name what must stand beside every pace and peak of a run that is not what it looks like."""
    return "simulated" if snapshot.simulated else "scripted" if snapshot.scripted else ""


def easy(text: str) -> bool:
    """Whether every sign is one cell and harmless, as in nearly all texts."""
    return len(text) <= LONGEST and text.isascii() and text.isprintable()


def width_of(text: str) -> int:
    """Count the terminal cells that a text takes."""
    if easy(text):
        return len(text)
    from rich.cells import cell_len  # plain lines do without a terminal library

    return cell_len(drawn(text, LONGEST))


def cut(text: str, width: int) -> str:
    """Cut a line to at most `width` terminal cells."""
    while width_of(text) > width:
        text = text[:-1]
    return text


def render(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a table as text, without a final newline."""
    cells = [[safe(cell) for cell in row] for row in rows]
    widths = [max(map(width_of, column)) for column in zip(heads, *cells, strict=True)]
    right = numeric(cells, len(heads))
    lines = [list(heads), ["-" * width for width in widths], *cells]
    gaps = [[" " * (width - width_of(cell)) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(
        "  ".join(g + t if number else t + g for t, g, number in zip(line, gap, right, strict=True)).rstrip()
        for line, gap in zip(lines, gaps, strict=True)
    )
