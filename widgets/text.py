"""What a pane draws, as plain data: rows of spans, each a text with the name of a style; and how texts are made to fit.

Width is counted in terminal cells, not in signs. Every text that comes from a run goes through `safe` on its way to the
screen (`Row.cells` does it), so no name of a model or a file can steer a terminal, and none is read as markup.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from engine.record.safe import safe

STYLES = ("", "dim", "bold", "title", "ok", "warn", "error", "accent", "fill", "rest", "mark", "chosen")
"""Names that a span may have; the theme says what they look like, and no meaning hangs on it alone."""


class Span(NamedTuple):
    """A piece of a row."""

    text: str
    style: str = ""


Row = tuple[Span, ...]


def row(*parts: str | Span | tuple[str, str]) -> Row:
    """A row of spans, from texts and (text, style) pairs."""
    return tuple(Span(part) if isinstance(part, str) else Span(*part) for part in parts)


def plain(rows: Iterable[Row]) -> list[str]:
    """The text of rows, as a terminal without colour shows it."""
    return ["".join(safe(span.text, LONGEST) for span in each) for each in rows]


LONGEST = 4000


def width_of(text: str) -> int:
    """Terminal cells that a text takes."""
    return cell_len(safe(text, LONGEST))


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells: padded, or cut with an ellipsis."""
    text = safe(text, LONGEST)
    size = cell_len(text)
    if size <= width:
        return " " * (width - size) + text if right else text + " " * (width - size)
    return set_cell_size(text, max(0, width - 1)) + ELLIPSIS if width > 0 else ""


ELLIPSIS = "…"


def fitted(spans: Sequence[Span], width: int) -> Row:
    """A row cut or padded to `width` cells."""
    made: list[Span] = []
    left = width
    for span in spans:
        size = width_of(span.text)
        if size > left:
            made.append(Span(fit(span.text, left), span.style))
            left = 0
            break
        made.append(span)
        left -= size
    return (*made, Span(" " * left)) if left else tuple(made)
