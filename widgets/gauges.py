"""A device as lines of a pane: its gauge with its numbers, and what is known of it beside that.

Memory is what this process occupies; percent is of the ceiling.
"""

from collections.abc import Sequence
from typing import NamedTuple

from interlock.engine.record.facts import node_of
from interlock.engine.record.snapshot import DeviceView
from interlock.widgets import glyphs
from interlock.widgets.formats import GIB, MIB, amount, gib, unit
from interlock.widgets.text import Row, Span, fit, fitted, kept, width_of

SHORT_BAR, USUAL_BAR = 10, 16
LABEL, MOST_LABEL, ROOMY = 22, 32, 90
LEAST_HISTORY, MOST_HISTORY, HISTORY_RANK = 8, 60, 5
SIGNS = {"": " ", "warn": "▲", "error": "✖"}
"""What stands behind a percentage that is calm, near the ceiling, or as good as over it."""


class Figure(NamedTuple):
    """Something known of a device, and how long it stays on a narrow screen (`rank`, low stays); `style` is that of a
    part of the gauge, with its sign."""

    text: str
    rank: int
    style: str = ""
    sign: str = ""


def double(device: DeviceView, devices: tuple[DeviceView, ...], width: int) -> list[Row]:
    """The gauge, and below it what it is made of and how it went."""
    begin = _name_width(devices) + 1
    if device.lost or not device.memory:
        return [single(device, devices, width), (Span(" " * width),)]
    parts = known(device)
    sizes = [*(len(fact.text) for fact in parts), LEAST_HISTORY]
    shown = kept(sizes, [*(fact.rank for fact in parts), HISTORY_RANK], width - begin, 2)
    text = "  ".join(parts[place].text for place in shown if place < len(parts))
    spans = [Span(" " * begin), Span(text, "dim"), Span("  ")]
    if len(parts) in shown:
        size = min(width - begin - len(text) - 2, MOST_HISTORY)
        top = max(device.peak, *device.history, 1)
        spans.append(Span(glyphs.sparkline(device.history, size, top=top), "fill"))
    return [gauge(device, devices, width, []), fitted(spans, width)]


def single(device: DeviceView, devices: tuple[DeviceView, ...], width: int) -> Row:
    """The gauge with what is known of it, in columns that fit all `devices`."""
    if device.lost or not device.memory:
        return silent(device, devices, width)
    return gauge(device, devices, width, _facts(device))


def gauge(device: DeviceView, devices: tuple[DeviceView, ...], width: int, facts: list[Figure]) -> Row:
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
    style = glyphs.level(fraction(device))
    share = Span(percent(device) + SIGNS[style], style)
    spans += [*_bar(device, bar), Span(f" {numbers} "), share, Span(after, "dim")]
    return fitted(spans, width)


def silent(device: DeviceView, devices: tuple[DeviceView, ...], width: int) -> Row:
    """A device that is lost, or that has told nothing yet."""
    spans = [Span(fit(device.facts.name, _name_width(devices)), "bold"), Span(" ")]
    if device.lost:
        spans += [Span("LOST", "error"), Span(f" {device.facts.label}: {device.lost}", "warn")]
    else:
        size = f"{gib(device.facts.ceiling_bytes)}/{gib(device.facts.total_bytes)} GiB"
        spans += [Span(f"{device.facts.label}, limit {size}, no reading yet", "dim")]
    return fitted(spans, width)


def signed(facts: Sequence[Figure]) -> list[Span]:
    """Facts beside one another, those of a part of the gauge behind its sign."""
    spans: list[Span] = []
    for fact in facts:
        spans += [
            Span("  "),
            *([Span(fact.sign, fact.style), Span(" ")] if fact.style else []),
            Span(fact.text, "dim"),
        ]
    return spans[1:]


def known(device: DeviceView) -> list[Figure]:
    """Tell all that is known of a device beside its gauge."""
    return [*_made_of(device), *_facts(device)]


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


def _bar(device: DeviceView, width: int) -> list[Span]:
    facts = device.facts
    return glyphs.gauge(width, facts.total_bytes, _parts(device), ceiling=facts.ceiling_bytes, peak=device.peak)


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
    theirs = readings.others if readings.others is not None else readings.used - _used(device)
    return theirs if theirs >= 50 * MIB else 0


def fraction(device: DeviceView) -> float:
    """Return how much of its ceiling is occupied, 1 at the ceiling."""
    return _used(device) / device.facts.ceiling_bytes if device.facts.ceiling_bytes > 0 else 0.0


def percent(device: DeviceView) -> str:
    """Write that in four cells."""
    return f"{min(999, int(fraction(device) * 100 + 1e-9)):>3}%"


def _name_width(devices: tuple[DeviceView, ...]) -> int:
    on_nodes = any(node_of(device.facts.name) for device in devices)
    return min(16 if on_nodes else 10, max(width_of(device.facts.name) for device in devices))
