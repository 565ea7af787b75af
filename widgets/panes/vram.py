"""The pane of devices: how full each is, of what, and how near to the most that this run may occupy.

A device has one line, or two where there is room, or a graph of its last minutes below its gauge; many devices stand
two in a line, and of more than can be shown the worst are. Those of nodes are then folded: enter unfolds one.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from interlock.engine.record.snapshot import DeviceView
from interlock.engine.record.state import HISTORY
from interlock.widgets import cluster, gauges, glyphs
from interlock.widgets.cluster import Devices
from interlock.widgets.formats import amount, unit
from interlock.widgets.pane import Cursor, PaneKind, View
from interlock.widgets.text import Row, Span, fitted, kept, width_of

LEAST_CELL, MOST_PAIRED = 28, 8
LEAST_BLOCK, BLOCK_WIDTH, SIDE, AXIS = 3, 56, 27, 12
"""Lines and cells of a device with a graph, at least; cells of what stands beside the graph, and of its scale."""


class Trace(NamedTuple):
    """How a device went: the last of `told` values that there have been, one every `seconds`."""

    values: Sequence[int]
    told: int
    seconds: int


def legend(width: int) -> Row:
    """Say what the signs of a gauge mean, in its colours; nothing where there is no room to say so."""
    signs = {
        "weights": (glyphs.WEIGHTS, "fill"), "activations": (glyphs.WORK, "work"),
        "context": (glyphs.CONTEXT, "context"), "others": (glyphs.OTHERS, "others"),
        "ceiling": (glyphs.CEILING, "limit"), "peak": (glyphs.PEAK, "limit"),
    }  # fmt: skip
    spans = [
        piece for name, (sign, style) in signs.items() for piece in (Span(f" {sign}", style), Span(f" {name} ", "dim"))
    ]
    return tuple(spans) if sum(width_of(span.text) for span in spans) + 10 <= width else ()


def cursor(view: View) -> Cursor | None:
    """Folded nodes are lines to choose from, and to unfold."""
    if not folds(view.snapshot.devices, view.width, view.height):
        return None
    found = cluster.lines(view.snapshot.devices, view.opened)
    names = [line.name for line in found]
    place = names.index(view.chosen) if view.chosen in names else 0
    return Cursor(names, place, cluster.in_sight(len(names), place, view.height), branch=found[place].node)


def rows(view: View) -> list[Row]:
    """Draw devices in the lines that there are; graphs are of the last minutes, zoomed of the whole run."""
    devices, width, height = view.snapshot.devices, view.width, view.height
    if found := cursor(view):
        return cluster.rows(devices, view.opened, found, width, height, pointed=view.focused)
    return _with_graphs(devices, width, height, view.zoomed) or _shown(devices, width, height)


def _trace(device: DeviceView, whole: bool) -> Trace:
    if whole:
        return Trace(device.course, len(device.course), device.course_step)
    return Trace(device.history, device.samples, 1)


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
        lines, column = (height - 1) // -(-len(devices) // columns), (width - 2 * (columns - 1)) // columns
        if lines >= LEAST_BLOCK and column >= BLOCK_WIDTH:
            return columns
    return 0


def _pairs(devices: Devices, width: int, height: int) -> bool:
    """Whether two devices in a line are all of them."""
    return len(devices) <= min(MOST_PAIRED, 2 * height) and width >= 2 * LEAST_CELL + 1


def _with_graphs(devices: Devices, width: int, height: int, whole: bool) -> list[Row]:
    """A block of lines for each device, in one column or two, and below them one line of times; nothing where that
    does not fit."""
    columns = _columns(devices, width, height)
    if not columns:
        return []
    each, column = -(-len(devices) // columns), (width - 2 * (columns - 1)) // columns
    lines = (height - 1) // each
    packed = [_packed(device, lines - 1, max(SIDE, column * 2 // 5)) for device in devices]
    side = max(sum(width_of(span.text) for span in gauges.signed(line)) for facts in packed for line in facts)
    size, traces = column - side - AXIS, [_trace(device, whole) for device in devices]
    step = glyphs.step_for(min(max(len(trace.values) for trace in traces), HISTORY), size)
    made: list[Row] = []
    for device, trace in zip(devices, traces, strict=True):
        silent = device.lost or not device.memory
        about = device, devices, column
        made.append(gauges.silent(*about) if silent else gauges.gauge(*about, []))
        ceiling = max(1, device.facts.ceiling_bytes)
        drawn = glyphs.chart(
            trace.values, trace.told, step, size, lines - 1, axis=AXIS, ceiling=ceiling,
            label=partial(_label, ceiling),
        )  # fmt: skip
        facts = _packed(device, lines - 1, side)
        made += [(*fitted(gauges.signed(fact), side), *cells) for fact, cells in zip(facts, drawn, strict=True)]
    made += [(Span(" " * column),)] * (each * columns * lines - len(made))
    ages = glyphs.ages(size, size * traces[0].seconds * step)
    times = fitted([Span(" " * (side + AXIS)), Span(ages, "dim")], column)
    parts = [[*made[place * each * lines :][: each * lines], times] for place in range(columns)]
    joined = ([piece for part in parts for piece in (Span("  "), *part[line])] for line in range(len(parts[0])))
    return [fitted(spans[1:], width) for spans in joined]


def _label(ceiling: int, top: float) -> str:
    return f"{amount(top, ceiling)} {unit(ceiling)}"


def _packed(device: DeviceView, lines: int, width: int) -> list[list[gauges.Figure]]:
    """What is known of a device, on so many lines of at most `width` cells."""
    facts = gauges.known(device) if device.memory and not device.lost else []
    each = -(-len(facts) // lines)
    packed = []
    for line in range(lines):
        mine = facts[line * each : (line + 1) * each]
        sizes = [width_of(fact.text) + 2 * bool(fact.style) for fact in mine]
        packed.append([mine[place] for place in kept(sizes, [fact.rank for fact in mine], width, 2)])
    return packed


def _shown(devices: Devices, width: int, height: int) -> list[Row]:
    if not devices:
        return [fitted([Span("no device yet", "dim")], width)]
    if len(devices) * 2 <= height:
        return [row for device in devices for row in gauges.double(device, devices, width)]
    if len(devices) <= height:
        return [gauges.single(device, devices, width) for device in devices]
    if _pairs(devices, width, height):
        return _paired(devices, width)
    return _worst(devices, width, height)


def _paired(devices: Devices, width: int) -> list[Row]:
    """Two devices in a line, the first half of them in the left column."""
    lines, column = (len(devices) + 1) // 2, (width - 2) // 2
    cells = [gauges.single(device, devices, column) for device in devices]
    rows = [[span for cell in cells[line::lines] for span in (*cell, Span("  "))][:-1] for line in range(lines)]
    return [fitted(row, width) for row in rows]


def _worst(devices: Devices, width: int, height: int) -> list[Row]:
    """The lost and the fullest, in their usual order, and what is to be known of the others."""
    ranked = sorted(range(len(devices)), key=lambda place: (not devices[place].lost, -gauges.fraction(devices[place])))
    shown = max(1, height - 1)
    rows = [gauges.single(devices[place], devices, width) for place in sorted(ranked[:shown])]
    others = [devices[place] for place in ranked[shown:]]
    lost = sum(bool(device.lost) for device in others)
    text = f"and {len(others)} more" + (f", {lost} LOST" if lost else "")
    text += f", none above {gauges.percent(others[0]).strip()}" if not lost else ""
    return [*rows, fitted([Span(text, "warn" if lost else "dim")], width)][: max(1, height)]


PANE = PaneKind(
    "vram", 1, "VRAM", rows, cursor, legend,
    help=[
        ("{zoom}", "the whole course of each device"),
        ("% !", "the sign behind a percentage: from 90 % of the ceiling on, and from 97 %"),
    ],
    sign="weights, activations, context, others; the tick is the ceiling, ^ the peak so far",
)  # fmt: skip
