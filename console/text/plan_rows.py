"""A plan as rows for a pane: the passes as a table, what speaks against them, then the collections. Pure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.console.text.plan_text import PASSES, emptied, long_texts, sizes_of
from interlock.engine.record.words import duration, human_bytes, several
from interlock.widgets import table
from interlock.widgets.text import Row, ascii_only, row, wrapped

if TYPE_CHECKING:
    from interlock.engine.flows.plan import Forecast

COLUMNS = ("model", "batches", "predicted", "time", "on", "tokens", "truncated", "texts", "reused", "weights", "dtype")
"""Of the passes, what matters most first: a narrow pane leaves the last ones out."""


def plan_rows(seen: "Forecast", width: int, *, ascii: bool = False) -> list[Row]:
    """Draw a plan in rows of at most `width` cells."""
    passes = [[PASSES[name](number, each) for name in COLUMNS] for number, each in enumerate(seen.passes, 1)]
    fitting = table.rows(COLUMNS, passes, width)[: len(passes) + 1]
    lines = [*fitting, *(row((line, "bold")) for line in wrapped(_total(seen), width))]
    for text, style in _remarks(seen):
        lines += [row((line, style)) for line in wrapped(text, width)]
    heads = ("collection", "files", "chunks", "texts", "duplicates", "refused")
    cells = []
    for rows in seen.collections:
        counts = (len(rows.collection.files), rows.chunks, rows.own_texts, rows.duplicates, len(rows.refusals))
        cells.append([rows.collection.name, *(f"{count:,}" for count in counts)])
    lines += [(), *table.rows(heads, cells, width)[: len(cells) + 1]]
    return ascii_only(lines) if ascii else lines


def _total(seen: "Forecast") -> str:
    """All passes together, in a line."""
    batches = sum(each.batches for each in seen.passes)
    known = [each.seconds for each in seen.passes if each.seconds is not None]
    time = f"about {duration(sum(known))}" if known and len(known) == len(seen.passes) else "time not known yet"
    vectors = f"fused vectors of {seen.fused_dim}" if seen.fused_dim else "one named vector per model"
    return f"{several(len(seen.passes), 'pass', 'passes')}, {several(batches, 'batch', 'batches')}, {time}, {vectors}"


def _remarks(seen: "Forecast") -> Iterator[tuple[str, str]]:
    """What speaks against it, and what is worth knowing, with the style of each."""
    yield from ((each.refused, "error") for each in seen.passes if each.refused)
    yield from ((f"! {each}", "warn") for each in (*emptied(seen), *seen.overlooked))
    yield from ((each, "dim") for each in long_texts(seen))
    yield sizes_of(seen), "dim"
    if any(each.seconds is None for each in seen.passes):
        yield "time is known once each model has run on this kind of device", "dim"
    yield f"a lease may take {human_bytes(seen.budget_bytes)} of the device", "dim"
