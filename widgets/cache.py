"""The pane of what was saved and how fast it goes: models from the cache, vectors done before, rows a second.

Where it is high, graphs of the last minutes stand above that, of paces averaged over longer than a batch takes. On a
small screen `line` says the most of it in one line of another pane.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from interlock.engine.record.snapshot import CollectionView, PassView, Snapshot
from interlock.engine.record.words import human_bytes, several
from interlock.widgets import glyphs
from interlock.widgets.formats import amount, count, rates, smoothed, trouble, unit, unreal, window
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, fitted, kept, width_of, wrapped

LABEL, LEAST_HISTORY, MOST_HISTORY = 9, 8, 120
LEAST_GRAPH, MOST_GRAPH, SCALE = 3, 14, 7
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


class Cache(Pane):
    def draw(self, snapshot: Snapshot) -> None:
        self.show(rows(snapshot, self.inner_width, self.inner_height))

    detail = draw


def rows(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    """Draw at most `height` rows of `width` cells: on few lines, those that change."""
    facts = _facts(snapshot)
    whole = [fitted(spans, width) for _, fact in facts for spans in _lines(fact, width)]
    if graphs := _graphs(snapshot, width, height - len(whole) - 1):
        return [*graphs, (Span(" " * width),), *whole]
    pace, (rows_now, tokens_now) = snapshot.pace, rates(snapshot)
    ranked = [
        (0, _pace("texts/s", rows_now, pace.rows, snapshot, width)),
        (3, _pace("tokens/s", tokens_now, pace.tokens, snapshot, width)),
        *facts,
    ]
    most = sorted(rank for rank, _ in ranked)[: max(1, height)]
    return [fitted(spans, width) for rank, spans in ranked if rank in most]


def _facts(snapshot: Snapshot) -> list[tuple[int, list[Span]]]:
    """What was saved and what went wrong, a line each with its rank."""
    reused, wanted = _sums(snapshot.passes, "reused", "rows")
    computed = sum(each.done.rows for each in snapshot.passes)
    read, again, refused = _sums(snapshot.collections, "chunks", "duplicates", "refused")
    return [
        (2, _fact("models", _models(snapshot))),
        (1, _fact("vectors", f"{count(reused)} reused, {count(computed)} of {count(wanted)} computed")),
        (5, _fact("chunks", f"{count(read)} read, {several(again, 'duplicate')}, {refused} refused")),
        (4, _fact("trouble", *_trouble(snapshot))),
    ]


def _lines(fact: list[Span], width: int) -> list[list[Span]]:
    """A fact whole, on as many lines as it takes."""
    label, (text, style) = fact
    first, *rest = wrapped(text, width - LABEL)
    return [[label, Span(first, style)], *([Span(" " * LABEL), Span(line, style)] for line in rest)]


def _graphs(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    """Graphs of all that there is to draw, one line of times below them; nothing where they do not fit."""
    series = [each for each in _series(snapshot) if each.values]
    lines = min(MOST_GRAPH, (height - 1) // len(series) - 1) if series else 0
    size = width - SCALE - 1
    if lines < LEAST_GRAPH or size < LEAST_HISTORY:
        return []
    step = glyphs.step_for(max(len(each.values) for each in series), size)
    shown = [row for each in series for row in _graph(each, step, size, lines)]
    return [*shown, fitted([Span(" " * (SCALE + 1)), Span(glyphs.ages(size, size * step), "dim")], width)]


def _series(snapshot: Snapshot) -> list[Series]:
    """Paces, what is occupied on all devices, and how warm the warmest of them is."""
    pace, (rows_now, tokens_now), over = snapshot.pace, rates(snapshot), window(snapshot)
    note = " mean" * snapshot.over + (f" ({word})" if (word := unreal(snapshot)) else "")
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
        heat = _together([device.heat for device in here if device.heat], max)
        made.append(Series("warmest", f"{heat[-1] if heat else 0:>6.0f} C", heat, told, HOT))
    return made


def _together(histories: Sequence[Sequence[int]], pick: Callable[[Sequence[int]], int]) -> list[int]:
    """One value a second of several devices, of those that were there: a node may have joined since."""
    seconds = list(zip_longest(*(reversed(each) for each in histories)))
    return [pick([value for value in second if value is not None]) for second in reversed(seconds)]


def _graph(each: Series, step: int, width: int, height: int) -> list[Row]:
    """What it is now, and below that how it went, with its scale."""
    pick = max if each.ceiling else _mean
    values = glyphs.gathered(each.values, max(each.told, len(each.values)), step, width, pick)
    top = max(each.ceiling, *values, 0) if each.ceiling else glyphs.rounded_up(max(values))
    scale = {0: each.scale(top), height - 1: "0"}
    shown = [fitted(_fact(each.label, each.now, "bold"), SCALE + 1 + width)]
    for line, cells in enumerate(glyphs.graph(values, width, height, top=top, ceiling=each.ceiling)):
        shown.append((glyphs.axis(scale, line, SCALE + 1), *cells))
    return shown


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def line(snapshot: Snapshot, width: int) -> list[Row]:
    """Draw the most of it in one row, with as much of the history as there is room for."""
    rate, word = rates(snapshot)[0], unreal(snapshot)
    hits, downloads = _outcomes(snapshot)
    reused, parked = _sums(snapshot.passes, "reused", "parked")
    parts = [
        (0, f"{count(rate):>5} texts/s" + f" ({word})" * bool(word), ""),
        (1, f"{count(reused)} vectors reused", ""),
        (2, trouble(snapshot.mitigations, parked), "warn"),
        (3, f"models {hits} hit" + f" {downloads} new" * bool(downloads), "dim"),
    ]
    parts = [part for part in parts if part[1]]
    shown = kept([width_of(text) for _, text, _ in parts], [rank for rank, _, _ in parts], width, 2)
    spans = [piece for place in shown for piece in (Span("  "), Span(parts[place][1], parts[place][2]))][1:]
    spare = min(width - sum(width_of(span.text) for span in spans) - 1, MOST_HISTORY)
    if spare >= LEAST_HISTORY and rate:
        picture = glyphs.sparkline(smoothed(snapshot.pace.rows, window(snapshot)), spare)
        spans[1:1] = [Span(" "), Span(picture, "fill")]
    return [fitted(spans, width)]


def _pace(label: str, now: float, seconds: Sequence[int], snapshot: Snapshot, width: int) -> list[Span]:
    """The pace, how it went, and that it is not real where it is not."""
    word = unreal(snapshot)
    text = f"{count(now):>6}" + (" mean" if snapshot.over else "") + (f" ({word})" if word else "")
    spare = min(width - LABEL - width_of(text) - 2, MOST_HISTORY)
    values = smoothed(seconds, window(snapshot))
    history = glyphs.sparkline(values, spare) if spare >= LEAST_HISTORY else ""
    return [*_fact(label, text, "bold"), Span("  "), Span(history, "fill")]


def _fact(label: str, text: str, style: str = "") -> list[Span]:
    return [Span(label.ljust(LABEL), "dim"), Span(text, style)]


def _sums(views: Sequence[PassView] | Sequence[CollectionView], *names: str) -> list[int]:
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
    parts = [f"{hits} in cache"]
    parts += [f"{downloads} downloaded ({human_bytes(size)})"] * bool(downloads)
    parts += [several(snapshot.retries, "retry", "retries")] * bool(snapshot.retries)
    return ", ".join(parts)


def _trouble(snapshot: Snapshot) -> tuple[str, str]:
    """What an operator may want to look into, and its style."""
    (parked,) = _sums(snapshot.passes, "parked")
    parts = [several(snapshot.mitigations, "mitigation")] * bool(snapshot.mitigations)
    parts += [f"{several(parked, 'row')} parked"] * bool(parked)
    parts += [several(snapshot.warnings, "warning")] * bool(snapshot.warnings)
    return (", ".join(parts), "warn") if parts else ("none", "")
