"""Plain text tables: columns as wide as they need to be, numbers to the right."""

from collections.abc import Sequence

from interlock.engine.record.words import safe
from interlock.widgets.formats import numeric


def render(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a table as text, without a final newline."""
    cells = [[safe(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *cells, strict=True)]
    right = numeric(cells, len(heads))
    lines = [list(heads), ["-" * width for width in widths], *cells]
    forms = [f"{{:{'>' if number else '<'}{width}}}" for number, width in zip(right, widths, strict=True)]
    return "\n".join("  ".join(forms).format(*line).rstrip() for line in lines)
