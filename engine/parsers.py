"""What settings take: a text of the command line, or a value of TOML, JSON or Python, read as what a run works with.

Each function returns the value, or raises ValueError saying what was expected; the caller names the setting.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from interlock.engine import storage
from interlock.engine.errors import UsageError
from interlock.engine.record import words as written
from interlock.engine.record.rundir import NAMES
from interlock.engine.targets.connection import is_address

MOST_THREADS, MOST_PATH, MOST_LOCAL = 1024, 4096, 16
"""Nodes on one machine are the last: each takes some hundred MiB before it computes."""
SHARED: Literal["shared"] = "shared"
OFF, EXPORTING = "off", ",export"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")

Roster = tuple[tuple[str, float], ...]


def names(value: object) -> tuple[str, ...]:
    """Read names from a text with commas, or one by one: a name in a list may hold a comma, and must not be empty."""
    given = [str(name).strip() for name in _each(value)]
    if not isinstance(value, str) and "" in given:
        raise ValueError("expected names that are not empty")
    if not all(map(_nameable, given)):
        raise ValueError(f"expected names {NAMEABLE}")
    return tuple(filter(None, given))


def name(value: object) -> str:
    """Read a name, which is not empty."""
    if not str(value).strip():
        raise ValueError("expected a name that is not empty")
    if not _nameable(str(value)):
        raise ValueError(f"expected a name {NAMEABLE}")
    return str(value)


def some_names(value: object) -> tuple[str, ...]:
    if not (found := names(value)):
        raise ValueError("expected at least one name")
    return found


def roster(value: object) -> Roster:
    """Read models with weights: a text `NAME[=WEIGHT],...`, a table, or a list of such texts or of pairs."""
    listed = names(value) if isinstance(value, str) else _each(value)
    given = value.items() if isinstance(value, Mapping) else map(_weighed, listed)
    entries = _each_once((_model(name), _weight(_model(name), weight)) for name, weight in given)
    if not entries:
        raise ValueError("expected at least one model")
    whole = sum(weight for _, weight in entries)
    if least := next((name for name, weight in entries if not weight >= LEAST_SHARE * whole), ""):
        raise ValueError(f"expected at least {LEAST_SHARE:g} of all weights for {least}")
    return entries


def weighs(value: object) -> bool:
    """Tell whether any model of a roster, given as `roster` reads it, has a weight there."""
    listed = names(value) if isinstance(value, str) else _each(value)
    return isinstance(value, Mapping) or any(_weighed(each)[0] is not each for each in listed)


def weights(value: object) -> Roster:
    """Read weights of a question, `NAME[=WEIGHT],...`; `Ask` says which of them can be used."""
    return _each_once((_model(name), _number(_model(name), weight)) for name, weight in map(_weighed, names(value)))


def _each_once(entries: Iterable[tuple[str, float]]) -> Roster:
    listed, seen = tuple(entries), set[str]()
    for name, _ in listed:
        if name in seen:
            raise ValueError(f"expected not {name} twice but each model once")
        seen.add(name)
    return listed


def _each(value: object) -> list[object]:
    """What is in a list, in a text with commas, or alone."""
    if isinstance(value, bytes):
        raise ValueError("expected text, not bytes")
    if not isinstance(value, Iterable) or isinstance(value, str):
        return [*str(value).split(",")]
    try:
        return list(value)
    except TypeError:  # an array of no dimension
        raise ValueError("expected a list") from None


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
    if not _nameable(str(name)):
        raise ValueError(f"expected names {NAMEABLE}")
    of_tilde = isinstance(name, str) and name.startswith("./~")  # which is no home directory
    return str(path(name).absolute()) if isinstance(name, Path) or of_tilde else str(name)


_RUN_ID = re.compile(r"[^\x00-\x1f\x7f-\x9f/.\ud800-\udfff][^\x00-\x1f\x7f-\x9f/\ud800-\udfff]{0,199}")
LEAST_SHARE = 1e-12
"""Of the weights of a roster: a fused vector of float32 has no trace of a model that counts for much less."""

NAMEABLE = "of at most 255 bytes between slashes, without a null byte"


def _nameable(name: str) -> bool:
    """Whether a file could have this name, as what is no model's name is looked for as its directory."""
    written = os.fsencode(name)
    return b"\0" not in written and len(written) < MOST_PATH and all(len(part) <= 255 for part in written.split(b"/"))


def _number(name: str, weight: object) -> float:
    try:
        return written.parse_number(str(weight))
    except ValueError:
        raise ValueError(f"expected a number as the weight of {name}") from None


def _weight(name: str, weight: object) -> float:
    value = _number(name, weight)
    if not 0 < value < float("inf"):
        raise ValueError(f"expected a weight above 0 for {name}")
    return value


def size(value: object) -> int:
    """Read a size: a number is one of bytes; a text has a unit, since `10` would hardly be meant as 10 bytes."""
    found = written.parse_bytes(str(value))
    if isinstance(value, str) and found and value.strip().replace(".", "", 1).isdigit():
        meant = f"{found >> 20}MiB" if found >= 1 << 20 else f"{found}{'GiB' if found < 1024 else 'MiB'}"
        raise ValueError(f"expected a size with its unit (did you mean {meant}?)")
    return found


def text(value: object) -> str:
    return ",".join(map(str, _each(value)))


def decimal(value: object) -> float:
    try:
        return written.parse_number(str(value))
    except ValueError:
        raise ValueError("expected a number") from None


def count(value: object) -> int:
    return integer(value, 0)


