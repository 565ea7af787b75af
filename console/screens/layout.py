"""Where each pane of the main screen stands for a size of the terminal: pure, and tested at every size.

< 40x10   one line         40-79 columns or < 24 lines   header, VRAM and the chosen pane
80        one column       120   VRAM over the full width, passes beside leases, events
160       and a column of graphs at the right
"""

from typing import NamedTuple

OWN = ("vram", "passes", "leases", "events")
"""Panes that have a place of their own."""
LEAST_WIDTH, LEAST_HEIGHT = 40, 10
COLUMN, WIDE, WIDEST, TALL = 80, 120, 160, 24
BORDER = 2
MIDDLE, GRAPHS = 7, 44
"""Lines of what stands between VRAM and events, and cells of the column of graphs, at least."""


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
    # The chosen pane is always shown: where it has no place of its own, it takes that of the leases.
    middle = "leases" if chosen in OWN else chosen
    if width < WIDE:
        return _column(room, wants, middle)
    return _graphed(room, wants, middle) if width >= WIDEST else _strip(room, wants, middle)


def too_small(width: int, height: int) -> bool:
    """Tell whether only one line can be shown."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT


def _accordion(room: Box, wants: Wants, chosen: str) -> dict[str, Box]:
    """The gauges, and one more pane."""
    top = min(wants.devices + BORDER, room.height // 2)
    vram = Box(0, room.y, room.width, top)
    other = "passes" if chosen == "vram" else chosen
    return {"vram": vram, other: Box(0, room.y + top, room.width, room.height - top)}


def _column(room: Box, wants: Wants, middle: str) -> dict[str, Box]:
    """All but the cache pane, which is a line of the passes' here; what is over goes to the events."""
    quarter = room.height // 4
    tall = room.height - 22  # the lines that a terminal of the least height for this layout has not
    # More than four devices stand two in a line here, and more than eight are not all shown.
    lines = wants.devices if wants.devices <= 4 else min(5, (wants.devices + 1) // 2)
    heights = {
        "vram": min(lines + BORDER + max(0, min(wants.devices, tall // 3)), quarter + 2),
        "passes": min(wants.passes + 1 + BORDER, quarter + 2),
        middle: BORDER + 3 + max(0, min(4, tall // 4)),
    }
    heights["events"] = room.height - sum(heights.values())
    boxes, y = {}, room.y
    for name, height in heights.items():
        boxes[name] = Box(0, y, room.width, height)
        y += height
    return boxes


def _strip(room: Box, wants: Wants, middle: str) -> dict[str, Box]:
    """VRAM with a graph for each device over the full width; passes beside leases; events over the full width."""
    # More than four devices stand two in a line, and one line below all of them tells the times.
    lines = wants.devices if wants.devices <= 4 else (wants.devices + 1) // 2
    graphs = min(4, max(2, (room.height // 3 - BORDER - 1) // lines - 1))
    top = min(lines * (1 + graphs) + 1 + BORDER, room.height * 2 // 5)
    below = max(MIDDLE, min(max(wants.passes + 4, 6) + BORDER, room.height // 4 + 1))
    half = room.width // 2
    return {
        "vram": Box(0, room.y, room.width, top),
        "passes": Box(0, room.y + top, half, below),
        middle: Box(half, room.y + top, room.width - half, below),
        "events": Box(0, room.y + top + below, room.width, room.height - top - below),
    }


def _graphed(room: Box, wants: Wants, middle: str) -> dict[str, Box]:
    """The same, and below the strip at the right a column of graphs down to the footer."""
    middle = "leases" if middle == "cache" else middle
    boxes = _strip(room, wants, middle)
    top, graphs = boxes["vram"].height, max(GRAPHS, room.width // 4)
    rest = _strip(Box(0, room.y, room.width - graphs, room.height), wants, middle) | {"vram": boxes["vram"]}
    return rest | {"cache": Box(room.width - graphs, room.y + top, graphs, room.height - top)}
