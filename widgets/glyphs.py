"""Pictures of a few cells, as text: how full a device is, which batches are committed, how a number went.

Signs, not colours, carry the meaning. All are exactly `width` cells wide.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from interlock.engine.record.words import duration
from interlock.widgets.text import Span, fit

SHADES = "▁▃▅▇"
"""Of a bucket of batches: none, less than half, half or more, all of them."""
LEVELS = "▁▂▃▄▅▆▇█"
WEIGHTS, WORK, CONTEXT, OTHERS = "▇▅▃▒"
FREE, CEILING, PEAK, BEYOND = "▁│^╌"
"""No sign is as high as its line, so that bars that stand under one another do not touch."""
NEAR, OVER = 0.90, 0.97
"""Shares of a ceiling from which on a number is near to it, and as good as over it."""
TICKED, UNTICKED = "┤│"
TAIL = 10
"""A gauge has one cell in so many for what lies beyond the ceiling."""


def level(share: float, calm: str = "") -> str:
    """Name the style of a share of the ceiling: `calm`, warn or error."""
    return "error" if share >= OVER else "warn" if share >= NEAR else calm


class Parts(NamedTuple):
    """What a device's memory is taken by, in bytes: of this process weights, activations and the driver's context, and
    what other processes have."""

    weights: int
    work: int
    context: int
    others: int

    @property
    def used(self) -> int:
        """What this process occupies."""
        return self.weights + self.work + self.context


def gauge(width: int, total: int, parts: Parts, *, ceiling: int, peak: int, near: str = "") -> list[Span]:
    """Draw a device's memory against its ceiling, and what lies beyond it as a thin tail behind a tick; others take
    it from the far end. A mark is where the peak was, unless what is used now hides it; cells near the ceiling have
    the colours of that."""
    if width <= 0:
        return []
    scale = _Scale.of(width, total, ceiling)
    cells = [(FREE, "rest")] * scale.main
    cells += [(BEYOND, "rest")] * (width - scale.main)
    signs = ((parts.weights, WEIGHTS, "fill"), (parts.work, WORK, "work"), (parts.context, CONTEXT, "context"))
    begin = reached = 0
    for size, sign, style in signs:
        reached += size
        end = max(begin, scale.cells(reached))
        cells[begin:end] = [(sign, level((place + 1) / scale.main, style)) for place in range(begin, end)]
        begin = end
    if begin and scale.limit:  # of a short bar a cell is a large share: its tip has the colour of the number
        tip, style = cells[begin - 1]
        cells[begin - 1] = tip, near or level(parts.used / scale.limit, style)
    first = max(begin, width - scale.from_the_end(parts.others))
    cells[first:] = [(OTHERS, near or "others")] * (width - first)
    if (top := scale.cells(peak)) > begin:
        cells[top - 1] = (PEAK, "limit")
    if scale.main < width:
        cells[scale.main] = (CEILING, "limit")
    return [
        Span("".join(sign for sign, _ in group), style) for style, group in groupby(cells, key=lambda cell: cell[1])
    ]


class _Scale(NamedTuple):
    """How bytes lie on a gauge: `limit` of them on the `main` cells, then a tick, and `beyond` on the rest."""

    width: int
    main: int
    limit: int
    beyond: int

    @classmethod
    def of(cls, width: int, total: int, ceiling: int) -> "_Scale":
        if not 0 < ceiling < total or width < 4:
            return cls(width, width, max(total, 0), 0)
        return cls(width, width - 1 - max(1, width // TAIL), ceiling, total - ceiling)

    def cells(self, size: int) -> int:
        """How many cells a size takes from the left: one at least, where there is any of it."""
        if self.limit <= 0 or size <= 0:
            return 0
        if size <= self.limit:
            return max(1, round(size / self.limit * self.main))
        if not self.beyond:
            return self.width
        tail = self.width - self.main - 1
        return min(self.width, self.main + 1 + max(1, round((size - self.limit) / self.beyond * tail)))

    def from_the_end(self, size: int) -> int:
        """How many cells a size takes from the right: first of what lies beyond the ceiling."""
        if size <= 0 or self.limit <= 0:
            return 0
        if size <= self.beyond:
            return max(1, round(size / self.beyond * (self.width - self.main - 1)))
        return self.width - self.main + round(min(1.0, (size - self.beyond) / self.limit) * self.main)


def grid(cells: Sequence[int], batches: int, width: int) -> str:
    """Draw which of a pass's batches are committed, in their order; nothing is full before all of it is."""
    signs = SHADES
    if width <= 0:
        return ""
    if not cells or not batches:
        return signs[0] * width
    if len(cells) >= batches:
        return signs[3] * width
    buckets = _buckets(tuple(cells), batches, width)
    return "".join(signs[0 if not done else 3 if done >= size else 1 + (2 * done >= size)] for done, size in buckets)


