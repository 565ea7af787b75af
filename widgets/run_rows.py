"""Runs as rows: a table with a cursor, marks, and the state of each in its colour. Pure."""

from collections.abc import Sequence

from interlock.widgets import table
from interlock.widgets.formats import LEVEL_STYLES
from interlock.widgets.text import Row, Span, fitted


def rows(
    heads: Sequence[str], cells: Sequence[Sequence[str]], levels: Sequence[str], marks: Sequence[str],
    chosen: int, cursor: str, width: int,
) -> list[Row]:  # fmt: skip
    """Draw a head and a row for each run; the first cell of each is its state, of the level beside it."""
    lead = 3
    head, *lines = table.rows(heads, cells, max(1, width - lead))
    shown = [fitted([Span(" " * lead), *head], width)]
    for place, (line, level, mark) in enumerate(zip(lines, levels, marks, strict=False)):
        text, state = "".join(span.text for span in line), cells[place][0]
        size = min(len(state), len(text))
        here = place == chosen
        spans = [
            Span(f"{cursor if here else ' '}{mark} ", "title"),
            Span(text[:size], LEVEL_STYLES[level]),
            Span(text[size:], "chosen" if here else ""),
        ]
        shown.append(fitted(spans, width))
    return shown + [fitted([Span(" " * lead), *line], width) for line in lines[len(cells) :]]
