"""Makes text from outside fit for a terminal: no escape, control or direction sign of it ever takes effect."""

import re
import unicodedata

LIMIT = 500
_PLAIN = re.compile(r"[\x20-\x7e]*")


def safe(text: object, limit: int = LIMIT) -> str:
    """`text` on one line, every sign that could steer a terminal escaped, at most `limit` signs long."""
    line = str(text)
    shown = line[:limit]
    if not _PLAIN.fullmatch(shown):
        shown = "".join(sign if _harmless(sign) else sign.encode("unicode_escape").decode() for sign in shown)
    return shown if len(line) <= limit else shown + "…"


def _harmless(sign: str) -> bool:
    """Everything but controls, formats (bidi among them), surrogates and separators that break a line."""
    return sign == " " or unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
