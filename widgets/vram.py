"""The pane of devices: how full each is, of what, and how near to the most that this run may occupy.

A device has one line, or two where there is room, or a graph of its last minutes below its gauge; many devices stand
two in a line, and of more than can be shown the worst are. Memory is what this process occupies; percent is of the
ceiling.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from interlock.engine.record.snapshot import DeviceView, Snapshot
from interlock.engine.record.state import HISTORY
from interlock.widgets import glyphs
from interlock.widgets.formats import GIB, MIB, amount, gib, unit
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, ascii_only, fit, fitted, kept, width_of

SHORT_BAR, USUAL_BAR, LEAST_CELL = 10, 16, 28
MOST_PAIRED, LABEL, MOST_LABEL, ROOMY = 8, 22, 32, 90
LEAST_HISTORY, MOST_HISTORY, HISTORY_RANK = 8, 60, 5
LEAST_BLOCK, BLOCK_WIDTH, SIDE, AXIS = 3, 56, 27, 12
"""Lines and cells of a device with a graph, at least; cells of what stands beside the graph, and of its scale."""
SIGNS = {"": (" ", " "), "warn": ("▲", "!"), "error": ("✖", "X")}
"""What stands behind a percentage that is calm, near the ceiling, or as good as over it."""


class Trace(NamedTuple):
    """How a device went: the last of `told` values that there have been, one every `seconds`."""

    values: Sequence[int]
    told: int
    seconds: int


class Figure(NamedTuple):
    """Something known of a device, and how long it stays on a narrow screen (`rank`, low stays); `style` is that of a
    part of the gauge, with its sign."""

    text: str
    rank: int
    style: str = ""
    sign: tuple[str, str] = ("", "")


class Vram(Pane):
    def draw(self, snapshot: Snapshot, *, ascii: bool = False) -> None:
        """Show how full the devices are at this moment of the run."""
        self.entitle(below=legend(self.inner_width, ascii=ascii))
        self.show(rows(snapshot, self.inner_width, self.inner_height, ascii=ascii))

    def detail(self, snapshot: Snapshot, *, ascii: bool = False) -> None:
        """Show the whole course of every device."""
        self.entitle(below=legend(self.inner_width, ascii=ascii))
        self.show(detail(snapshot, self.inner_width, self.inner_height, ascii=ascii))


def legend(width: int, *, ascii: bool = False) -> Row:
    """Say what the signs of a gauge mean, in its colours; nothing where there is no room to say so."""
    signs = {
        "weights": (glyphs.WEIGHTS, "fill"), "activations": (glyphs.WORK, "work"),
        "context": (glyphs.CONTEXT, "context"), "others": (glyphs.OTHERS, "others"),
        "ceiling": (glyphs.CEILING, "limit"), "peak": (glyphs.PEAK, "limit"),
    }  # fmt: skip
    spans = [
        piece
        for name, (sign, style) in signs.items()
        for piece in (Span(f" {sign[ascii]}", style), Span(f" {name} ", "dim"))
    ]
    return tuple(spans) if sum(width_of(span.text) for span in spans) + 10 <= width else ()


def rows(snapshot: Snapshot, width: int, height: int, *, ascii: bool = False) -> list[Row]:
    """Draw at most `height` rows of `width` cells; a graph is of the last minutes."""
    return _drawn(snapshot.devices, width, height, ascii, lambda each: Trace(each.history, each.samples, 1))


def detail(snapshot: Snapshot, width: int, height: int, *, ascii: bool = False) -> list[Row]:
    """Draw at most `height` rows of `width` cells; a graph is of the whole run."""

    def course(each: DeviceView) -> Trace:
        return Trace(each.course, len(each.course), each.course_step)

    return _drawn(snapshot.devices, width, height, ascii, course)


def _drawn(
    devices: tuple[DeviceView, ...], width: int, height: int, ascii: bool, trace: Callable[[DeviceView], Trace]
) -> list[Row]:
    shown = _with_graphs(devices, width, height, ascii, trace) or _shown(devices, width, height, ascii)
    return ascii_only(shown) if ascii else shown


def _with_graphs(
    devices: tuple[DeviceView, ...], width: int, height: int, ascii: bool, trace: Callable[[DeviceView], Trace]
) -> list[Row]:
    """A block of lines for each device, in one column or two, and below them one line of times; nothing where that
    does not fit."""
    for columns in (1, 2) if devices else ():
        each, column = -(-len(devices) // columns), (width - 2 * (columns - 1)) // columns
        lines = (height - 1) // each
        if lines < LEAST_BLOCK or column < BLOCK_WIDTH:
            continue
        panel = _Panel.of(devices, column, lines, trace, ascii)
        made = [row for device in devices for row in panel.block(device)]
        made += [(Span(" " * column),)] * (each * columns * lines - len(made))
        parts = [[*made[place * each * lines :][: each * lines], panel.times()] for place in range(columns)]
        joined = ([piece for part in parts for piece in (Span("  "), *part[line])] for line in range(len(parts[0])))
        return [fitted(spans[1:], width) for spans in joined]
    return []


class _Panel(NamedTuple):
    """What the blocks of all devices have in common, so that they stand under one another."""

    devices: tuple[DeviceView, ...]
    width: int
    lines: int
    side: int
    step: int
    """Values of a trace in a column of its graph."""
    trace: Callable[[DeviceView], Trace]
    ascii: bool

    @classmethod
    def of(
        cls, devices: tuple[DeviceView, ...], width: int, lines: int, trace: Callable[[DeviceView], Trace], ascii: bool
    ) -> "_Panel":
        texts = [_packed(each, lines - 1, max(SIDE, width * 2 // 5)) for each in devices]
        side = max(sum(width_of(span.text) for span in _signed(line, ascii)) for text in texts for line in text)
        most = max(len(trace(each).values) for each in devices)
        graph = width - side - AXIS
        return cls(devices, width, lines, side, glyphs.step_for(min(most, HISTORY), graph), trace, ascii)

    def block(self, device: DeviceView) -> list[Row]:
        """A device's gauge; below it what it is made of, and how it went against its ceiling."""
        silent = device.lost or not device.memory
        about = device, self.devices, self.width
        head = _silent(*about) if silent else _gauge(*about, self.ascii, [])
        height, width = self.lines - 1, self.width - self.side - AXIS
        trace, ceiling = self.trace(device), max(1, device.facts.ceiling_bytes)
        values = glyphs.gathered(trace.values, trace.told or len(trace.values), self.step, width)
        top = max(ceiling, *values) if values else ceiling
        scale = {0: f"{amount(top, ceiling)} {unit(ceiling)}", height - 1: "0"}
        rows, facts = [head], _packed(device, height, self.side)
        drawn = glyphs.graph(values, width, height, top=top, ceiling=ceiling, ascii=self.ascii)
        for line, cells in enumerate(drawn):
            axis = glyphs.axis(scale, line, AXIS, ascii=self.ascii)
            rows.append((*fitted(_signed(facts[line], self.ascii), self.side), axis, *cells))
        return rows

    def times(self) -> Row:
        """When the columns of the graphs were."""
        width, seconds = self.width - self.side - AXIS, self.trace(self.devices[0]).seconds * self.step
        return fitted([Span(" " * (self.side + AXIS)), Span(glyphs.ages(width, width * seconds), "dim")], self.width)


