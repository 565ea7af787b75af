"""The same picture with fewer bytes: of what is painted only the cells that change are sent.

Textual paints whole rows, each a move and styled text, and sets and resets all of the style of every segment: more
bytes than `bench/screen.py` allows at any size. A style is known by the codes that set it since the last reset,
whatever they mean. What is painted in another way goes through as it is; where that may have changed cells, what is
known of them is forgotten.
"""

import re
from functools import lru_cache

from rich.cells import get_character_cell_size

RESET = "\x1b[0m"
_MOVE = r"\x1b\[\d+;\d+H"
_STYLE = re.compile(r"\x1b\[([0-9:;]*)m")
_ROW = re.compile(
    rf"\x1b\[(\d+);(\d+)H(?!\x1b\[[\d;]+[^\d;m])((?:[^\x00-\x1f\x7f-\x9f]|{_STYLE.pattern})*)\n?(?={_MOVE})"
)
"""A row and its style, or a row of no cells, before another move."""
_HARMLESS = re.compile(
    rf"(?:{_STYLE.pattern}|{_MOVE}|\x1b\[\?(?!1049|47|1047)[\d;]+(?:[hl]|\$p)|\x1b\].*?(?:\a|\x1b\\)|\a)*"
)
"""What changes no cell."""

Cell = tuple[str, str]
"""A sign and the codes of its style."""


class ScreenDiff:
    """Rewrites one stream to a terminal of some size, piece by piece; a piece never ends within a sequence."""

    def __init__(self, columns: int, rows: int) -> None:
        self._size = columns, rows
        self._wanted = self._sent = ""
        """The codes that were painted since the last reset, and those that the terminal has."""
        self._rows: dict[int, dict[int, Cell]] = {}

    def __call__(self, text: str) -> str:
        """What to send instead of `text`."""
        parts: list[str] = []
        end = 0
        for found in _ROW.finditer(text):
            parts += self._other(text[end : found.start()]), self._row(int(found[1]), int(found[2]), found[3])
            end = found.end()
        return "".join([*parts, self._other(text[end:])])

    def fit(self, columns: int, rows: int) -> None:
        """Take in the size of the terminal; with another one than before its cells may be any."""
        if self._size != (columns, rows):
            self._size = columns, rows
            self.forget()

    def forget(self) -> None:
        """Forget what was sent: the terminal's cells may be others."""
        self._rows.clear()

    def _row(self, row: int, column: int, text: str) -> str:
        """Of a row's text from a column on what is new in it."""
        cells, after = _read(text, self._wanted)
        if cells is None or row > self._size[1] or column + len(cells) - 1 > self._size[0]:
            self.forget()
            return f"\x1b[{row};{column}H" + self._through(text)
        self._wanted = after
        known = self._rows.setdefault(row, {})
        parts: list[str] = []
        end = 0
        for place in (place for place, cell in enumerate(cells) if known.get(column + place) != cell):
            if not parts:
                parts.append(f"\x1b[{row};{column + place}H")
            elif gap := place - end:
                jump = f"\x1b[{gap}C"
                parts.append(jump if gap >= len(jump) else "".join(map(self._drawn, cells[end:place])))
            parts.append(self._drawn(cells[place]))
            end = place + 1
        known.update(enumerate(cells, column))
        return "".join(parts)

    def _drawn(self, cell: Cell) -> str:
        return self._turned(cell[1]) + cell[0]

    def _other(self, text: str) -> str:
        if not _HARMLESS.fullmatch(text):
            self.forget()
        elif not _STYLE.search(text):
            return text
        return self._through(text)

    def _through(self, text: str) -> str:
        """All of it, in the style that it was painted in."""
        before = self._turned(self._wanted)
        self._wanted = self._sent = _styled(text, self._wanted)
        return before + text

    def _turned(self, wanted: str) -> str:
        """What leads from the style that the terminal has to another one."""
        if wanted == self._sent:
            return ""
        before, self._sent = self._sent, wanted
        return f"\x1b[{'0;' if before and wanted else ''}{wanted or '0'}m"


def _styled(text: str, codes: str) -> str:
    """The codes since the last reset after a text that began with others."""
    for found in _STYLE.finditer(text):
        codes = "" if found[1] in ("", "0") else f"{codes};{found[1]}".lstrip(";")
    return codes


@lru_cache(512)
def _read(text: str, codes: str) -> tuple[tuple[Cell, ...] | None, str]:
    """The cells of a text and the codes after it; no cells where signs are not one cell wide."""
    cells: list[Cell] = []
    end = 0
    for found in [*_STYLE.finditer(text), None]:
        signs = text[end : found.start() if found else len(text)]
        if not signs.isascii() and any(get_character_cell_size(sign) != 1 for sign in signs):
            return None, codes
        cells += [(sign, codes) for sign in signs]
        if found:
            codes, end = _styled(found[0], codes), found.end()
    return tuple(cells), codes
