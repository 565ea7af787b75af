"""The pane of devices: how full each is, of what, and how near to the most that this run may occupy.

A device has one line, or two where there is room, or a graph of its last minutes below its gauge; many devices stand
two in a line, and of more than can be shown the worst are. Those of nodes are then folded: enter unfolds one.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from interlock.engine.record.snapshot import DeviceView
from interlock.engine.record.state import HISTORY
from interlock.engine.standing.health import goes_on
from interlock.widgets import cluster, gauges, glyphs
from interlock.widgets.formats import amount, last, unit
from interlock.widgets.gauges import Devices
from interlock.widgets.pane import Cursor, PaneKind, View, around
from interlock.widgets.text import Row, Span, fitted, kept, width_of

LEAST_CELL, MOST_PAIRED, SPELT = 28, 8, 110
LEAST_BLOCK, BLOCK_WIDTH, SIDE, AXIS, LEAST_GRAPH = 2, 56, 27, 12, 16
"""Lines and cells of a device with a graph, at least; cells of what stands beside the graph, of its scale and of it."""


class Trace(NamedTuple):
    """How a device went: the last of `told` values that there have been, one every `seconds`, each with its share of
    what it might have had, where that is known; nothing was heard of it in as many as are `silent`."""

    values: Sequence[int]
    told: int
    seconds: int
    silent: int
    shares: Sequence[float] = ()


def legend(width: int) -> Row:
    """Say what the signs of a gauge mean, in its colours; nothing where there is no room to say so."""
    signs = {
        "weights": (glyphs.WEIGHTS, "fill"), "activations": (glyphs.WORK, "work"),
        "context": (glyphs.CONTEXT, "context"), "others": (glyphs.OTHERS, "others"),
        "ceiling": (glyphs.CEILING, "limit"), "peak": (glyphs.PEAK, "limit"),
    }  # fmt: skip
    near = {f"from {share:.0%}": (glyphs.WEIGHTS, glyphs.level(share)) for share in (glyphs.NEAR, glyphs.OVER)}
    signs |= near if width >= SPELT else {}
    spans = [
        piece for name, (sign, style) in signs.items() for piece in (Span(f" {sign}", style), Span(f" {name} ", "dim"))
    ]
    return tuple(spans) if sum(width_of(span.text) for span in spans) + 10 <= width else ()


def cursor(view: View) -> Cursor | None:
    """Folded nodes are lines to choose from, and to unfold."""
    found = _folded(view)
    return _cursor(found, view) if found else None


def _folded(view: View) -> list[cluster.NodeLine]:
    """The lines of nodes; none where every device has a line of its own."""
    devices, width, height = view.snapshot.devices, view.width, view.height
    return cluster.lines(devices, view.opened, height) if folds(devices, width, height) else []


def _cursor(found: Sequence[cluster.NodeLine], view: View) -> Cursor:
    names = [line.name for line in found]
    place = names.index(view.chosen) if view.chosen in names else 0
    room = view.height - (len(names) > view.height)  # a line tells of what is not in sight
    return Cursor(names, place, around(len(names), place, max(1, room)), branch=found[place].node)


def rows(view: View) -> list[Row]:
    """Draw devices in the lines that there are; graphs are of the last minutes, zoomed of the whole run. What nobody
    measures any more is dim."""
    rows = _rows(view)
    if goes_on(view.snapshot):
        return rows
    return [tuple(span if span.text == "LOST" else span._replace(style="dim") for span in row) for row in rows]


def _rows(view: View) -> list[Row]:
    devices, width, height = view.snapshot.devices, view.width, view.height
    if not devices:
        return [fitted([Span("no device yet", "dim")], width)]
    if found := _folded(view):
        return cluster.rows(found, view.opened, _cursor(found, view), width, height, pointed=view.focused)
    if columns := _columns(devices, width, height):
        return _with_graphs(view, columns)
    if len(devices) <= height:
        return [gauges.gauge(device, devices, width) for device in devices]
    return _paired(devices, width) if _pairs(devices, width, height) else _worst(devices, width, height)


def lines_wanted(devices: Devices) -> int:
    """Say how many lines devices could fill, those of many nodes when they are folded."""
    return len(devices) if cluster.several_nodes(devices) < 2 else max(cluster.several_nodes(devices), MOST_PAIRED)


def folds(devices: Devices, width: int, height: int) -> bool:
    """Tell whether the devices are of several nodes and too many to be shown one by one."""
    if cluster.several_nodes(devices) < 2 or len(devices) <= height or _columns(devices, width, height):
        return False
    return not _pairs(devices, width, height)


def _columns(devices: Devices, width: int, height: int) -> int:
    """In how many columns every device has room for a graph; 0 where it has not."""
    for columns in (1, 2) if devices else ():
        lines, column = height // -(-len(devices) // columns), (width - 2 * (columns - 1)) // columns
        if lines >= LEAST_BLOCK + (columns - 1) and column >= BLOCK_WIDTH:
            return columns
    return 0


def _pairs(devices: Devices, width: int, height: int) -> bool:
    """Whether two devices in a line are all of them."""
    return len(devices) <= min(MOST_PAIRED, 2 * height) and width >= 2 * LEAST_CELL + 1


def _trace(device: DeviceView, second: int, *, whole: bool) -> Trace:
    silent = max(0, second - device.second) if device.lost else 0
    if whole:
        return Trace(device.course, len(device.course), device.course_step, silent // device.course_step)
    return Trace(device.history, device.samples, 1, silent, device.shares)


def _with_graphs(view: View, columns: int) -> list[Row]:
    """A block of lines for each device, in one column or two, and below them, where there is one more, a line of
    times."""
    devices, width, height = view.snapshot.devices, view.width, view.height
    each, column = -(-len(devices) // columns), (width - 2 * (columns - 1)) // columns
    lines = max(LEAST_BLOCK, (height - 1) // each)
    room = max(SIDE, column * 2 // 5) if lines > LEAST_BLOCK else column - AXIS - LEAST_GRAPH
    packed = [_packed(device, lines - 1, room) for device in devices]
    side = max(sum(width_of(span.text) for span in gauges.signed(line)) for facts in packed for line in facts)
    size = column - side - AXIS
    traces = [_trace(device, view.snapshot.pace.second, whole=view.zoomed) for device in devices]
    longest = max(len(trace.values) + trace.silent for trace in traces)
    step = glyphs.step_for(min(longest, HISTORY), size)
    made: list[Row] = []
    for device, facts, trace in zip(devices, packed, traces, strict=True):
        ceiling = max(1, device.facts.ceiling_bytes)
        drawn = glyphs.chart(
            trace.values, trace.told, step, size, lines - 1, axis=AXIS, ceiling=ceiling, shares=trace.shares,
            style="context", label=partial(_label, ceiling), silent=trace.silent,
        )  # fmt: skip
        made.append(gauges.gauge(device, devices, column, bare=True))
        made += [(*fitted(gauges.signed(fact), side), *cells) for fact, cells in zip(facts, drawn, strict=True)]
    made += [(Span(" " * column),)] * (each * columns * lines - len(made))
    ages = glyphs.ages(size, min(size, -(-longest // step)), traces[0].seconds * step, live=goes_on(view.snapshot))
    times = [fitted([Span(" " * (side + AXIS)), Span(ages, "dim")], column)] * (each * lines < height)
    parts = [[*made[place * each * lines :][: each * lines], *times] for place in range(columns)]
    return [
        fitted([piece for row in line for piece in (*row, Span("  "))][:-1], width) for line in zip(*parts, strict=True)
    ]


def _label(ceiling: int, top: float) -> str:
    return f"{amount(top, ceiling)} {unit(ceiling)}"


def _packed(device: DeviceView, lines: int, width: int) -> list[list[gauges.Figure]]:
    """What is known of a device, on so many lines of at most `width` cells."""
    facts = gauges.known(device)
    each = -(-len(facts) // lines)
    packed = []
    for line in range(lines):
        mine = facts[line * each : (line + 1) * each]
        sizes = [width_of(fact.text) + 2 * bool(fact.style) for fact in mine]
        packed.append([mine[place] for place in kept(sizes, [fact.rank for fact in mine], width, 2)])
    return packed


def _paired(devices: Devices, width: int) -> list[Row]:
    """Two devices in a line, the first half of them in the left column."""
    lines, column = (len(devices) + 1) // 2, (width - 2) // 2
    cells = [gauges.gauge(device, devices, column) for device in devices]
    rows = [[span for cell in cells[line::lines] for span in (*cell, Span("  "))][:-1] for line in range(lines)]
    return [fitted(row, width) for row in rows]


def _worst(devices: Devices, width: int, height: int) -> list[Row]:
    """The lost and the fullest, in their usual order, and what is to be known of the others."""
    ranked = sorted(range(len(devices)), key=lambda place: (not devices[place].lost, -devices[place].share))
    shown = max(1, height - 1)
    rows = [gauges.gauge(devices[place], devices, width) for place in sorted(ranked[:shown])]
    others = [devices[place] for place in ranked[shown:]]
    return [*rows, fitted(gauges.rest(others, f"{len(others)} more"), width)][: max(1, height)]


PANE = PaneKind(
    "vram", 1, "Memory", rows, cursor, legend, last,
    help=[
        ("{zoom}", "the whole course of each device"),
        ("% !", "the sign behind a percentage: from 90 % of the ceiling on, and from 97 %"),
    ],
    sign="weights, activations, context, others; the tick is the ceiling, ^ the peak so far",
)  # fmt: skip
