"""The same picture with fewer bytes: of what is painted only cells that change are sent, of a style only what is new.

Textual paints whole rows, each a move and styled text, and sets and resets all of the style of every segment:
six to ten times the bytes, more than `bench/screen.py` allows at any size. A list that goes on is moved by the terminal
itself (DECSTBM and line feeds, which a VT100 knows). What is painted in another way goes through as it is; where that
may have changed cells, what is known of them is forgotten.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from rich.cells import get_character_cell_size

_CODE = re.compile(r"([34]8;(?:5;\d+|2;\d+;\d+;\d+)|\d+)(?:;|\Z)")
_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "21": "24", "5": "25", "6": "25", "7": "27", "8": "28", "9": "29"}
_OFF |= {"51": "54", "52": "54", "53": "55"}
"""Which code ends an attribute."""
_FRONT = re.compile(r"3[0-7]|38;.+|9[0-7]|39")
_BACK = re.compile(r"4[0-7]|48;.+|10[0-7]|49")
_UNSEEN = frozenset("1238")
"""Attributes that a blank does not show."""


@dataclass(frozen=True)
class Style:
    """Colours as the codes that set them, empty where they are the terminal's own; attributes by their codes."""

    front: str = ""
    back: str = ""
    attributes: frozenset[str] = field(default_factory=frozenset)


PLAIN = Style()


@lru_cache(4096)
def after(style: Style, codes: str) -> Style | None:
    """Apply a sequence's codes to a style; None where one of them is not known here."""
    place, codes = 0, ";".join(code or "0" for code in codes.split(";"))
    while place < len(codes):
        found = _CODE.match(codes, place)
        changed = _with(style, found[1]) if found else None
        if found is None or changed is None:
            return None
        style, place = changed, found.end()
    return style


@lru_cache(4096)
def turn(now: Style, wanted: Style) -> str:
    """Write the shortest sequence that leads from one style to another."""
    if now == wanted:
        return ""
    ways = _codes(now, wanted), ("0", *_codes(PLAIN, wanted))
    return f"\x1b[{min((';'.join(way) for way in ways), key=len)}m"


@lru_cache(4096)
def on_blank(style: Style, now: Style = PLAIN) -> Style:
    """Choose the style closest to `now` in which a blank looks as in `style`."""
    if not style.attributes <= _UNSEEN:
        return style
    return Style(now.front, style.back, now.attributes & _UNSEEN)


def _codes(now: Style, wanted: Style) -> tuple[str, ...]:
    off = {_OFF[code] for code in now.attributes - wanted.attributes}
    kept = {code for code in now.attributes if _OFF[code] not in off}
    codes = [*sorted(off), *sorted(wanted.attributes - kept)]
    if wanted.front != now.front:
        codes.append(wanted.front or "39")
    if wanted.back != now.back:
        codes.append(wanted.back or "49")
    return tuple(codes)


def _with(style: Style, code: str) -> Style | None:
    if code == "0":
        return PLAIN
    if code in _OFF:
        return replace(style, attributes=style.attributes | {code})
    if code in _OFF.values():
        return replace(style, attributes=frozenset(each for each in style.attributes if _OFF[each] != code))
    if _FRONT.fullmatch(code):
        return replace(style, front="" if code == "39" else code)
    if _BACK.fullmatch(code):
        return replace(style, back="" if code == "49" else code)
    return None


RESET = "\x1b[0m"
_MOVE = r"\x1b\[\d+;\d+H"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]])")
_STYLE = re.compile(r"\x1b\[([0-9;]*)m")
_ROW = re.compile(
    rf"\x1b\[(\d+);(\d+)H(?!\x1b\[[\d;]+[^\d;m])((?:[^\x00-\x1f\x7f-\x9f]|{_STYLE.pattern})*)\n?(?={_MOVE})"
)
"""A row and its style, or a row of no cells, before another move."""
_HARMLESS = re.compile(
    rf"(?:{_STYLE.pattern}|{_MOVE}|\x1b\[\?(?!1049|47|1047)[\d;]+(?:[hl]|\$p)|\x1b\].*?(?:\a|\x1b\\)|\a)*"
)
"""What changes no cell."""

Cell = tuple[str, Style]
Cells = tuple[Cell, ...]