@lru_cache(maxsize=32)
def _buckets(cells: tuple[int, ...], batches: int, width: int) -> tuple[tuple[int, int], ...]:
    """Of each cell of the picture: how many of its batches are done, and how many it stands for.

    Kept by all of `cells`: as a snapshot copies the same numbers, a picture that did not change is found in 0.1 ms.
    """
    if batches <= width:
        done = set(cells)
        return tuple((int(place * batches // width in done), 1) for place in range(width))
    full = [0] * width
    for cell in cells:
        if 0 <= cell < batches:
            full[cell * width // batches] += 1
    # Batch `b` falls into bucket `b * width // batches`, so bucket `p` begins at `p * batches / width`, rounded up.
    starts = [-(-place * batches // width) for place in range(width + 1)]
    return tuple(zip(full, (after - before for before, after in pairwise(starts)), strict=True))


def sparkline(values: Sequence[float], width: int, *, top: float = 0.0) -> str:
    """Draw the latest `width` values, the newest at the right; `top` (or the largest of them) is a full cell.

    Nothing at all has a sign of its own, so that a stall is seen beside the slowest second.
    """
    if width <= 0:
        return ""
    shown = list(values)[-width:]
    highest, signs = max([top, *shown], default=0.0), LEVELS[:-1]  # lines above one another do not touch
    most = len(signs) - 1
    # The first sign is for nothing; anything at all has one above it.
    levels = (min(most, 1 + int(value / highest * most - 1e-9)) if value > 0 else 0 for value in shown)
    return "".join(signs[level] for level in levels).rjust(width)


def graph(
    values: Sequence[float], width: int, height: int, *, top: float, shares: Sequence[float] = (), style: str = "fill"
) -> list[list[Span]]:
    """Draw the latest `width` values as columns `height` lines high, the newest at the right; `top` fills a column.

    Where there is no value there is nothing; a value of nothing has a sign of its own, as in `sparkline`. A value has
    the colour of its share of what is the most, where there are `shares`.
    """
    shown, signs = list(values)[-width:] if width > 0 else [], LEVELS
    steps, size = len(signs) * height, len(signs)
    heights = [min(steps, max(2, -int(-value / top * steps + 1e-9))) if value > 0 and top > 0 else 1 for value in shown]
    styles = [level(share, style) for share in shares[-len(shown) :]] if shares else [style] * len(shown)
    lines = []
    for floor in range(steps - size, -1, -size):
        cells = ((signs[min(each - floor, size) - 1] if each > floor else " ") for each in heights)
        groups = groupby(zip(cells, styles, strict=True), key=lambda cell: cell[1])
        spans = [Span("".join(sign for sign, _ in group), style) for style, group in groups]
        lines.append([Span(" " * (width - len(shown))), *spans])
    return lines


def chart(
    values: Sequence[float], told: int, step: int, width: int, height: int,
    *, axis: int, label: Callable[[float], str], ceiling: float = 0, shares: Sequence[float] = (), style: str = "fill",
    silent: int = 0,
) -> list[list[Span]]:  # fmt: skip
    """Draw a graph with its scale, of `axis` cells, before it: of a `ceiling` the highest values, else their means.
    `values` are the latest of `told` in all, and a column is `step` of them; so many were due since and are `silent`.
    `shares` are those of each value, of the ceiling unless told."""
    gap = min(silent // step, width)
    count, width = max(told, len(values)), width - gap
    shown = gathered(values, count, step, width, max if ceiling else _mean)
    if ceiling:
        shares = gathered(shares, count, step, width) if shares else [value / ceiling for value in shown]
    top = max([ceiling, *shown]) if ceiling else rounded_up(max(shown, default=0.0))
    scale = {height - 1: "0", 0: label(top)}
    lines = [[*line, Span(" " * gap)] for line in graph(shown, width, height, top=top, shares=shares, style=style)]
    ticks = (f"{scale.get(line, ''):>{axis - 1}}{TICKED if line in scale else UNTICKED}" for line in range(height))
    return [[Span(tick, "dim"), *cells] for tick, cells in zip(ticks, lines, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def gathered(
    values: Sequence[float], count: int, step: int, width: int, pick: Callable[[Sequence[float]], float] = max
) -> list[float]:
    """Make one column of every `step` values, at most the `width` latest; `count` values have been in all, of which
    these are the last. As columns begin at fixed values, one that is full never changes; it only moves on."""
    first = count - len(values)
    newest = -(-count // step)
    columns = range(max(first // step, newest - width), newest)
    spans = [(max(0, place * step - first), min(len(values), (place + 1) * step - first)) for place in columns]
    return [pick(values[begin:end]) for begin, end in spans if end > begin]


STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)


def step_for(count: int, width: int) -> int:
    """Choose how many values a column stands for, so that `count` of them fit: of few steps, for a graph that was drawn
    moves on when there is a new column, and is drawn afresh when these become wider."""
    return next((step for step in STEPS if step * width >= count), -(-count // max(1, width)))


def rounded_up(value: float) -> float:
    """Find the next of 1, 2, 5, 10, 20, 50 and so on that is not below a value: a scale that seldom changes."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= value * (1 - 1e-9))


def ages(width: int, columns: int, seconds: int, *, live: bool = True) -> str:
    """Write below a graph how long ago the first of its `columns`, each of so many seconds, and their middle were:
    before now, or before its end where it is not `live`."""
    right = "now" if live else "end"
    if columns < width:
        shorter = ages(columns, columns, seconds, live=live) if columns > 9 else right
        return fit(shorter, width, right=True)
    seconds *= width
    left, middle = f"-{duration(seconds)}", f"-{duration(seconds / 2)}"
    if width < len(left) + len(right) + 2:
        return fit(right, width, right=True)
    if width < 4 * len(left):
        return left + right.rjust(width - len(left))
    half = width // 2
    return left + middle.rjust(half - len(left) + len(middle) // 2).ljust(width - len(left) - len(right)) + right
