"""What settings take: a text of the command line, or a value of TOML, JSON or Python, read as what a run works with.

Each function returns the value, or raises ValueError saying what was expected; the caller names the setting.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from interlock.engine.record.units import parse_bytes

MOST_THREADS = 1024
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")

Roster = tuple[tuple[str, float], ...]


def names(value: str | Iterable[object]) -> tuple[str, ...]:
    """Read names from a text with commas, or one by one: a name in a list may hold a comma."""
    given = value.split(",") if isinstance(value, str) else map(str, value)
    return tuple(name.strip() for name in given if name.strip())


def roster(value: str | Iterable[object] | Mapping[object, object]) -> Roster:
    """Read models with weights: a text `NAME[=WEIGHT],...`, a table, or a list of such texts or of pairs."""
    if isinstance(value, str):
        value = names(value)
    given = value.items() if isinstance(value, Mapping) else map(_weighed, value)
    entries = [(_model(name), _weight(_model(name), weight)) for name, weight in given]
    if not entries:
        raise ValueError("expected at least one model")
    if len({name for name, _ in entries}) < len(entries):
        raise ValueError("expected each model once")
    return tuple(entries)


def _weighed(item: object) -> tuple[object, object]:
    """A model with its weight, which is 1 where `NAME[=WEIGHT]` has none."""
    if isinstance(item, list | tuple) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, str) and re.search(r"=[^/=]*$", item):
        name, _, weight = item.rpartition("=")
        return name, weight
    return item, 1.0


def _model(name: object) -> str:
    """A model by its name; a directory that comes as a path begins with a sign that tells it from a name."""
    return str(name.expanduser().absolute()) if isinstance(name, Path) else str(name)


def _weight(name: str, weight: object) -> float:
    try:
        value = float(str(weight))
    except ValueError:
        raise ValueError(f"expected a number as the weight of {name}") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"expected a weight above 0 for {name}")
    return value


def size(value: object) -> int:
    return parse_bytes(str(value))


def text(value: str | Iterable[object]) -> str:
    return value if isinstance(value, str) else ",".join(map(str, value))


def count(value: object) -> int:
    text = str(value)
    if not text.strip().lstrip("-").isdigit():
        raise ValueError("expected a whole number")
    count = int(text)
    if count < 0:
        raise ValueError("expected 0 or more")
    return count


def threads(value: object) -> int:
    """Read a number of threads: beyond some thousands torch's own pool ends the process with a signal."""
    if (threads := count(value)) > MOST_THREADS:
        raise ValueError(f"expected 0 to {MOST_THREADS}")
    return threads


def rate(value: object) -> float:
    try:
        rate = float(str(value))
    except ValueError:
        rate = 0.0
    if not 0.5 <= rate <= 10:
        raise ValueError("expected a number from 0.5 to 10")
    return rate


def flag(value: object) -> bool:
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ValueError("expected yes or no")
    return text in _TRUE


def path(value: object) -> Path | None:
    return Path(str(value)).expanduser() if str(value) else None


def store(value: object) -> Path | None:
    text = str(value)
    if "://" in text or re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}(/.*)?", text):
        raise ValueError("expected a directory for an embedded store (Qdrant servers are not supported yet)")
    return path(text)


def one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        text = str(value)
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


def some_of(*choices: str) -> Callable[[str | Iterable[object]], tuple[str, ...]]:
    def parse(value: str | Iterable[object]) -> tuple[str, ...]:
        if unknown := [name for name in names(value) if name not in choices]:
            raise ValueError(f"unknown {unknown[0]!r}, expected any of {', '.join(choices)}")
        return names(value)

    return parse


def run_id(value: object) -> str:
    text = str(value)
    if text and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", text):
        raise ValueError("expected letters, digits, '.', '_' and '-', beginning with a letter or digit")
    return text
