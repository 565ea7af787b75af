"""What a pane draws, as plain data: rows of spans, each a text with the name of a style; and how texts are made to fit.

Width is counted in terminal cells, not in signs. Every text that comes from a run goes through `safe` on its way to the
screen (`Pane.render_line` does it), so no name of a model or a file can steer a terminal, and none is read as markup.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size

from interlock.engine.record.words import drawn
from interlock.widgets.formats import LONGEST as LONGEST
from interlock.widgets.formats import easy, numeric
from interlock.widgets.formats import width_of as width_of

STYLES = (
    "", "dim", "bold", "title", "ok", "warn", "error", "accent", "fill", "work", "context", "others", "limit", "rest",
    "mark", "chosen", "hit",
)  # fmt: skip
"""Names that a span may have; the theme says what they look like, and no meaning hangs on it alone."""


class Span(NamedTuple):
    text: str
    style: str = ""


Row = tuple[Span, ...]


def row(*parts: str | Span | tuple[str, str]) -> Row:
    """Make a row of spans, from texts and (text, style) pairs."""
    return tuple(Span(part) if isinstance(part, str) else Span(*part) for part in parts)


def plain(rows: Iterable[Row]) -> list[str]:
    """Take the text of rows, as a terminal without colour shows it."""
    return ["".join(drawn(span.text, LONGEST) for span in each) for each in rows]


ELLIPSIS = "…"
CURSOR, FOLDED, UNFOLDED, DOT = "▸▶▼·"
ASCII = str.maketrans("…▸·±▁▂▃▄▅▆▇█▒│┤╌●○■▲✖◇▷▶▼❯─╭╮╰╯┌┐└┘├┼┬┴━┃", "~>.~_.-:=+##o|+.*o=!X<>>v>-++++++++++++-|")
"""What a sign of ours is on a terminal that has no other; a sign has the same meaning everywhere."""


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Bring `text` to exactly `width` cells: padded, or cut with an ellipsis."""
    text = text if easy(text) else drawn(text, LONGEST)
    size = cell_len(text)
    if size <= width:
        return " " * (width - size) + text if right else text + " " * (width - size)
    return set_cell_size(text, max(0, width - 1)) + ELLIPSIS if width > 0 else ""


def fitted(spans: Sequence[Span], width: int) -> Row:
    """Make a row of spans, cut or padded to `width` cells."""
    row: list[Span] = []
    left = width
    for span in spans:
        size = width_of(span.text)
        if size > left:
            return (*row, Span(fit(span.text, left), span.style))
        row.append(span)
        left -= size
    return (*row, Span(" " * left)) if left else tuple(row)


def wrapped(text: str, width: int) -> list[str]:
    """Break a text between words, where it has any, into lines of at most `width` cells (1 at least)."""
    lines, width = [""], max(1, width)
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines += chop_cells(word, width)
    return lines if lines[0] else lines[1:]


def kept(sizes: Sequence[int], ranks: Sequence[int], width: int, gap: int = 1) -> list[int]:
    """Choose which of the fields of these sizes fit in `width`, lowest ranks first; their indices, in order.

    A field that does not fit is left out, and a smaller one that matters less may still stand.
    """
    chosen: list[int] = []
    left = width + gap
    for place in sorted(range(len(sizes)), key=lambda place: ranks[place]):
        if sizes[place] + gap <= left:
            chosen.append(place)
            left -= sizes[place] + gap
    return sorted(chosen)


def ascii_only(text: str) -> str:
    """Write a text in ASCII, in as many cells: our signs as those that are nearest, what is foreign as `?`."""
    drawn = text.translate(ASCII)
    return drawn if drawn.isascii() else "".join(sign if sign.isascii() else "?" * cell_len(sign) for sign in drawn)


class Column(NamedTuple):
    """A column of lines that stand under one another; of low `rank` is what stays on a narrow screen. With a `least` it
    may be cut to so many cells, and takes `most` at most."""

    rank: int
    title: str = ""
    right: bool = False
    least: int = 0
    most: int = LONGEST


def sized(lines: Sequence[Sequence[Span]], columns: Sequence[Column], width: int, gap: int = 1) -> dict[int, int]:
    """Choose the columns that say anything and fit in `width`, with their cells; what is over goes to those that may be
    cut."""
    widest = [max((width_of(line[place].text) for line in lines), default=0) for place in range(len(columns))]
    some = [place for place, size in enumerate(widest) if size]
    sizes = {place: min(widest[place], columns[place].least or widest[place]) for place in some}
    fits = kept([sizes[place] for place in some], [columns[place].rank for place in some], width, gap)
    chosen = {some[at]: sizes[some[at]] for at in fits}
    spare = width + gap - sum(size + gap for size in chosen.values())
    for place in chosen:
        more = max(0, min(spare, min(widest[place], columns[place].most) - chosen[place]))
        chosen[place] += more
        spare -= more
    return chosen


def in_columns(line: Sequence[Span], columns: Sequence[Column], sizes: Mapping[int, int], gap: int = 1) -> list[Span]:
    """Draw a line in these columns."""
    spans: list[Span] = []
    for place, size in sizes.items():
        text, style = line[place]
        spans += [Span(" " * gap), Span(fit(text, size, right=columns[place].right), style)]
    return spans[1:]


def columned(
    lines: Sequence[Sequence[Span]], columns: Sequence[Column], width: int, *, titled: bool = True, gap: int = 1
) -> list[Row]:
    """Draw lines in rows of `width` cells, below the titles of those columns that say anything."""
    said = [place for place in range(len(columns)) if any(line[place].text for line in lines)]
    columns, titles = [columns[at] for at in said], [Span(columns[at].title, "dim") for at in said]
    lines = [*[titles] * titled, *([line[at] for at in said] for line in lines)]
    sizes = sized(lines, columns, width, gap)
    return [fitted(in_columns(line, columns, sizes, gap), width) for line in lines]


TABLE_GAP = 2
LEAST_TEXT = 14
"""Cells that a column of texts keeps, where it needs as many."""


def table_rows(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int, *, of: int | None = None) -> list[Row]:
    """Draw the heads and one row for each of `cells`, each `width` cells wide; `of` is how many there are in all."""
    texts = [[drawn(cell) for cell in line] for line in cells]
    right = numeric(texts, len(heads))
    needs = [max(map(width_of, column)) for column in zip(heads, *texts, strict=True)]
    widths = _widths(needs, right, width)
    shown = [fitted([Span(_line(heads, widths, right), "title")], width)]
    shown += [fitted([Span(_line(line, widths, right))], width) for line in texts]
    if of and of > len(cells):
        shown.append(fitted([Span(f"and {of - len(cells):,} more in the tree", "dim")], width))
    if left_out := heads[len(widths) :]:
        shown.append(fitted([Span(f"no room for: {', '.join(left_out)}", "dim")], width))
    return shown


def _widths(needs: Sequence[int], right: Sequence[bool], width: int) -> list[int]:
    """Widths of the columns that are shown: texts give way first, the widest most; then columns from the right."""
    for count in range(len(needs), 0, -1):
        widths = list(needs[:count])
        over = sum(widths) + TABLE_GAP * (count - 1) - width
        texts = [place for place in range(count) if not right[place]]
        if over <= sum(max(0, widths[place] - LEAST_TEXT) for place in texts):
            for _ in range(over):
                widths[max(texts, key=lambda place: widths[place])] -= 1
            return widths
    return [max(0, min(needs[0], width))] if needs else []


def _line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = (fit(text, width, right=number) for text, width, number in zip(texts, widths, right, strict=False))
    return (" " * TABLE_GAP).join(cells)
