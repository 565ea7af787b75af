"""The pane of what was saved and how fast it goes: models from the cache, vectors done before, rows a second.

On a small screen `line` says the most of it in one line of another pane.
"""

from collections.abc import Sequence

from interlock.engine.record.counting import several
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.units import human_bytes
from interlock.widgets import glyphs
from interlock.widgets.formats import count, rates, trouble, unreal
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, fitted, kept, width_of

LABEL, LEAST_HISTORY, MOST_HISTORY = 9, 8, 120


class Cache(Pane):
    """Cache and throughput."""

    def tell(self, snapshot: Snapshot, *, ascii: bool = False) -> None:
        """Show this moment of the run."""
        self.show(rows(snapshot, self.inner_width, self.inner_height, ascii=ascii))


def rows(snapshot: Snapshot, width: int, height: int, *, ascii: bool = False) -> list[Row]:
    """At most `height` rows of `width` cells: on few lines, those that change."""
    rows_now, tokens_now = rates(snapshot)
    pace = snapshot.pace
    made = [
        (0, _pace("texts/s", rows_now, pace.rows, snapshot, width, ascii)),
        (3, _pace("tokens/s", tokens_now, pace.tokens, snapshot, width, ascii)),
        (2, _told("models", *_models(snapshot), width=width, ascii=ascii)),
        (1, _told("vectors", *_vectors(snapshot), width=width, ascii=ascii)),
        (5, _told("chunks", *_chunks(snapshot), width=width, ascii=ascii)),
        (4, _told("trouble", *_trouble(snapshot), width=width, ascii=ascii)),
    ]
    most = sorted(rank for rank, _ in made)[: max(1, height)]
    return [row for rank, row in made if rank in most]


def line(snapshot: Snapshot, width: int, *, ascii: bool = False) -> list[Row]:
    """The most of it in one row, with as much of the history as there is room for."""
    rate = rates(snapshot)[0]
    word = unreal(snapshot)
    hits, downloads = _outcomes(snapshot)
    reused = sum(each.reused for each in snapshot.passes)
    parts = [
        (0, f"{count(rate):>5} texts/s" + f" ({word})" * bool(word), ""),
        (1, f"{count(reused)} vectors reused", ""),
        (2, trouble(snapshot.mitigations, sum(each.parked for each in snapshot.passes)), "warn"),
        (3, f"models {hits} hit" + f" {downloads} new" * bool(downloads), "dim"),
    ]
    parts = [part for part in parts if part[1]]
    shown = kept([width_of(text) for _, text, _ in parts], [rank for rank, _, _ in parts], width, 2)
    spans = [piece for place in shown for piece in (Span("  "), Span(parts[place][1], parts[place][2]))][1:]
    spare = min(width - sum(width_of(span.text) for span in spans) - 1, MOST_HISTORY)
    if spare >= LEAST_HISTORY and rate:
        picture = glyphs.sparkline(_whole(snapshot.pace.rows), spare, ascii=ascii)
        spans[1:1] = [Span(" "), Span(picture, "fill")]
    return [fitted(spans, width, ascii=ascii)]


def _pace(label: str, now: float, told: Sequence[int], snapshot: Snapshot, width: int, ascii: bool) -> Row:
    """The pace, how it went, and that it is not real where it is not."""
    word = unreal(snapshot)
    text = f"{count(now):>6}" + (" mean" if snapshot.over else "") + (f" ({word})" if word else "")
    spans = [Span(label.ljust(LABEL), "dim"), Span(text, "bold"), Span("  ")]
    spare = min(width - LABEL - width_of(text) - 2, MOST_HISTORY)
    if spare >= LEAST_HISTORY:
        spans.append(Span(glyphs.sparkline(_whole(told), spare, ascii=ascii), "fill"))
    return fitted(spans, width, ascii=ascii)


def _whole(told: Sequence[int]) -> list[int]:
    """The latest seconds; the last of all still counts."""
    return list(told)[-MOST_HISTORY - 1 :][:-1]


def _told(label: str, text: str, style: str = "", *, width: int, ascii: bool) -> Row:
    return fitted([Span(label.ljust(LABEL), "dim"), Span(text, style)], width, ascii=ascii)


def _models(snapshot: Snapshot) -> tuple[str]:
    """Which were here already, and what was fetched."""
    hits, downloads = _outcomes(snapshot)
    size = sum(model.bytes for model in snapshot.models if model.outcome != "hit")
    told = [f"{hits} in cache"]
    told += [f"{downloads} downloaded ({human_bytes(size)})"] * bool(downloads)
    told += [f"{snapshot.retries} {'retry' if snapshot.retries == 1 else 'retries'}"] * bool(snapshot.retries)
    return (", ".join(told) if snapshot.models else "none resolved yet",)


def _outcomes(snapshot: Snapshot) -> tuple[int, int]:
    hits = sum(model.outcome == "hit" for model in snapshot.models)
    return hits, len(snapshot.models) - hits


def _vectors(snapshot: Snapshot) -> tuple[str]:
    """Reused from earlier runs, and computed in this one."""
    reused, done = (sum(getattr(each, name) for each in snapshot.passes) for name in ("reused", "rows_done"))
    of = sum(each.rows for each in snapshot.passes)
    return (f"{count(reused)} reused, {count(done)} of {count(of)} computed",)


def _chunks(snapshot: Snapshot) -> tuple[str]:
    """What was read, and what of it needed no vector of its own."""
    read, again, refused = (
        sum(getattr(each, name) for each in snapshot.collections) for name in ("chunks", "duplicates", "refused")
    )
    return (f"{count(read)} read, {several(again, 'duplicate')}, {refused} refused",)


def _trouble(snapshot: Snapshot) -> tuple[str, str]:
    """What an operator may want to look into, and how it is to look."""
    parked = sum(each.parked for each in snapshot.passes)
    told = [several(snapshot.mitigations, "mitigation")] * bool(snapshot.mitigations)
    told += [f"{several(parked, 'row')} parked"] * bool(parked)
    told += [several(snapshot.warnings, "warning")] * bool(snapshot.warnings)
    return (", ".join(told), "warn") if told else ("none", "")
