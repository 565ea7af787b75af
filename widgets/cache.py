"""The pane of what was saved and how fast it goes: models from the cache, vectors done before, rows a second.

On a small screen `line` says the most of it in one line of another pane.
"""

from collections.abc import Sequence

from interlock.engine.record.counting import several
from interlock.engine.record.snapshot import CollectionView, PassView, Snapshot
from interlock.engine.record.units import human_bytes
from interlock.widgets import glyphs
from interlock.widgets.formats import count, rates, trouble, unreal
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, ascii_only, fitted, kept, width_of

LABEL, LEAST_HISTORY, MOST_HISTORY = 9, 8, 120


class Cache(Pane):
    def draw(self, snapshot: Snapshot, *, ascii: bool = False) -> None:
        self.show(rows(snapshot, self.inner_width, self.inner_height, ascii=ascii))


def rows(snapshot: Snapshot, width: int, height: int, *, ascii: bool = False) -> list[Row]:
    """Draw at most `height` rows of `width` cells: on few lines, those that change."""
    pace, (rows_now, tokens_now) = snapshot.pace, rates(snapshot)
    reused, computed, wanted = _sums(snapshot.passes, "reused", "rows_done", "rows")
    read, again, refused = _sums(snapshot.collections, "chunks", "duplicates", "refused")
    ranked = [
        (0, _pace("texts/s", rows_now, pace.rows, snapshot, width, ascii)),
        (3, _pace("tokens/s", tokens_now, pace.tokens, snapshot, width, ascii)),
        (2, _fact("models", _models(snapshot))),
        (1, _fact("vectors", f"{count(reused)} reused, {count(computed)} of {count(wanted)} computed")),
        (5, _fact("chunks", f"{count(read)} read, {several(again, 'duplicate')}, {refused} refused")),
        (4, _fact("trouble", *_trouble(snapshot))),
    ]
    most = sorted(rank for rank, _ in ranked)[: max(1, height)]
    shown = [fitted(spans, width) for rank, spans in ranked if rank in most]
    return ascii_only(shown) if ascii else shown


def line(snapshot: Snapshot, width: int, *, ascii: bool = False) -> list[Row]:
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
        picture = glyphs.sparkline(_until_now(snapshot.pace.rows), spare, ascii=ascii)
        spans[1:1] = [Span(" "), Span(picture, "fill")]
    row = fitted(spans, width)
    return ascii_only([row]) if ascii else [row]


def _pace(label: str, now: float, seconds: Sequence[int], snapshot: Snapshot, width: int, ascii: bool) -> list[Span]:
    """The pace, how it went, and that it is not real where it is not."""
    word = unreal(snapshot)
    text = f"{count(now):>6}" + (" mean" if snapshot.over else "") + (f" ({word})" if word else "")
    spare = min(width - LABEL - width_of(text) - 2, MOST_HISTORY)
    history = glyphs.sparkline(_until_now(seconds), spare, ascii=ascii) if spare >= LEAST_HISTORY else ""
    return [*_fact(label, text, "bold"), Span("  "), Span(history, "fill")]


def _fact(label: str, text: str, style: str = "") -> list[Span]:
    return [Span(label.ljust(LABEL), "dim"), Span(text, style)]


def _until_now(seconds: Sequence[int]) -> list[int]:
    """The latest seconds; the last of all still counts."""
    return list(seconds)[-MOST_HISTORY - 1 : -1]


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
