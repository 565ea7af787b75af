"""How people and programs are told of things: sizes, durations, counts, shares, what differs, and text from outside.

Pure functions of plain values. `safe` is for people: no escape, control or direction sign of it takes effect on a
terminal. `unarmed` is for programs: JSON with the same values in signs that steer nothing.
"""

import json
import math
import os
import re
import shlex
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import time
from pathlib import Path
from typing import NamedTuple
from unicodedata import category

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_FACTORS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def human_bytes(count: float) -> str:
    """Write `count` bytes as people read them: 1536 -> '1.5 KiB'; '?' for what is no number of bytes."""
    if not _countable(count):
        return "?"
    for unit in UNITS:
        if round(abs(count), 1) < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def distinct_sizes(*counts: float) -> list[str]:
    """Write sizes that are compared so that different ones look different: '1,088 MiB' and '1,024 MiB'."""
    texts = [human_bytes(count) for count in counts]
    power = next((power for power in range(len(UNITS)) if max(counts) < 1024 ** (power + 1)), len(UNITS) - 1)
    while power and len(set(texts)) < len(set(counts)):
        power -= 1
        texts = [f"{count / 1024**power:,.0f} {UNITS[power]}" for count in counts]
    return texts


def parse_bytes(text: str) -> int:
    """Read a size as people write it: '12GiB', '1.5 MiB', '800MB', '4096'. Raises ValueError for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in _FACTORS or len(match[1]) > 30:
        raise ValueError("expected a size such as 12GiB or 800MiB")
    return int(float(match[1]) * _FACTORS[match[2].upper()])


def parse_number(text: str) -> float:
    """Read a number as people write it: '1', '0.5', '1e-3', 'nan'. Raises ValueError for anything else: Python's own
    '1_0' and digits of other scripts too."""
    if "_" in text or not text.isascii():
        raise ValueError("expected a number")
    return float(text)


def duration(seconds: float) -> str:
    """Write seconds as `0:42`, `11:07`, `3:02:11`: hours where there are any; '?' for what is no time."""
    if not _countable(seconds):
        return "?"
    whole = abs(int(seconds))
    hours, minutes, sign = whole // 3600, whole % 3600 // 60, "-" if seconds <= -1 else ""
    return sign + (f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}")


def remaining(seconds: float) -> str:
    """Write the seconds that are left of what goes on: they are never `0:00`."""
    return duration(max(1.0, seconds))


def parse_duration(text: str) -> float:
    """Read seconds as people write them: '8h30m', '90m', '45s', '1.5h'. Raises ValueError for anything else."""
    match = re.fullmatch(
        r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip().lower(), re.ASCII
    )
    if not match or not any(match.groups()) or len(text) > 30:
        raise ValueError("expected a duration such as 8h30m or 45m")
    return sum(float(part) * unit for part, unit in zip(match.groups(default="0"), (3600, 60, 1), strict=True))


def parse_time_of_day(text: str) -> time:
    """Read a time of day: '17:45', '7:05:30'. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", text.strip(), re.ASCII)
    if not match:
        raise ValueError("expected a time of day such as 17:45")
    hour, minute, second = map(int, match.groups(default="0"))
    return time(hour, minute, second)


class Allowance(NamedTuple):
    """How many records of a collection may be refused, as a number or in percent of them, and whether files may."""

    most: int
    percent: float
    files: bool

    def covers(self, records: int, of: int, files: int) -> bool:
        """Tell whether so many refused records `of` all that were read, and so many refused files, are allowed."""
        return (self.files or not files) and (records <= self.most or records * 100 <= self.percent * of)


def parse_allowance(text: str) -> Allowance:
    """Read what may be refused as people write it: '3', '0.5%', '1%,files'. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d{1,15})((?:\.\d{1,6})?%)?(,files)?", re.sub(r"\s+", "", text.lower()), re.ASCII)
    if not match or (match[2] and not 0 <= (share := float(f"{match[1]}{match[2][:-1]}")) <= 100):
        raise ValueError("expected a number of records or a share such as 1%; ,files may follow")
    return Allowance(0, share, bool(match[3])) if match[2] else Allowance(int(match[1]), 0.0, bool(match[3]))


def parse_resources(text: str) -> dict[str, float]:
    """Read what a node takes of its machine, by Ray's names: 'GPU=2,CPU=8,memory=32GiB,accelerator_type:T4=0.001'.
    Raises ValueError for anything else."""
    taken = dict[str, float]()
    for name, _, amount in (each.strip().rpartition("=") for each in text.split(",") if each.strip()):
        with suppress(ValueError):
            taken[name] = float(parse_bytes(amount) if name == "memory" else parse_number(amount))
        part = taken.get(name, 0.0) % 1
        if not name or not 0 < taken.get(name, 0.0) < math.inf or (taken[name] > 1 and part):
            raise ValueError("expected NAME=AMOUNT by Ray's names, as in GPU=2,CPU=8,memory=32GiB, whole or below 1")
    return taken


def _countable(number: float) -> bool:
    """Whether a number, which a damaged file may have given, is one that people count with."""
    return math.isfinite(number) if isinstance(number, float) else abs(number) < 1 << 1000


def pass_of(model_pass: int, passes: int = 0) -> str:
    """Write `pass 2/3`: counted from 1, as people count, where files count from 0; without an unknown total."""
    return f"pass {model_pass + 1}" + (f"/{passes}" if passes else "")


def batch_of(batch_index: int) -> str:
    """Write `batch 14`: which one, counted from 1 too."""
    return f"batch {batch_index + 1}"


def percent(share: float) -> str:
    """Write a share in four cells; 100 % is said of nothing that is not finished."""
    whole = 100 if share >= 1 else min(99, int(share * 100 + 1e-9))
    return f"{max(0, whole):>3}%"


def several(number: int, thing: str, things: str = "") -> str:
    """Write `1 row`, `2,000 rows`; `things` is the plural of what does not take an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