def integer(value: object, least: float = -math.inf) -> int:
    text = str(value).strip()
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError("expected a whole number")
    if (found := int(text)) < least:
        raise ValueError(f"expected {least} or more")
    return found


def at_least_one(value: object) -> int:
    return integer(value, 1)


def some_counts(value: object) -> tuple[int, ...]:
    """Read whole numbers above 0 with commas between."""
    return tuple(integer(each, 1) for each in str(value).split(","))


def up_to(most: int, least: int = 0) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if (number := integer(value, least)) > most:
            raise ValueError(f"expected {least} to {most}")
        return number

    return parse


port = up_to(0xFFFF)
"""Reads the number of a port; 0: none."""


def seconds(value: object) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := written.parse_number(str(value))) < math.inf:
            return seconds
    raise ValueError("expected a number of seconds, 0 or more")


def cluster(value: object) -> str:
    """Read where Ray is: `auto`, `HOST:PORT`, or `local:N`, and `,twice` behind it; an empty text is a run without."""
    text, comma, twice = (part.strip() for part in str(value).strip().partition(","))
    if comma:
        if text and twice == "twice" and (found := cluster(text)):
            return f"{found},twice"
        raise ValueError("expected nothing but twice after the comma, and an address before it")
    if text.startswith("ray://"):
        raise ValueError("expected HOST:PORT of the cluster without ray://, on a machine of it")
    local = re.fullmatch(r"local:([0-9]{1,3})", text)
    there = re.fullmatch(r"(?:[^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", text)
    if local and 1 <= int(local[1]) <= MOST_LOCAL:
        return f"local:{int(local[1])}"
    if text in ("", "auto") or (there and not text.startswith("local:") and 1 <= int(there[1]) <= 0xFFFF):
        return text
    raise ValueError(f"expected auto, HOST:PORT, or local:N with N from 1 to {MOST_LOCAL}")


def resources(value: object) -> str:
    written.parse_resources(text(value))
    return text(value)


def lasting(value: object) -> str:
    return str(value).strip() if written.parse_duration(str(value)) else "0s"


def deadline(value: object) -> str:
    """Read when a session is to end: a duration above 0, or a time of day; an empty text is never."""
    text = re.sub(r"\s*,\s*", ",", str(value).strip().lower())
    for parse in (written.parse_duration, written.parse_time_of_day):
        with suppress(ValueError):
            if not text or parse(text.removesuffix(EXPORTING)):
                return text
    raise ValueError(f"expected a duration such as 8h30m, or a time of day such as 17:45; {EXPORTING} may follow")


def allowance(value: object) -> str:
    """Read how many records may be refused, as a number or a share, and whether files may."""
    written.parse_allowance(str(value))
    return re.sub(r"\s+", "", str(value).lower())


def window(value: object) -> int | Literal["shared"]:
    """Read how many batches a model computes before the next one does; `shared`: all of them side by side."""
    if str(value).strip() == SHARED:
        return SHARED
    try:
        return integer(value, 0)
    except ValueError as wanted:
        raise ValueError(f"{wanted}, or {SHARED}") from None


def words(*languages: str) -> Callable[[object], str]:
    """Read one of these languages; a switch, as earlier versions had one, means English or none."""

    def parse(value: object) -> str:
        text = str(value).lower()
        if text == OFF or text in _FALSE:
            return OFF
        return one_of(*languages, OFF)("english" if is_on(value) else text)

    return parse


def is_on(value: object) -> bool:
    """Tell whether this turns a switch on."""
    return str(value).lower() in _TRUE


def flag(value: object) -> bool:
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ValueError("expected yes or no")
    return text in _TRUE


def path(value: object) -> Path:
    """Read a path that a file on this machine can have, its `~` resolved."""
    if "://" in str(value):
        raise ValueError("expected a path on this machine, not a URL")
    try:
        path = Path(value)  # type: ignore[arg-type]
        if str(path).startswith("~"):  # of `./~` libraries do not know that it is a name
            path = path.expanduser() if str(value).startswith("~") else path.absolute()
        if value == "" or not _nameable(str(path)):
            raise ValueError(f"expected a path that is not empty, {NAMEABLE}")
    except RuntimeError:
        raise ValueError("expected the home directory of a known user") from None
    except (TypeError, UnicodeEncodeError):
        raise ValueError("expected a path") from None
    return path


def place(value: object) -> Path:
    """Read a path, or a URL of a place in storage."""
    return storage.located(value, path)


def path_of(value: object, what: str, parse: Callable[[object], Path] = path) -> Path:
    """Return the path that a caller gave as `what`, its `~` resolved. Raises UsageError for what is no path."""
    try:
        return parse(value)
    except ValueError as wanted:
        raise UsageError(f"{what}: {wanted}, got {written.given(value)}") from None


def path_or_none(value: object) -> Path | None:
    """Read a path; an empty text is none."""
    return None if value == "" else path(value)


def store(value: object) -> Path | None:
    if is_address(str(value)):
        raise ValueError(
            "expected a directory for an embedded store (to a server, what a run made goes by `interlock upload`)"
        )
    return path_or_none(value)


def one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if (text := str(value)) not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


def some_of(*choices: str) -> Callable[[object], tuple[str, ...]]:
    def parse(value: object) -> tuple[str, ...]:
        if not set(names(value)) <= set(choices):
            raise ValueError(f"expected any of {', '.join(choices)}")
        return names(value)

    return parse


def run_id(value: object) -> str:
    text = str(value)
    if (isinstance(value, Iterable) and not isinstance(value, str)) or (text and not _RUN_ID.fullmatch(text)):
        raise ValueError(f"expected {NAMES}")
    return text
