"""The pane of devices: how full each is, of what, and how near to the most that this run may occupy.

A device has one line, or two where there is room, or a graph of its last minutes below its gauge; many devices stand
two in a line, and of more than can be shown the worst are. Those of nodes are then folded: enter unfolds one.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType

from interlock.engine.record.facts import node_of
from interlock.engine.record.snapshot import DeviceView, Snapshot
from interlock.engine.record.state import HISTORY
from interlock.widgets import cluster, gauges, glyphs
from interlock.widgets.cluster import FOLDED, Devices, Fold
from interlock.widgets.formats import amount, unit
from interlock.widgets.pane import Chooser
from interlock.widgets.text import Row, Span, fitted, kept, width_of

LEAST_CELL, MOST_PAIRED = 28, 8
LEAST_BLOCK, BLOCK_WIDTH, SIDE, AXIS = 3, 56, 27, 12
"""Lines and cells of a device with a graph, at least; cells of what stands beside the graph, and of its scale."""


class Trace(NamedTuple):
    """How a device went: the last of `told` values that there have been, one every `seconds`."""

    values: Sequence[int]
    told: int
    seconds: int


class Vram(Chooser):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "unfold", "Unfold", show=False),
        Binding("right,l", "unfold(True)", "Unfold", show=False),
        Binding("left,h", "unfold(False)", "Fold", show=False),
    ]
    KEYS = "up/down choose  enter unfold"

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self._opened: frozenset[str] = frozenset()
        """The nodes that are unfolded."""
        self._at = self._chosen = ""
        """The line with the cursor; the one that an operator put it on, before which it is on the first."""
        self._lines: list[cluster.NodeLine] = []

    def draw(self, snapshot: Snapshot) -> None:
        """Show how full the devices are at this moment of the run."""
        self._draw(rows, snapshot)

    def detail(self, snapshot: Snapshot) -> None:
        """Show the whole course of every device."""
        self._draw(detail, snapshot)

    def _draw(self, made: Callable[..., list[Row]], snapshot: Snapshot) -> None:
        width, height, devices = self.inner_width, self.inner_height, snapshot.devices

        def draw(places: int) -> None:
            self._lines = cluster.lines(devices, self._opened)
            names = [line.name for line in self._lines]
            place = names.index(self._chosen) if self._chosen in names else 0
            self._at = names[max(0, min(place + places, len(names) - 1))]
            self._chosen = self._at if places else self._chosen
            fold = cluster.Fold(self._opened, self._at if self.has_focus else "")
            self.show(made(snapshot, width, height, fold=fold))

        self.entitle(below=legend(width))
        self._again = draw if folds(devices, width, height) else None
        if self._again:
            draw(0)
        else:
            self.show(made(snapshot, width, height))

    def action_unfold(self, wanted: bool | None = None) -> None:
        """Unfold the chosen node, or fold it; without `wanted`, whichever it is not."""
        if not self._again:
            raise SkipAction
        node = node_of(self._at) or self._at
        unfold = node not in self._opened if wanted is None else wanted
        self._opened = self._opened | {node} if unfold else self._opened - {node}
        self._chosen = self._at if unfold else node
        self._again(0)

    def on_click(self, event: events.Click) -> None:
        """Choose a line; unfold its node, or fold it."""
        place = event.get_content_offset(self)
        sight = cluster.in_sight(self._lines, self._at, self.inner_height)
        if self._again and place and place.y < len(sight):
            self._at = self._lines[sight[place.y]].name
            self.action_unfold()

    def on_focus(self, event: events.Focus) -> None:
        self.call_next(self._mark)

    def on_blur(self, event: events.Blur) -> None:
        """Go back to the top: who looks elsewhere has the worst in sight."""
        self._chosen = ""
        self.call_next(self._mark)

    def _mark(self) -> None:
        """Draw the cursor, or leave it out: only after a handler of ours the widget knows whether it has the focus."""
        if self._again:
            self._again(0)


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


def rows(snapshot: Snapshot, width: int, height: int, *, fold: Fold = FOLDED) -> list[Row]:
    """Draw at most `height` rows of `width` cells; a graph is of the last minutes."""
    return _drawn(snapshot.devices, width, height, fold, lambda each: Trace(each.history, each.samples, 1))


def detail(snapshot: Snapshot, width: int, height: int, *, fold: Fold = FOLDED) -> list[Row]:
    """Draw at most `height` rows of `width` cells; a graph is of the whole run."""

    def course(each: DeviceView) -> Trace:
        return Trace(each.course, len(each.course), each.course_step)

    return _drawn(snapshot.devices, width, height, fold, course)


def lines_wanted(devices: Devices) -> int:
    """Say how many lines devices could fill, those of many nodes when they are folded."""
    return len(devices) if cluster.several_nodes(devices) < 2 else max(cluster.several_nodes(devices), MOST_PAIRED)


def folds(devices: Devices, width: int, height: int) -> bool:
    """Tell whether the devices are of several nodes and too many to be shown one by one."""
    if cluster.several_nodes(devices) < 2 or len(devices) <= height or _columns(devices, width, height):
        return False
    return not _pairs(devices, width, height)


def _drawn(devices: Devices, width: int, height: int, fold: Fold, trace: Callable[[DeviceView], Trace]) -> list[Row]:
    if folds(devices, width, height):
        shown = cluster.rows(devices, fold, width, height)
    else:
        shown = _with_graphs(devices, width, height, trace) or _shown(devices, width, height)
    return shown


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


def _with_graphs(devices: Devices, width: int, height: int, trace: Callable[[DeviceView], Trace]) -> list[Row]:
    """A block of lines for each device, in one column or two, and below them one line of times; nothing where that
    does not fit."""
    columns = _columns(devices, width, height)
    if not columns:
        return []
    each, column = -(-len(devices) // columns), (width - 2 * (columns - 1)) // columns
    lines = (height - 1) // each
    panel = _Panel.of(devices, column, lines, trace)
    made = [row for device in devices for row in panel.block(device)]
    made += [(Span(" " * column),)] * (each * columns * lines - len(made))
    parts = [[*made[place * each * lines :][: each * lines], panel.times()] for place in range(columns)]
    joined = ([piece for part in parts for piece in (Span("  "), *part[line])] for line in range(len(parts[0])))
    return [fitted(spans[1:], width) for spans in joined]


class _Panel(NamedTuple):
    """What the blocks of all devices have in common, so that they stand under one another."""

    devices: Devices
    width: int
    lines: int
    side: int
    step: int
    """Values of a trace in a column of its graph."""
    trace: Callable[[DeviceView], Trace]

    @classmethod
    def of(cls, devices: Devices, width: int, lines: int, trace: Callable[[DeviceView], Trace]) -> "_Panel":
        texts = [_packed(each, lines - 1, max(SIDE, width * 2 // 5)) for each in devices]
        side = max(sum(width_of(span.text) for span in gauges.signed(line)) for text in texts for line in text)
        most = max(len(trace(each).values) for each in devices)
        graph = width - side - AXIS
        return cls(devices, width, lines, side, glyphs.step_for(min(most, HISTORY), graph), trace)

    def block(self, device: DeviceView) -> list[Row]:
        """A device's gauge; below it what it is made of, and how it went against its ceiling."""
        silent = device.lost or not device.memory
        about = device, self.devices, self.width
        head = gauges.silent(*about) if silent else gauges.gauge(*about, [])
        height, width = self.lines - 1, self.width - self.side - AXIS
        trace, ceiling = self.trace(device), max(1, device.facts.ceiling_bytes)
        values = glyphs.gathered(trace.values, trace.told or len(trace.values), self.step, width)
        top = max(ceiling, *values) if values else ceiling
        scale = {0: f"{amount(top, ceiling)} {unit(ceiling)}", height - 1: "0"}
        rows, facts = [head], _packed(device, height, self.side)
        drawn = glyphs.graph(values, width, height, top=top, ceiling=ceiling)
        for line, cells in enumerate(drawn):
            axis = glyphs.axis(scale, line, AXIS)
            rows.append((*fitted(gauges.signed(facts[line]), self.side), axis, *cells))
        return rows

    def times(self) -> Row:
        """When the columns of the graphs were."""
        width, seconds = self.width - self.side - AXIS, self.trace(self.devices[0]).seconds * self.step
        return fitted([Span(" " * (self.side + AXIS)), Span(glyphs.ages(width, width * seconds), "dim")], self.width)


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
