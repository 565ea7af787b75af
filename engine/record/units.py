"""Sizes and durations as people write and read them."""

import math
import re
from datetime import time

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_FACTORS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def human_bytes(count: float) -> str:
    """Write `count` bytes as people read them: 1536 -> '1.5 KiB'; '?' for what is no number of bytes."""
    if not _countable(count):
        return "?"
    for unit in UNITS:
        if abs(count) < 1024 or unit == UNITS[-1]:
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
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in _FACTORS or len(match[1]) > 30:
        raise ValueError("expected a size such as 12GiB or 800MiB")
    return int(float(match[1]) * _FACTORS[match[2].upper()])


def duration(seconds: float) -> str:
    """Write seconds as `0:42`, `11:07`, `3:02:11`: hours where there are any; '?' for what is no time."""
    if not _countable(seconds):
        return "?"
    whole = abs(int(seconds))
    hours, minutes, sign = whole // 3600, whole % 3600 // 60, "-" if seconds <= -1 else ""
    return sign + (f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}")


def parse_duration(text: str) -> float:
    """Read seconds as people write them: '8h30m', '90m', '45s', '1.5h'. Raises ValueError for anything else."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip().lower())
    if not match or not any(match.groups()) or len(text) > 30:
        raise ValueError("expected a duration such as 8h30m or 45m")
    return sum(float(part) * unit for part, unit in zip(match.groups(default="0"), (3600, 60, 1), strict=True))


def parse_time_of_day(text: str) -> time:
    """Read a time of day: '17:45', '7:05:30'. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", text.strip())
    if not match:
        raise ValueError("expected a time of day such as 17:45")
    hour, minute, second = map(int, match.groups(default="0"))
    return time(hour, minute, second)


def _countable(number: float) -> bool:
    """Whether a number, which a damaged file may have given, is one that people count with."""
    return math.isfinite(number) if isinstance(number, float) else abs(number) < 1 << 1000
