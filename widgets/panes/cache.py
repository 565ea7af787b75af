"""The pane of what was saved and how fast it goes: models from the cache, vectors done before, rows a second.

Where it is high, graphs of the last minutes stand above that, of paces averaged over longer than a batch takes. On a
small screen `line` says the most of it in one line of another pane.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple

from interlock.engine.record.events import CollectionRead
from interlock.engine.record.snapshot import CollectionView, PassView, Snapshot
from interlock.engine.record.words import human_bytes, safe, several
from interlock.engine.standing.health import at_rest, goes_on
from interlock.widgets import glyphs
from interlock.widgets.formats import amount, count, lack_style, last, parked, rates, smoothed, unit, unreal, window
from interlock.widgets.pane import PaneKind, View
from interlock.widgets.text import Row, Span, fitted, kept, width_of, wrapped

LABEL, LEAST_HISTORY, MOST_HISTORY = 9, 8, 120
LEAST_GRAPH, MOST_GRAPH, SCALE = 3, 14, 8
"""Lines of a graph, and the cells of its scale."""
HOT = 100
"""Degrees that fill a graph."""


class Series(NamedTuple):
    """A number that is drawn as a graph: what it is now, and its latest values, one a second, of `told` in all.

    `ceiling` is the value that none should come near to; where there is none, the graph ends above the highest."""

    label: str
    now: str
    values: Sequence[float]
    told: int
    ceiling: float = 0
    scale: Callable[[float], str] = count


def rows(view: View) -> list[Row]:
    """Draw it in the lines that there are: on few, those that change."""
    snapshot, width, height = view.snapshot, view.width, view.height
    made = [*_paces(snapshot, width), *_facts(snapshot), *(_origins(snapshot) if view.zoomed else ())]
    whole = [fitted(spans, width) for rank, fact in made if rank not in PACES for spans in _lines(fact, width)]
    if graphs := _graphs(snapshot, width, height - len(whole) - 1):
        return [*graphs, (Span(" " * width),), *whole]
    most = sorted(rank for rank, _ in made)[: max(1, height)]
    return [fitted(spans, width) for rank, spans in made if rank in most]


PACES = (0, 3)
"""The ranks of what graphs say better."""


def _paces(snapshot: Snapshot, width: int) -> list[tuple[int, list[Span]]]:
    """The paces, and how they went, a line each with its rank."""
    lines = []
    for rank, each in zip(PACES, _series(snapshot), strict=False):
        spare = min(width - LABEL - width_of(each.now) - 2, MOST_HISTORY)
        history = glyphs.sparkline(each.values, spare) if spare >= LEAST_HISTORY else ""
        lines.append((rank, [*_fact(each.label, each.now, "bold"), Span("  "), Span(history, "fill")]))
    return lines


def _facts(snapshot: Snapshot) -> list[tuple[int, list[Span]]]:
    """What was saved and what was left out, a line each with its rank."""
    (wanted,) = _sums(snapshot.passes, "rows")
    before, there = _vectors(snapshot)
    new = f"{count(there - before)} of {count(wanted - before)} new"
    read, again = _sums([each.read for each in snapshot.collections], "chunks", "duplicates")
    (refused,) = _sums(snapshot.collections, "refused")
    return [
        (2, _fact("models", _models(snapshot))),
        (1, _fact("vectors", ", ".join([*_spared(snapshot), new]))),
        (5, _fact("chunks", f"{count(read)} read, {several(again, 'duplicate')}, {refused} refused")),
    ]


def _origins(snapshot: Snapshot) -> list[tuple[int, list[Span]]]:
    """Where the files of each model came from, in which revision, and what of them was downloaded."""
    lines = []
    for place, each in enumerate(snapshot.models):
        size, commit = human_bytes(each.bytes), f" at {each.commit[:10]}" if each.commit else ""
        how = f"in cache, {size} not downloaded" if each.outcome == "hit" else f"{each.outcome}, {size}"
        lines.append((6 + place, _fact("", f"{safe(each.model)} from {safe(each.source)}{commit}: {how}")))
    return lines


def _lines(fact: list[Span], width: int) -> list[list[Span]]:
    """A fact whole, on as many lines as it takes."""
    label, (text, style) = fact
    first, *rest = wrapped(text, width - LABEL)
    return [[label, Span(first, style)], *([Span(" " * LABEL), Span(line, style)] for line in rest)]


def _graphs(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    """Graphs of all that there is to draw, one line of times below them; nothing where they do not fit."""
    series = [each for each in _series(snapshot) if each.values]
    lines = min(MOST_GRAPH, (height - 1) // len(series) - 1) if series else 0
    size = width - SCALE
    if lines < LEAST_GRAPH or size < LEAST_HISTORY:
        return []
    longest = max(len(each.values) for each in series)
    step = glyphs.step_for(longest, size)
    shown: list[Row] = []
    for label, now, values, told, ceiling, scale in series:
        shown.append(fitted(_fact(label, now, "bold"), width))
        drawn = glyphs.chart(values, told, step, size, lines, axis=SCALE, label=scale, ceiling=ceiling)
        shown += [tuple(spans) for spans in drawn]
    ages = glyphs.ages(size, -(-longest // step), step, live=goes_on(snapshot))
    return [*shown, fitted([Span(" " * SCALE), Span(ages, "dim")], width)]


def _series(snapshot: Snapshot) -> list[Series]:
    """Paces, what is occupied on all devices, how warm the warmest of them is and, in the mean, how busy they are."""
    pace, (rows_now, tokens_now), over = snapshot.pace, rates(snapshot), window(snapshot)
    note = _note(snapshot)
    told = max(len(pace.rows), pace.second + 1) - 1  # the last one still counts
    made = [
        Series("texts/s", f"{count(rows_now):>6}{note}", smoothed(pace.rows, over), told),
        Series("tokens/s", f"{count(tokens_now):>6}{note}", smoothed(pace.tokens, over), told),
    ]
    here = [device for device in snapshot.devices if device.memory and not device.lost]
    if here:
        ceiling = sum(device.facts.ceiling_bytes for device in here)
        values, told = _together([device.history for device in here], sum), max(device.samples for device in here)
        now = sum(device.memory.occupied for device in here if device.memory)
        text = f"{amount(now, ceiling):>6} of {amount(ceiling, ceiling)} {unit(ceiling)}"
        made.append(Series("occupied", text, values, told, ceiling, lambda size: amount(size, ceiling)))
        told_of = [[each.told(figure) for each in here] for figure in ("temperature", "utilisation")]
        heat, busy = (list(filter(None, each)) for each in told_of)
        warmest, mean = _together(heat, max), _together(busy, fmean)
        made.append(Series("warmest", f"{warmest[-1] if warmest else 0:>6.0f} C", warmest, told, HOT))
        made.append(Series("busy", f"{mean[-1] if mean else 0:>5.0f}%", mean, told, scale="{:.0f}%".format))
    return made


def _together(histories: Sequence[Sequence[int]], pick: Callable[[Sequence[int]], float]) -> Sequence[float]:
    """One value a second of several devices, of those that were there: a node may have joined since."""
    seconds = list(zip_longest(*(reversed(each) for each in histories)))
    return [pick([value for value in second if value is not None]) for second in reversed(seconds)]


def line(snapshot: Snapshot, width: int) -> Row:
    """Draw the most of it in one row, with as much of the history as there is room for."""
    rate = rates(snapshot)[0]
    hits, downloads = _outcomes(snapshot)
    parts = [
        (0, f"{count(rate):>5} texts/s" + _note(snapshot), ""),
        (1, ", ".join(each.replace(" ", " vectors ") for each in _spared(snapshot)), ""),
        (2, parked(snapshot.parked), lack_style(snapshot)),
        (3, f"models {hits} on disk" + f" {downloads} new" * bool(downloads), "dim"),
    ]
    parts = [part for part in parts if part[1]]
    shown = kept([width_of(text) for _, text, _ in parts], [rank for rank, _, _ in parts], width, 2)
    spans = [piece for place in shown for piece in (Span("  "), Span(parts[place][1], parts[place][2]))][1:]
    spare = min(width - sum(width_of(span.text) for span in spans) - 1, MOST_HISTORY)
    if spare >= LEAST_HISTORY and rate:
        picture = glyphs.sparkline(smoothed(snapshot.pace.rows, window(snapshot)), spare)
        spans[1:1] = [Span(" "), Span(picture, "fill")]
    return fitted(spans, width)


def _note(snapshot: Snapshot) -> str:
    """What stands behind a pace: that it is a mean, that it is not real."""
    return " mean" * at_rest(snapshot) + (f" ({word})" if (word := unreal(snapshot)) else "")


def _fact(label: str, text: str, style: str = "") -> list[Span]:
    return [Span(label.ljust(LABEL), "dim"), Span(text, style)]


def _sums(views: Sequence[PassView | CollectionView | CollectionRead], *names: str) -> list[int]:
    return [sum(getattr(view, name) for view in views) for name in names]


def _outcomes(snapshot: Snapshot) -> tuple[int, int]:
    """Models that were in the cache, and those that were not."""
    hits = sum(model.outcome == "hit" for model in snapshot.models)
    return hits, len(snapshot.models) - hits


def _models(snapshot: Snapshot) -> str:
    if not snapshot.models:
        return "none resolved yet"
    hits, downloads = _outcomes(snapshot)
    size = sum(model.bytes for model in snapshot.models if model.outcome != "hit")
    parts = [f"{hits} on disk"]
    parts += [f"{downloads} new ({human_bytes(size)})"] * bool(downloads)
    parts += [several(snapshot.retries, "retry", "retries")] * bool(snapshot.retries)
    return ", ".join(parts)


def _vectors(snapshot: Snapshot) -> tuple[int, int]:
    """Vectors that there are: of earlier sessions, and in all."""
    there = sum(each.done.rows - each.parked for each in snapshot.passes)
    return min(snapshot.rows_before, there), there


def _spared(snapshot: Snapshot) -> list[str]:
    """Vectors that this session need not compute: of earlier sessions, and of other runs."""
    (reused,), (before, _) = _sums(snapshot.passes, "reused"), _vectors(snapshot)
    return [f"{count(before)} kept"] * bool(before) + [f"{count(reused)} reused"] * bool(reused)


def counter(snapshot: Snapshot) -> str:
    """How many of the models were there."""
    hits, downloads = _outcomes(snapshot)
    return " ".join(filter(None, [f"{hits} of {hits + downloads} models" * bool(hits + downloads), last(snapshot)]))


PANE = PaneKind(
    "cache", 5, "Cache", rows, counter=counter, help=[("{zoom}", "graphs of paces, memory, heat, busy share")]
)
