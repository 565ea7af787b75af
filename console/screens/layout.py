"""Where each pane of the main screen stands for a size of the terminal: pure, and tested at every size.

< 40x10   one line         40-79 columns or < 24 lines   header, VRAM and the chosen pane
80        one column       120   two by two, events below       180   three columns
"""

from typing import NamedTuple

PANES = ("vram", "passes", "leases", "events", "cache")
LEAST_WIDTH, LEAST_HEIGHT = 40, 10
COLUMN, WIDE, WIDEST, TALL = 80, 120, 180, 24
BORDER = 2


class Box(NamedTuple):
    """A place on the screen in cells, from its upper left corner."""

    x: int
    y: int
    width: int
    height: int


class Wants(NamedTuple):
    """How many lines panes could fill: one a device, one a pass."""

    devices: int
    passes: int


def layout(width: int, height: int, wants: Wants, chosen: str, *, zoomed: bool) -> dict[str, Box]:
    """Place the panes that are shown between the header's line and the footer's; none where it is too small."""
    if too_small(width, height):
        return {}
    room = Box(0, 1, width, height - 2)
    if zoomed:
        return {chosen: room}
    if width < COLUMN or height < TALL:
        return _accordion(room, wants, chosen)
    if width < WIDE:
        return _column(room, wants)
    return _grid(room, wants, 3 if width >= WIDEST else 2)


def too_small(width: int, height: int) -> bool:
    """Tell whether only one line can be shown."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT


def _accordion(room: Box, wants: Wants, chosen: str) -> dict[str, Box]:
    """The gauges, and one more pane."""
    top = min(wants.devices + BORDER, room.height // 2)
    vram = Box(0, room.y, room.width, top)
    other = "passes" if chosen == "vram" else chosen
    return {"vram": vram, other: Box(0, room.y + top, room.width, room.height - top)}


def _column(room: Box, wants: Wants) -> dict[str, Box]:
    """All but the cache pane, which is a line of the passes' here; what is over goes to the events."""
    quarter = room.height // 4
    tall = room.height - 22  # the lines that a terminal of the least height for this layout has not
    # More than four devices stand two in a line here, and more than eight are not all shown.
    lines = wants.devices if wants.devices <= 4 else min(5, (wants.devices + 1) // 2)
    heights = {
        "vram": min(lines + BORDER + max(0, min(wants.devices, tall // 3)), quarter + 2),
        "passes": min(wants.passes + 1 + BORDER, quarter + 2),
        "leases": BORDER + 3 + max(0, min(4, tall // 4)),
    }
    heights["events"] = room.height - sum(heights.values())
    boxes, y = {}, room.y
    for name, height in heights.items():
        boxes[name] = Box(0, y, room.width, height)
        y += height
    return boxes


def _grid(room: Box, wants: Wants, columns: int) -> dict[str, Box]:
    """VRAM and passes above, leases and cache (beside them, or below), events over the whole width."""
    width = room.width // columns
    last = room.width - (columns - 1) * width  # the last column takes what the division leaves
    # Of three columns leases stand alone in the middle row and need less of it, so the panes above may be taller.
    tallest = room.height // 2 if columns == 3 else room.height // 3
    top = min(max(2 * wants.devices, wants.passes + 3, 4) + BORDER, tallest + 1)
    boxes = {"vram": Box(0, room.y, width, top)}
    if columns == 3:
        boxes["passes"] = Box(width, room.y, width, top)
        boxes["cache"] = Box(2 * width, room.y, last, top)
        middle = max(7, room.height // 5)
        boxes["leases"] = Box(0, room.y + top, room.width, middle)
    else:
        boxes["passes"] = Box(width, room.y, last, top)
        middle = min(9, room.height // 4)
        boxes["leases"] = Box(0, room.y + top, width, middle)
        boxes["cache"] = Box(width, room.y + top, last, middle)
    below = top + middle
    boxes["events"] = Box(0, room.y + below, room.width, room.height - below)
    return boxes
