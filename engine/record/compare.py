"""How two JSON-like values differ, in words: what was kept (a manifest, the inputs of a run) against now.

A person who is told "not the same" must also be told where; nothing here decides whether it matters.
"""

import json
import re
from collections.abc import Iterator, Sequence

_SHA256 = re.compile("[0-9a-f]{64}")


def differences(stored: object, wanted: object, where: str = "") -> Iterator[str]:
    """Yield a phrase for each place that differs, by sorted key: `models[0].dim was 8, is now 9`.

    Dicts are compared key by key and lists of one length item by item; a key on one side only "is missing"
    (it was stored) or "is new" (it is wanted). `where` names the place of the two values themselves.
    """
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted(stored.keys() | wanted.keys(), key=str):
            place = f"{where}.{key}" if where else str(key)
            if key not in wanted:
                yield f"{place} is missing"
            elif key not in stored:
                yield f"{place} is new"
            else:
                yield from differences(stored[key], wanted[key], place)
    elif isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        for index, (one, other) in enumerate(zip(stored, wanted, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif stored != wanted:
        yield f"{where or 'the value'} was {_shown(stored)}, is now {_shown(wanted)}"


def few(items: Sequence[str], most: int = 8) -> str:
    """Return the first `most` items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _shown(value: object) -> str:
    """As JSON; of a SHA-256 the first twelve digits, which are as good to a reader."""
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return f"{value[:12]}…"
    return json.dumps(value, ensure_ascii=False, default=str)