class ScreenDiff:
    """Rewrites one stream to a terminal of some size, piece by piece.

    A piece never ends within a sequence; one that is `RESET` alone is sent.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._size = columns, rows
        self._wanted = self._sent = PLAIN
        self._strange = False
        """Whether a style was set that is not known here; then all goes through until the next reset."""
        self._rows: dict[int, dict[int, Cell]] = {}

    def __call__(self, text: str) -> str:
        """What to send instead of `text`."""
        if text == RESET:
            self._wanted, self._sent, self._strange = PLAIN, PLAIN, False
            return text
        parts = [self._scrolled(text)]
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
        read = None if self._strange else _read(text, self._wanted)
        if read is None or row > self._size[1] or column + len(read[0]) - 1 > self._size[0]:
            self.forget()
            return f"\x1b[{row};{column}H" + self._styled(text)
        cells, self._wanted = read
        known = self._rows.setdefault(row, {})
        changes = self._changes(row, column, cells, known)
        known.update(enumerate(cells, column))
        return changes

    def _changes(self, row: int, column: int, cells: Iterable[Cell], known: Mapping[int, Cell]) -> str:
        """What makes a row's cells from a column on these, of which some are `known` to be there."""
        cells = tuple(cells)
        parts: list[str] = []
        end = 0
        for place in (place for place, cell in enumerate(cells) if known.get(column + place) != cell):
            if not parts:
                parts.append(f"\x1b[{row};{column + place}H")
            elif gap := place - end:
                jump = f"\x1b[{gap}C"
                parts.append(jump if gap >= len(jump) else self._drawn(cells[end:place]))
            parts.append(self._drawn(cells[place : place + 1]))
            end = place + 1
        return "".join(parts)

    def _drawn(self, cells: Cells) -> str:
        """Signs, each in its style."""
        parts: list[str] = []
        for sign, style in cells:
            parts += self._turn(on_blank(style, self._sent) if sign == " " else style), sign
        return "".join(parts)

    def _scrolled(self, text: str) -> str:
        """What lets the terminal itself move lines up that `text` paints as they stand some rows below, as those of a
        list that goes on, and puts right what is beside them; nothing where that takes more bytes than to paint."""
        spans = self._spans(text)
        top, bottom, by = _shift(spans, self._rows)
        if not by:
            return ""
        wanted = {row: dict(self._rows.get(row, {})) for row in range(top, bottom + 1)}
        for row, column, cells in spans:
            wanted.get(row, {}).update(enumerate(cells, column))
        if any(len(cells) != self._size[0] for cells in wanted.values()):
            return ""  # what would move with them is not known
        known, sent = [self._rows.get(row, {}) for row in wanted], self._sent
        painted = self._painted(wanted, known)
        self._sent = sent
        scroll = f"\x1b[{top};{bottom}r\x1b[{bottom};1H" + "\n" * by + "\x1b[r"
        scroll += self._painted(wanted, [*known[by:], *[{}] * by])
        if len(scroll) >= len(painted):
            self._sent = sent
            return ""
        self._rows |= wanted
        return scroll

    def _painted(self, wanted: Mapping[int, dict[int, Cell]], known: Iterable[Mapping[int, Cell]]) -> str:
        columns = range(1, self._size[0] + 1)
        return "".join(
            self._changes(row, 1, map(cells.__getitem__, columns), there)
            for (row, cells), there in zip(wanted.items(), known, strict=True)
        )

    def _spans(self, text: str) -> list[tuple[int, int, Cells]]:
        """The row, column and cells of all that a text paints; nothing where that is not all known."""
        spans: list[tuple[int, int, Cells]] = []
        style, end = self._wanted, 0
        for found in _ROW.finditer(text):
            read = None if self._strange or found.start() != end else _read(found[3], style)
            if read is None:
                return []
            spans.append((int(found[1]), int(found[2]), read[0]))
            style, end = read[1], found.end()
        return spans

    def _other(self, text: str) -> str:
        if not _HARMLESS.fullmatch(text):
            self.forget()
        return self._styled(text)

    def _styled(self, text: str) -> str:
        """All of it, with what is new of its styles."""
        parts: list[str] = []
        end = 0
        for found in _SEQUENCE.finditer(text):
            parts += self._signs(text[end : found.start()]), self._sequence(found[0])
            end = found.end()
        return "".join([*parts, self._signs(text[end:])])

    def _signs(self, text: str) -> str:
        if self._strange or not text.strip("\r\n\a"):
            return text
        return self._turn(self._wanted) + text

    def _sequence(self, text: str) -> str:
        if found := _STYLE.fullmatch(text):
            return self._style(text, found[1])
        if self._strange or (text[1] == "[" and text[-1] in "Hhl"):  # moves and modes, to which a style is nothing
            return text
        return self._turn(self._wanted) + text

    def _style(self, text: str, codes: str) -> str:
        wanted = after(self._wanted, codes)
        if self._strange or wanted is None:
            before = "" if self._strange else self._turn(self._wanted)
            self._strange = codes not in ("", "0")
            self._wanted = self._sent = PLAIN
            return before + text
        self._wanted = wanted
        return ""

    def _turn(self, wanted: Style) -> str:
        now, self._sent = self._sent, wanted
        return turn(now, wanted)


def _shift(spans: Sequence[tuple[int, int, Cells]], there: Mapping[int, Mapping[int, Cell]]) -> tuple[int, int, int]:
    """From which row to which most of what is painted stood lower before, and by how many rows; all 0 for none."""
    before: dict[tuple[int, tuple[Cell | None, ...]], int] = {}
    for row, column, cells in reversed(spans):
        known = there.get(row, {})
        before[column, tuple(map(known.get, range(column, column + len(cells))))] = row
    stood = [(row, before.get((column, cells), row)) for row, column, cells in spans]
    shifts = Counter(low - row for row, low in stood if low > row)
    if not shifts:
        return 0, 0, 0
    by = shifts.most_common(1)[0][0]
    rows = [row for row, low in stood if low - row == by]
    return min(rows), max(rows) + by, by


@lru_cache(512)
def _read(text: str, style: Style) -> tuple[Cells, Style] | None:
    """Sign and style of each cell, and the style after them; None where a style is not known, or signs are not one cell
    wide."""
    cells: list[Cell] = []
    end = 0
    for found in [*_STYLE.finditer(text), None]:
        signs = text[end : found.start() if found else len(text)]
        if not signs.isascii() and any(get_character_cell_size(sign) != 1 for sign in signs):
            return None
        cells += [(sign, on_blank(style) if sign == " " else style) for sign in signs]
        if found:
            changed = after(style, found[1])
            if changed is None:
                return None
            style, end = changed, found.end()
    return tuple(cells), style
