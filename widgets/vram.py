"""The pane of devices: how full each is, of what, and how near to the most that this run may occupy.

A device has one line, or two where there is room; many devices stand two in a line, and of more than can be shown the
worst are. Memory is what this process occupies, in GiB; percent is of the ceiling.
"""

from interlock.engine.record.snapshot import DeviceView, Snapshot
from interlock.widgets import glyphs
from interlock.widgets.formats import GIB, gib
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, ascii_only, fit, fitted, kept, width_of

SHORT_BAR, USUAL_BAR, LEAST_CELL = 10, 16, 28
MOST_PAIRED = 8
LEAST_HISTORY, MOST_HISTORY, HISTORY_RANK = 8, 60, 5
FULL, NEARLY_FULL = 0.97, 0.90


class Vram(Pane):
    def draw(self, snapshot: Snapshot, *, ascii: bool = False) -> None:
        """Show how full the devices are at this moment of the run."""
        self.entitle(below=legend(self.inner_width, ascii=ascii))
        self.show(rows(snapshot, self.inner_width, self.inner_height, ascii=ascii))


def legend(width: int, *, ascii: bool = False) -> str:
    """Say what the signs of a gauge mean; nothing where there is no room to say so."""
    signs = (glyphs.WEIGHTS, glyphs.WORK, glyphs.CEILING, glyphs.PEAK, glyphs.OTHERS)
    names = ("weights", "activations", "ceiling", "peak", "others")
    text = "  ".join(f"{sign[ascii]} {name}" for sign, name in zip(signs, names, strict=True))
    return text if len(text) + 24 <= width else ""


def rows(snapshot: Snapshot, width: int, height: int, *, ascii: bool = False) -> list[Row]:
    """Draw at most `height` rows of `width` cells."""
    shown = _shown(snapshot.devices, width, height, ascii)
    return ascii_only(shown) if ascii else shown


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
    sizes = [*(len(text) for text, _ in parts), LEAST_HISTORY]
    shown = kept(sizes, [*(rank for _, rank in parts), HISTORY_RANK], width - begin, 2)
    text = "  ".join(parts[place][0] for place in shown if place < len(parts))
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


def _gauge(
    device: DeviceView, devices: tuple[DeviceView, ...], width: int, ascii: bool, facts: list[tuple[str, int]]
) -> Row:
    """Name, bar and numbers; the label and `facts` as far as the bar keeps its usual width."""
    name = _name_width(devices)
    numbers = _sizes(device).rjust(max(len(_sizes(each)) for each in devices))  # under one another
    fixed = name + 1 + width_of(numbers) + 1 + 4
    if fixed + 1 + SHORT_BAR > width:
        numbers = f"{_cells(_used(device))}/{gib(device.facts.ceiling_bytes)}"
        fixed = name + 1 + width_of(numbers) + 1 + 4
    spare = width - fixed - 1 - USUAL_BAR
    label = min(max(width_of(each.facts.label) for each in devices), 22)
    texts = [text for text, _ in facts]
    shown = kept([label, *map(len, texts)], [3, *(rank for _, rank in facts)], spare - 1, 1) if spare > 0 else []
    after = "".join(" " + texts[place - 1] for place in shown if place)
    spans = [Span(fit(device.facts.name, name), "bold"), Span(" ")]
    if 0 in shown:
        spans += [Span(fit(device.facts.label, label), "dim"), Span(" ")]
    bar = max(0, width - sum(width_of(span.text) for span in spans) - width_of(numbers) - 6 - len(after))
    fraction = _fraction(device)
    style = "error" if fraction >= FULL else "warn" if fraction >= NEARLY_FULL else ""
    spans += [*_bar(device, bar, ascii), Span(f" {numbers} "), Span(_percent(device), style), Span(after, "dim")]
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


def _made_of(device: DeviceView) -> list[tuple[str, int]]:
    """Weights, what the allocator holds beside them, and what the driver needs; a host tells only weights and rest."""
    reserved, weights = device.memory.reserved if device.memory else 0, (f"weights {gib(device.weights)}", 1)
    if not reserved:
        return [weights, (f"rest {gib(max(0, _used(device) - device.weights))}", 1)]
    activations = f"act {_cells(max(0, reserved - device.weights))}"
    return [weights, (activations, 1), (f"ctx {gib(max(0, _used(device) - reserved))}", 7)]


def _facts(device: DeviceView) -> list[tuple[str, int]]:
    """What else is known, each with its rank."""
    facts, readings = [(f"^{_cells(device.peak)}", 0)], device.readings
    if readings and readings.temperature is not None:
        facts.append((f"{readings.temperature}C", 4))
    if readings and readings.utilisation is not None:
        facts.append((f"busy {readings.utilisation:>2}%", 4))
    if others := _others(device):
        facts.append((f"others {gib(others)}", 6))
    return facts


def _bar(device: DeviceView, width: int, ascii: bool) -> list[Span]:
    facts, used, others = device.facts, _used(device), _others(device)
    weights, ceiling, peak = min(device.weights, used), facts.ceiling_bytes, device.peak
    sizes = {"weights": weights, "used": used, "ceiling": ceiling, "peak": peak, "others": others}
    return glyphs.gauge(width, facts.total_bytes, **sizes, ascii=ascii)


def _sizes(device: DeviceView) -> str:
    """Used, the ceiling where it is below the total, and the total."""
    facts = device.facts
    ceiling = f"{gib(facts.ceiling_bytes)}/" if facts.ceiling_bytes < facts.total_bytes else ""
    return f"{_cells(_used(device))}/{ceiling}{gib(facts.total_bytes)} GiB"


def _cells(size: int) -> str:
    return f"{gib(size):>4}"


def _used(device: DeviceView) -> int:
    return device.memory.occupied if device.memory else 0


def _others(device: DeviceView) -> int:
    """What other processes have of it; of a host it is what is not free and not ours."""
    readings = device.readings
    if not readings:
        return 0
    known = readings.others if readings.others is not None else readings.used - _used(device)
    return known if known >= 0.05 * GIB else 0


def _fraction(device: DeviceView) -> float:
    return _used(device) / device.facts.ceiling_bytes if device.facts.ceiling_bytes > 0 else 0.0


def _percent(device: DeviceView) -> str:
    return f"{min(999, int(_fraction(device) * 100 + 1e-9)):>3}%"


def _name_width(devices: tuple[DeviceView, ...]) -> int:
    return min(10, max(width_of(device.facts.name) for device in devices))
