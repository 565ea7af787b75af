"""A device as lines of a pane: its gauge with its numbers, and what is known of it beside that.

Memory is what this process occupies; percent is of what it may have: the ceiling, or less where others leave less.
"""

from collections.abc import Sequence
from typing import NamedTuple

from interlock.engine.record.facts import LEAST_DISK, LEAST_MEMORY, NOTICED, node_of, on_host
from interlock.engine.record.snapshot import DeviceView
from interlock.engine.record.words import human_bytes, safe
from interlock.engine.standing.health import CHECK
from interlock.widgets import glyphs
from interlock.widgets.formats import GIB, amount, gib, unit
from interlock.widgets.text import Row, Span, fit, fitted, kept, width_of

Devices = tuple[DeviceView, ...]
SHORT_BAR, USUAL_BAR = 10, 16
LABEL, MOST_LABEL, ROOMY, MOST_ALIKE = 22, 32, 90, 16
SIGNS = {"": " ", "warn": "▲", "error": "✖"}
"""What stands behind a percentage that is calm, near the ceiling, or as good as over it."""


class Figure(NamedTuple):
    """Something known of a device, and how long it stays on a narrow screen (`rank`, low stays); `style` is that of a
    part of the gauge, with its sign."""

    text: str
    rank: int
    style: str = ""
    sign: str = ""
    tone: str = "dim"


def gauge(device: DeviceView, devices: Devices, width: int, *, bare: bool = False) -> Row:
    """Name, bar and numbers in columns that fit all `devices`; the label, and unless it is `bare` what is known of it,
    as far as the bar keeps its usual width. Of a device that is lost, or silent yet, what is known instead."""
    on_nodes = any(node_of(each.facts.name) for each in devices)
    name = min(16 if on_nodes else 10, max(width_of(each.facts.name) for each in devices))
    spans = [Span(fit(device.facts.name, name), "bold"), Span(" ")]
    if device.lost:
        told = f" {device.lost.removeprefix('CUDA error: ')}" + f"; after the run: {CHECK}" * (not on_nodes)
        whole = f"{told}, {device.facts.label}"
        told = whole if name + 5 + width_of(whole) <= width else told
        return fitted([*spans, Span("LOST", "warn"), Span(told, "warn")], width)
    if not device.memory:
        size = f"{gib(device.facts.ceiling_bytes)}/{gib(device.facts.total_bytes)} GiB"
        return fitted([*spans, Span(f"{device.facts.label}, limit {size}, no reading yet", "dim")], width)
    numbers = _sizes(device).rjust(max(len(_sizes(each)) for each in devices))  # under one another
    fixed = name + 1 + width_of(numbers) + 1 + 5
    if fixed + 1 + SHORT_BAR > width:
        numbers = _sizes(device).replace(" of ", "/").rpartition(" ")[0]
        fixed = name + 1 + width_of(numbers) + 1 + 5
    spare = width - fixed - 1 - USUAL_BAR
    label = min(max(width_of(each.facts.label) for each in devices), LABEL if width < ROOMY else MOST_LABEL)
    # What stands beside one device takes as much of the others' lines: bars under one another have one scale.
    alike = [each for each in devices if each.memory and not each.lost] if len(devices) <= MOST_ALIKE else [device]
    beside = {each.facts.name: _beside(each, label, spare, bare=bare) for each in alike}
    if all(labelled for labelled, _ in beside.values()):
        spans += [Span(fit(device.facts.label, label), "dim"), Span(" ")]
    after = [Span(" " + fact.text, fact.tone) for fact in beside[device.facts.name][1]]
    most = max(sum(len(fact.text) + 1 for fact in facts) for _, facts in beside.values())
    bar = max(0, width - sum(width_of(span.text) for span in spans) - width_of(numbers) - 7 - most)
    style = level(device)
    share = Span(percent(device) + SIGNS[style], style)
    cells = glyphs.gauge(
        bar, device.facts.total_bytes, _parts(device), ceiling=device.facts.ceiling_bytes, peak=device.peak, near=style
    )
    spans += [*cells, Span(f" {numbers} "), share, *after]
    return fitted(spans, width)


def _beside(device: DeviceView, label: int, spare: int, *, bare: bool) -> tuple[bool, list[Figure]]:
    """Whether a device's label fits in its line, and what is known of it that does."""
    facts = [] if bare else _facts(device)
    sizes, ranks = [label, *(len(fact.text) for fact in facts)], [3, *(fact.rank for fact in facts)]
    shown = kept(sizes, ranks, spare - 1, 1) if spare > 0 else []
    return 0 in shown, [facts[place - 1] for place in shown if place]


def signed(facts: Sequence[Figure]) -> list[Span]:
    """Facts beside one another, those of a part of the gauge behind its sign."""
    spans: list[Span] = []
    for fact in facts:
        sign = [Span(fact.sign, fact.style), Span(" ")] if fact.style else []
        spans += [Span("  "), *sign, Span(fact.text, fact.tone)]
    return spans[1:]


