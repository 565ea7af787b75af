"""Where each pane of the main screen stands for a size of the terminal: pure, and tested at every size.

< 40x10    one line         40-79 columns or < 24 lines   header, memory and the chosen pane
80x24      one column; leases, mitigations and cache share a place, whose title names all three
100x30     passes beside cache, leases beside mitigations      160   and a column of graphs at the right
"""

from typing import NamedTuple

LEAST_WIDTH, LEAST_HEIGHT = 40, 10
COLUMN, GRID, WIDE, WIDEST = (80, 24), (100, 30), 120, 160
BORDER = 2
SIDE, GRAPHS = 38, 44
"""Cells of the cache beside passes, and of the column of graphs, at least."""
EVENTS = 5
"""Lines of the events beside all other panes, at least: three and their border."""
STEP = 4
"""Lines by which leases and mitigations grow: whatever is below them moves then, and is painted anew."""
REASON = 6
"""Lines of a reason that is never cut on a small screen."""
SHARED = ("leases", "mitigations", "cache")
"""Panes that take turns where there is no room for all."""


class Box(NamedTuple):
    """A place on the screen in cells, from its upper left corner."""

    x: int
    y: int
    width: int
    height: int


class Wants(NamedTuple):
    """How many lines panes could fill: one a device, a pass, a lease, a ladder."""

    devices: int
    passes: int
    leases: int = 3
    mitigations: int = 1


def layout(
    width: int, height: int, wants: Wants, chosen: str, *, zoomed: bool, turn: str = SHARED[0], header: int = 1
) -> dict[str, Box]:
    """Place the panes that are shown between the lines of the header and that of the footer; none where it is too
    small. Of those that share a place it is the `turn` of one."""
    if too_small(width, height):
        return {}
    room = Box(0, header, width, height - header - 1)
    if zoomed:
        return {chosen: room}
    if not _fits(COLUMN, width, height):
        return _accordion(room, wants, chosen)
    if not _fits(GRID, width, height):
        return _column(room, wants, chosen if chosen in SHARED else turn)
    still = _grid(Box(0, 1, width, height - 2), wants)
    shorter = still["vram"]._replace(y=header, height=still["vram"].height + 1 - header)
    if shorter.height >= _gauge_lines(wants.devices, height) + BORDER:  # what moves is painted anew: graphs give way
        return still | {"vram": shorter}
    return _grid(room, wants)


def too_small(width: int, height: int) -> bool:
    """Tell whether only one line can be shown."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT


def reason_lines(width: int, height: int, *, zoomed: bool, over: bool = False) -> int:
    """Say how many lines below the header the reason of the run's state may have: on a small screen, and once the run
    is `over`, it matters more than any pane, but for one that was zoomed."""
    if too_small(width, height):
        return 0
    return max(height // (3 if over else 6), REASON if not zoomed and not _fits(COLUMN, width, height) else 1)


def tabs(width: int, height: int) -> tuple[str, ...]:
    """Name the panes that share a place at this size."""
    if _fits(GRID, width, height):
        return ()
    return SHARED if _fits(COLUMN, width, height) else ("passes", *SHARED, "events")


def _fits(least: tuple[int, int], width: int, height: int) -> bool:
    return width >= least[0] and height >= least[1]


def _accordion(room: Box, wants: Wants, chosen: str) -> dict[str, Box]:
    """The gauges, and one more pane."""
    other = "passes" if chosen == "vram" else chosen
    return _stacked(room, {"vram": min(wants.devices + BORDER, room.height // 2)}, other)


def _column(room: Box, wants: Wants, middle: str) -> dict[str, Box]:
    """One below the other; what is over goes to the events."""
    quarter = room.height // 4
    tall = room.height - 22  # the lines that a terminal of the least height for this layout has not
    lines = _gauge_lines(wants.devices, 5)
    heights = {
        "vram": min(lines + BORDER + max(0, min(wants.devices, tall // 3)), quarter + 2),
        "passes": min(wants.passes + 1 + BORDER, quarter + 2),
        middle: BORDER + 3 + max(0, min(4, tall // 4)),
    }
    return _stacked(room, heights, "events")


def _grid(room: Box, wants: Wants) -> dict[str, Box]:
    """Memory over the full width, passes beside cache, leases beside mitigations, events; from `WIDEST` on the cache
    is a column of graphs at the right. Panes are no higher than what they have to say."""
    wide, fifth = room.width >= WIDEST, room.height // 5
    lines = _gauge_lines(wants.devices, room.height)
    if room.height < 34:  # a graph of one line beside what is known of each device
        top = min(lines * 2, room.height // 4) + BORDER
    else:
        graphs = min(4, max(2, (room.height // 3 - BORDER - 1) // lines - 1))
        top = min(lines * (1 + graphs) + 1 + BORDER, room.height * 2 // 5)
    upper = min(max(wants.passes + 2, 4), fifth) + BORDER
    lower = min(-(-max(wants.leases, wants.mitigations + 1, 1) // STEP) * STEP, fifth) + BORDER
    top = min(top, room.height - upper - lower - EVENTS)
    side = max(GRAPHS, room.width // 4) if wide else max(SIDE, room.width * 3 // 10)
    left, half = room.width - side, (room.width - side * wide) // 2
    second, third = room.y + top, room.y + top + upper
    rest = room.width - side * wide
    return {
        "vram": Box(0, room.y, room.width, top),
        "passes": Box(0, second, left, upper),
        "cache": Box(left, second, side, room.height - top if wide else upper),
        "leases": Box(0, third, half, lower),
        "mitigations": Box(half, third, rest - half, lower),
        "events": Box(0, third + lower, rest, room.height - top - upper - lower),
    }


def _gauge_lines(devices: int, most: int) -> int:
    """More than four devices stand two in a line."""
    return devices if devices <= 4 else min(most, (devices + 1) // 2)


def _stacked(room: Box, heights: dict[str, int], last: str) -> dict[str, Box]:
    """One below the other over the full width; the last takes what is over."""
    boxes, y = {}, room.y
    for name, height in (heights | {last: room.height - sum(heights.values())}).items():
        boxes[name] = Box(0, y, room.width, height)
        y += height
    return boxes
