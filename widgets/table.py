"""A table in so many cells: columns as wide as they need to be, numbers to the right, texts cut where room is short.

Pure. Columns that cannot be shown even so are left out from the right, and a last line names them.
"""

from collections.abc import Sequence

from interlock.engine.record.words import safe
from interlock.widgets.formats import numeric
from interlock.widgets.text import Row, Span, ascii_only, fit, fitted, width_of

GAP = 2
LEAST_TEXT = 14
"""Cells that a column of texts keeps, where it needs as many."""


def rows(
    heads: Sequence[str], cells: Sequence[Sequence[str]], width: int, *, of: int | None = None, ascii: bool = False
) -> list[Row]:
    """Draw the heads and one row for each of `cells`, each `width` cells wide; `of` is how many there are in all."""
    texts = [[safe(cell) for cell in line] for line in cells]
    right = numeric(texts, len(heads))
    needs = [max(map(width_of, column)) for column in zip(heads, *texts, strict=True)]
    widths = _widths(needs, right, width)
    shown = [fitted([Span(_line(heads, widths, right), "title")], width)]
    shown += [fitted([Span(_line(line, widths, right))], width) for line in texts]
    if of and of > len(cells):
        shown.append(fitted([Span(f"and {of - len(cells):,} more in the tree", "dim")], width))
    if left_out := heads[len(widths) :]:
        shown.append(fitted([Span(f"no room for: {', '.join(left_out)}", "dim")], width))
    return ascii_only(shown) if ascii else shown


def _widths(needs: Sequence[int], right: Sequence[bool], width: int) -> list[int]:
    """Widths of the columns that are shown: texts give way first, the widest most; then columns from the right."""
    for count in range(len(needs), 0, -1):
        widths = list(needs[:count])
        over = sum(widths) + GAP * (count - 1) - width
        texts = [place for place in range(count) if not right[place]]
        if over <= sum(max(0, widths[place] - LEAST_TEXT) for place in texts):
            for _ in range(over):
                widths[max(texts, key=lambda place: widths[place])] -= 1
            return widths
    return [max(0, min(needs[0], width))] if needs else []


def _line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = (fit(text, width, right=number) for text, width, number in zip(texts, widths, right, strict=False))
    return (" " * GAP).join(cells)