def known(device: DeviceView) -> list[Figure]:
    """Tell all that is known of a device beside its gauge: weights, what the allocator holds beside them, and what the
    driver needs (a host tells only weights and rest); then its readings. Nothing of one that is lost or silent."""
    if device.lost or not device.memory:
        return []
    parts = _parts(device)
    facts = [Figure(f"weights {_size(device, parts.weights)}", 1, "fill", glyphs.WEIGHTS)]
    what = "act" if device.memory.reserved else "rest"
    facts.append(Figure(f"{what} {_size(device, parts.work)}", 1, "work", glyphs.WORK))
    if device.memory.reserved:
        facts.append(Figure(f"ctx {_size(device, parts.context)}", 7, "context", glyphs.CONTEXT))
    return facts + _facts(device)


def _facts(device: DeviceView) -> list[Figure]:
    """What else is known, each with its rank."""
    readings = device.readings
    facts = [Figure(f"free {_size(device, device.free)}", 0), Figure(f"^{_size(device, device.peak)}", 0)]
    if others := _others(device):
        rank = 0 if device.taken else 6
        facts.append(Figure(f"others {_size(device, others)}", rank, "others", glyphs.OTHERS))
    for holder in readings.holders if readings else ():
        held = "?" if holder.bytes is None else human_bytes(holder.bytes)
        facts.append(Figure(safe(" ".join(filter(None, (f"pid {holder.pid}", holder.user, held)))), 6))
    if readings and readings.temperature is not None:
        facts.append(Figure(f"{readings.temperature}C", 4))
    if readings and readings.utilisation is not None:
        facts.append(Figure(f"busy {readings.utilisation:>2}%", 4))
    if readings and readings.power is not None:
        limit = "" if readings.power_limit is None else f"/{readings.power_limit:.0f}"
        facts.append(Figure(f"{readings.power:.0f}{limit} W", 5))
    if readings and readings.throttled:
        facts.append(Figure(f"▲ slowed: {readings.throttled}", 1, tone="warn"))
    disk, memory = (readings.disk_free, readings.memory_free) if readings else (None, None)
    rooms = [("disk", disk, LEAST_DISK), ("host", None if on_host(device.facts.name) else memory, LEAST_MEMORY)]
    for what, free, least in rooms:
        if free is not None and free >= least:  # the header tells of too little: it is not the device's
            facts.append(Figure(f"{what} {human_bytes(free)} free", 3))
    if device.facts.ceiling_bytes < device.facts.total_bytes:
        ceiling, total = map(human_bytes, (device.facts.ceiling_bytes, device.facts.total_bytes))
        facts.append(Figure(f"ceiling {ceiling} of {total}", 8))
    return facts


def _parts(device: DeviceView) -> glyphs.Parts:
    """What the device's memory is taken by; of a host, all but weights is work."""
    used, reserved = device.occupied, device.memory.reserved if device.memory else 0
    weights = min(device.weights, used)
    work = max(0, min(reserved or used, used) - weights)
    return glyphs.Parts(weights, work, used - weights - work, _others(device))


def _sizes(device: DeviceView) -> str:
    """Used, of what the run may have: both that the percentage is made of."""
    return f"{_size(device, device.occupied)} of {amount(device.most, _most(device))} {unit(_most(device))}"


def _size(device: DeviceView, size: int) -> str:
    """A size of a device in the unit of its ceiling, in as many cells as it may come to need."""
    return f"{amount(size, _most(device)):>4}"


def _most(device: DeviceView) -> int:
    """What decides the unit: beside TiB, what a run takes of a large host would be next to nothing."""
    return min(device.facts.ceiling_bytes, GIB)


def _others(device: DeviceView) -> int:
    """What other processes have of it, where that is worth a word."""
    return device.others if device.others >= NOTICED else 0


def level(device: DeviceView) -> str:
    """Name the style of a device: near to what it may have, or others have what the next batch needs; worse where
    nothing is computed for that."""
    if device.taken:
        return "warn" if device.leased else "error"
    free = device.readings.memory_free if device.readings and on_host(device.facts.name) else None
    return "warn" if free is not None and free < LEAST_MEMORY else glyphs.level(device.share)


def percent(device: DeviceView) -> str:
    """Write that in four cells."""
    return f"{min(999, int(device.share * 100 + 1e-9)):>3}%"


def rest(others: Sequence[DeviceView], what: str) -> Row:
    """Tell of devices that are not shown: how many lost ones are among them, or how full the fullest is."""
    lost = sum(bool(device.lost) for device in others)
    more = f", {lost} LOST" if lost else f", none above {percent(max(others, key=lambda each: each.share)).strip()}"
    return (Span(f"and {what}{more}", "warn" if lost else "dim"),)