_SHA256 = re.compile("[0-9a-f]{64}|[0-9a-f]{128}")


def alike(one: object, other: object) -> bool:
    """Tell whether two values are the same; the fingerprint of a model that an earlier version wrote is the second half
    of that which it has today."""
    digests = all(isinstance(each, str) and _SHA256.fullmatch(each) for each in (one, other))
    if digests and len(str(one)) != len(str(other)):
        return str(one)[-64:] == str(other)[-64:]
    return one == other


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
    elif not alike(stored, wanted):
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


LIMIT = 500
LONG = 8000
"""Signs of a line that may hold a command, with two paths of any length."""
_PLAIN = re.compile(r"[\x20-\x7e]*")
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_FOREIGN = re.compile("[^\x00-\x7e]+")
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # controls, formats (bidi too), surrogates, line separators
_JOINING = frozenset(" \u00ad\u200b\u200c\u200d\u2060")
"""What parts and joins letters in a line, as Persian and Hindi are written, and moves nothing."""
_UNSTEADY = dict.fromkeys([0xAD, 0x200B, 0x200D, 0x2060, 0x20E3, *range(0xFE00, 0xFE10), *range(0x1F3FB, 0x1F400)])
_UNSTEADY |= {0x1F1E6 + place: letter for place, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}
"""Signs whose cells each terminal counts in its own way, and what is drawn for them; a flag is its two letters."""
DELETE = 0x7F


def safe(text: object, limit: int = LIMIT) -> str:
    """Put `text` on one line, every sign that could steer a terminal escaped, at most `limit` signs long."""
    line = str(text)
    shown = line[:limit]
    if not _PLAIN.fullmatch(shown):
        shown = "".join(
            sign if sign in _JOINING or category(sign) not in _UNSAFE else sign.encode("unicode_escape").decode()
            for sign in shown
        )
    return shown if len(line) <= limit else shown + "…"


def drawn(text: object, limit: int = LIMIT) -> str:
    """Make `text` safe for a place of a screen where every terminal has to count the same cells."""
    line = safe(text, limit)
    return line if line.isascii() else line.translate(_UNSTEADY)


def masked(url: str) -> str:
    """A URL without what stands before its host or behind its path."""
    return re.sub(r"//[^/@]*@", "//***@", re.sub(r"[?#].*", "?***", url))


def given(value: object) -> str:
    """Write what was given and cannot be taken; of a URL no keys that it may hold."""
    return repr(masked(value) if isinstance(value, str) and "://" in value else value)[:100]


def command(words: Sequence[str]) -> str:
    """Write arguments of `interlock` as a shell takes them, whatever is in them; `safe` finds nothing to escape."""
    return " ".join(["interlock", *map(quoted, words)])


def quoted(word: str) -> str:
    """Write a word for a shell; one with signs that steer a terminal as bash, zsh and ksh read it: `$'a\\x0ab'`."""
    if safe(word, len(word)) == word:
        return shlex.quote(word)
    plain = (f"\\{sign}" if sign in "'\\" else sign if safe(sign) == sign else _bytes(sign) for sign in word)
    return "$'" + "".join(plain) + "'"


def _bytes(sign: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(sign))


def argument(path: object) -> str:
    """Write a path so that no command takes it for an option, or its `~` for a home."""
    return f"./{path}" if str(path).startswith(("-", "~")) else str(path)


def typed(path: object) -> str:
    """Write a path as it is typed behind an option in a shell."""
    return quoted(argument(path))


def in_collection(collection: str, file: str) -> str:
    """Name a file of a collection; one that the collection is called after, without it."""
    return file if file.startswith(f"{collection}.") else f"{collection}/{file}"


def named(path: Path) -> str:
    """Write a path as JSON can hold it: bytes of its name that are no UTF-8 are replaced."""
    return legible(str(path))


def legible(name: str) -> str:
    """Write what the system calls something as JSON can hold it: bytes that are no UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")


def unarmed(data: bytes, *, ascii: bool = False) -> bytes:
    """Write JSON in UTF-8 with DEL, C1 controls, directions and line separators as `\\uXXXX`, or in `ascii` with
    all that is none; values stay the same."""
    return (_FOREIGN if ascii else _STEERING).sub(_in_json, data.decode()).encode()


def _in_json(signs: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack("<H", signs[0].encode("utf-16-le")))
