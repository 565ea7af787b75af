"""Colours and attributes as a terminal is told of them: what a sequence changes, and how to get from one to another."""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

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