def _packed(device: DeviceView, lines: int, width: int) -> list[list[Figure]]:
    """What is known of a device, on so many lines of at most `width` cells."""
    facts = [*_made_of(device), *_facts(device)] if device.memory and not device.lost else []
    each = -(-len(facts) // lines)
    packed = []
    for line in range(lines):
        mine = facts[line * each : (line + 1) * each]
        sizes = [width_of(fact.text) + 2 * bool(fact.style) for fact in mine]
        packed.append([mine[place] for place in kept(sizes, [fact.rank for fact in mine], width, 2)])
    return packed


def _signed(facts: Sequence[Figure], ascii: bool) -> list[Span]:
    """Facts beside one another, those of a part of the gauge behind its sign."""
    spans: list[Span] = []
    for fact in facts:
        spans += [
            Span("  "),
            *([Span(fact.sign[ascii], fact.style), Span(" ")] if fact.style else []),
            Span(fact.text, "dim"),
        ]
    return spans[1:]


def _shown(devices: tuple[DeviceView, ...], width: int, height: int, ascii: bool) -> list[Row]:
    if not devices:
        return [fitted([Span("no device yet", "dim")], width)]
    if len(devices) * 2 <= height:
        return [row for device in devices for row in _double(device, devices, width, ascii)]
    if len(devices) <= height:
        return [_single(device, devices, width, ascii) for device in devices]
    if len(devices) <= min(MOST_PAIRED, 2 * height) and width >= 2 * LEAST_CELL + 1:
        return _paired(devices, width, ascii)
    return _worst(devices, width, height, ascii)


def _double(device: DeviceView, devices: tuple[DeviceView, ...], width: int, ascii: bool) -> list[Row]:
    """The gauge, and below it what it is made of and how it went."""
    begin = _name_width(devices) + 1
    if device.lost or not device.memory:
        return [_single(device, devices, width, ascii), (Span(" " * width),)]
    parts = [*_made_of(device), *_facts(device)]
    sizes = [*(len(fact.text) for fact in parts), LEAST_HISTORY]
    shown = kept(sizes, [*(fact.rank for fact in parts), HISTORY_RANK], width - begin, 2)
    text = "  ".join(parts[place].text for place in shown if place < len(parts))
    spans = [Span(" " * begin), Span(text, "dim"), Span("  ")]
    if len(parts) in shown:
        size = min(width - begin - len(text) - 2, MOST_HISTORY)
        top = max(device.peak, *device.history, 1)
        spans.append(Span(glyphs.sparkline(device.history, size, top=top, ascii=ascii), "fill"))
    return [_gauge(device, devices, width, ascii, []), fitted(spans, width)]


def _single(device: DeviceView, devices: tuple[DeviceView, ...], width: int, ascii: bool) -> Row:
    if device.lost or not device.memory:
        return _silent(device, devices, width)
    return _gauge(device, devices, width, ascii, _facts(device))


def _gauge(device: DeviceView, devices: tuple[DeviceView, ...], width: int, ascii: bool, facts: list[Figure]) -> Row:
    """Name, bar and numbers; the label and `facts` as far as the bar keeps its usual width."""
    name = _name_width(devices)
    numbers = _sizes(device).rjust(max(len(_sizes(each)) for each in devices))  # under one another
    fixed = name + 1 + width_of(numbers) + 1 + 5
    if fixed + 1 + SHORT_BAR > width:
        numbers = _against_ceiling(device)
        fixed = name + 1 + width_of(numbers) + 1 + 5
    spare = width - fixed - 1 - USUAL_BAR
    label = min(max(width_of(each.facts.label) for each in devices), LABEL if width < ROOMY else MOST_LABEL)
    texts = [fact.text for fact in facts]
    shown = kept([label, *map(len, texts)], [3, *(fact.rank for fact in facts)], spare - 1, 1) if spare > 0 else []
    after = "".join(" " + texts[place - 1] for place in shown if place)
    spans = [Span(fit(device.facts.name, name), "bold"), Span(" ")]
    if 0 in shown:
        spans += [Span(fit(device.facts.label, label), "dim"), Span(" ")]
    bar = max(0, width - sum(width_of(span.text) for span in spans) - width_of(numbers) - 7 - len(after))
    style = glyphs.level(_fraction(device))
    percent = Span(_percent(device) + SIGNS[style][ascii], style)
    spans += [*_bar(device, bar, ascii), Span(f" {numbers} "), percent, Span(after, "dim")]
    return fitted(spans, width)


def _silent(device: DeviceView, devices: tuple[DeviceView, ...], width: int) -> Row:
    """A device that is lost, or that has told nothing yet."""
    spans = [Span(fit(device.facts.name, _name_width(devices)), "bold"), Span(" ")]
    if device.lost:
        spans += [Span("LOST", "error"), Span(f" {device.facts.label}: {device.lost}", "warn")]
    else:
        size = f"{gib(device.facts.ceiling_bytes)}/{gib(device.facts.total_bytes)} GiB"
        spans += [Span(f"{device.facts.label}, limit {size}, no reading yet", "dim")]
    return fitted(spans, width)


def _paired(devices: tuple[DeviceView, ...], width: int, ascii: bool) -> list[Row]:
    """Two devices in a line, the first half of them in the left column."""
    lines, column = (len(devices) + 1) // 2, (width - 2) // 2
    cells = [_single(device, devices, column, ascii) for device in devices]
    rows = [[span for cell in cells[line::lines] for span in (*cell, Span("  "))][:-1] for line in range(lines)]
    return [fitted(row, width) for row in rows]


def _worst(devices: tuple[DeviceView, ...], width: int, height: int, ascii: bool) -> list[Row]:
    """The lost and the fullest, in their usual order, and what is to be known of the others."""
    ranked = sorted(range(len(devices)), key=lambda place: (not devices[place].lost, -_fraction(devices[place])))
    shown = max(1, height - 1)
    rows = [_single(devices[place], devices, width, ascii) for place in sorted(ranked[:shown])]
    others = [devices[place] for place in ranked[shown:]]
    lost = sum(bool(device.lost) for device in others)
    text = f"and {len(others)} more" + (f", {lost} LOST" if lost else "")
    text += f", none above {_percent(others[0]).strip()}" if not lost else ""
    return [*rows, fitted([Span(text, "warn" if lost else "dim")], width)][: max(1, height)]


def _made_of(device: DeviceView) -> list[Figure]:
    """Weights, what the allocator holds beside them, and what the driver needs; a host tells only weights and rest."""
    parts = _parts(device)
    facts = [Figure(f"weights {_size(device, parts.weights)}", 1, "fill", glyphs.WEIGHTS)]
    if not (device.memory and device.memory.reserved):
        return [*facts, Figure(f"rest {_size(device, parts.work)}", 1, "work", glyphs.WORK)]
    facts.append(Figure(f"act {_size(device, parts.work)}", 1, "work", glyphs.WORK))
    return [*facts, Figure(f"ctx {_size(device, parts.context)}", 7, "context", glyphs.CONTEXT)]


def _facts(device: DeviceView) -> list[Figure]:
    """What else is known, each with its rank."""
    facts, readings = [Figure(f"^{_size(device, device.peak)}", 0)], device.readings
    if readings and readings.temperature is not None:
        facts.append(Figure(f"{readings.temperature}C", 4))
    if readings and readings.utilisation is not None:
        facts.append(Figure(f"busy {readings.utilisation:>2}%", 4))
    if others := _others(device):
        facts.append(Figure(f"others {_size(device, others)}", 6, "others", glyphs.OTHERS))
    if device.facts.ceiling_bytes < GIB:  # which the numbers beside the bar then leave out
        facts.append(Figure(f"card {gib(device.facts.total_bytes)} GiB", 8))
    return facts


def _parts(device: DeviceView) -> glyphs.Parts:
    """What the device's memory is taken by; of a host, all but weights is work."""
    used, reserved = _used(device), device.memory.reserved if device.memory else 0
    weights = min(device.weights, used)
    work = max(0, min(reserved or used, used) - weights)
    return glyphs.Parts(weights, work, used - weights - work, _others(device))


def _bar(device: DeviceView, width: int, ascii: bool) -> list[Span]:
    facts = device.facts
    return glyphs.gauge(
        width, facts.total_bytes, _parts(device), ceiling=facts.ceiling_bytes, peak=device.peak, ascii=ascii
    )


def _sizes(device: DeviceView) -> str:
    """Used, the ceiling where it is below the total, and the total; of a ceiling in MiB, used and that."""
    facts = device.facts
    total = f"/{gib(facts.total_bytes)}" if GIB <= facts.ceiling_bytes < facts.total_bytes else ""
    return f"{_against_ceiling(device)}{total} {unit(facts.ceiling_bytes)}"


def _against_ceiling(device: DeviceView) -> str:
    ceiling = device.facts.ceiling_bytes
    return f"{_size(device, _used(device))}/{amount(ceiling, ceiling)}"


def _size(device: DeviceView, size: int) -> str:
    """A size of a device in the unit of its ceiling, in as many cells as it may come to need."""
    return f"{amount(size, device.facts.ceiling_bytes):>4}"


def _used(device: DeviceView) -> int:
    return device.memory.occupied if device.memory else 0


def _others(device: DeviceView) -> int:
    """What other processes have of it; of a host it is what is not free and not ours."""
    readings = device.readings
    if not readings:
        return 0
    known = readings.others if readings.others is not None else readings.used - _used(device)
    return known if known >= 50 * MIB else 0


def _fraction(device: DeviceView) -> float:
    return _used(device) / device.facts.ceiling_bytes if device.facts.ceiling_bytes > 0 else 0.0


def _percent(device: DeviceView) -> str:
    return f"{min(999, int(_fraction(device) * 100 + 1e-9)):>3}%"


def _name_width(devices: tuple[DeviceView, ...]) -> int:
    return min(10, max(width_of(device.facts.name) for device in devices))
