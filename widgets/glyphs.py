"""Pictures of a few cells, as text: how full a device is, which batches are committed, how a number went.

Signs, not colours, carry the meaning; each picture has a variant of ASCII signs. All are exactly `width` cells wide.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise

from interlock.widgets.text import Span

SHADES = ("░▒▓█", ".:+#")
"""Of a bucket of batches: none, less than half, half or more, all of them."""
LEVELS = ("▁▂▃▄▅▆▇█", "_.-:=+*#")
WEIGHTS, WORK, OTHERS, FREE, CEILING, PEAK = ("█", "#"), ("▓", "="), ("▒", "o"), ("░", "."), ("│", "|"), ("^", "^")
STYLE_OF = {"█": "fill", "#": "fill", "▓": "accent", "=": "accent", "▒": "dim", "o": "dim", "│": "mark", "|": "mark"}
STYLE_OF |= {"^": "mark", "░": "rest", ".": "rest"}


def gauge(
    width: int, total: int, *, weights: int, used: int, ceiling: int, peak: int, others: int = 0, ascii: bool = False
) -> list[Span]:
    """Draw a device's memory from nothing to all of it: weights, what else is used, and from the far end what others
    use; a tick where the ceiling is and a mark where the peak was, unless they are hidden by what is used now."""
    if width <= 0:
        return []
    cells = [FREE[ascii]] * width
    end = _cells(used, total, width)
    begin = max(width - _cells(others, total, width), end) if others else width
    heavy = min(_cells(weights, total, width), end)
    cells[begin:] = [OTHERS[ascii]] * (width - begin)
    cells[:end] = [WORK[ascii]] * end
    cells[:heavy] = [WEIGHTS[ascii]] * heavy
    if (top := _cells(peak, total, width)) > end:
        cells[top - 1] = PEAK[ascii]
    if ceiling < total and (tick := min(_cells(ceiling, total, width), width - 1)) >= end:
        cells[tick] = CEILING[ascii]
    return [Span("".join(group), STYLE_OF[sign]) for sign, group in groupby(cells)]


def _cells(size: int, total: int, width: int) -> int:
    """How many of `width` cells a size takes: one at least, where there is any of it."""
    return max(int(size > 0), min(width, round(size / total * width))) if total > 0 else 0


def grid(cells: Sequence[int], batches: int, width: int, *, ascii: bool = False) -> str:
    """Draw which of a pass's batches are committed, in their order; nothing is full before all of it is."""
    signs = SHADES[ascii]
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


def sparkline(values: Sequence[float], width: int, *, top: float = 0.0, ascii: bool = False) -> str:
    """Draw the latest `width` values, the newest at the right; `top` (or the largest of them) is a full cell.

    Nothing at all has a sign of its own, so that a stall is seen beside the slowest second.
    """
    if width <= 0:
        return ""
    shown = list(values)[-width:]
    highest, signs = max([top, *shown], default=0.0), LEVELS[ascii]
    most = len(signs) - 1
    # The first sign is for nothing; anything at all has one above it.
    levels = (min(most, 1 + int(value / highest * most - 1e-9)) if value > 0 else 0 for value in shown)
    return "".join(signs[level] for level in levels).rjust(width)
