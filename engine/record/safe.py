"""Makes text from outside fit for a terminal: no escape, control or direction sign of it ever takes effect.

People get `safe` lines; programs get JSON that is `unarmed`: the same values in signs that steer nothing.
"""

import os
import re
from pathlib import Path
from unicodedata import category

LIMIT = 500
_PLAIN = re.compile(r"[\x20-\x7e]*")
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # controls, formats (bidi too), surrogates, line separators
DELETE = 0x7F


def safe(text: object, limit: int = LIMIT) -> str:
    """Put `text` on one line, every sign that could steer a terminal escaped, at most `limit` signs long."""
    line = str(text)
    shown = line[:limit]
    if not _PLAIN.fullmatch(shown):
        shown = "".join(
            sign if sign == " " or category(sign) not in _UNSAFE else sign.encode("unicode_escape").decode()
            for sign in shown
        )
    return shown if len(line) <= limit else shown + "…"


def named(path: Path) -> str:
    """Write a path as JSON can hold it: bytes of its name that are no UTF-8 are replaced."""
    return legible(str(path))


def legible(name: str) -> str:
    """Write what the system calls something as JSON can hold it: bytes that are no UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")


def unarmed(data: bytes) -> bytes:
    """Write JSON in UTF-8 with DEL, C1 controls, directions and line separators as `\\uXXXX`; values stay the same."""
    return _STEERING.sub(lambda sign: f"\\u{ord(sign[0]):04x}", data.decode()).encode()
