"""What a table of figures is made of: results as they were measured, goals, and when and on what that was.

A missed goal is bold. A result that is not there, or that is older than the code that it speaks of, has no row.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import evidence

Result = Mapping[str, Any]
Row = Sequence[object]


class Figures(NamedTuple):
    """A table, and what its figures were measured on."""

    heads: list[str]
    rows: list[Row]
    origin: str


def figures(heads: list[str], names: Sequence[str], rows: Callable[..., Iterator[Row]]) -> Figures:
    """The table that `rows` makes of these results, each None where nothing is known of it that still holds."""
    fresh = {name: current(name) for name in names}
    stale = [name for name, found in fresh.items() if found is None and _file(name).exists()]
    moments = {name: _when(found) for name, found in fresh.items() if found}
    by_moment = [
        (when, [name for name in moments if moments[name] == when]) for when in dict.fromkeys(moments.values())
    ]
    origin = "; ".join(f"{when} ({', '.join(each)})" for when, each in by_moment)
    omitted = f" Not stated, since the code has changed since: {', '.join(stale)}." if stale else ""
    return Figures(heads, list(rows(*fresh.values())), f"Measured: {origin or 'nothing at this code'}.{omitted}")


def current(name: str) -> Result | None:
    """A result as it was kept; None where there is none, or it is older than the code that it speaks of."""
    found = dict(json.loads(_file(name).read_text())) if _file(name).exists() else None
    return None if found is None or evidence.age(found) else found


def _file(name: str) -> Path:
    return evidence.RESULTS / f"{name}.json"


def _when(found: Result) -> str:
    machine = found.get("machine", {})
    where = f" on {machine['processor']}, {machine['capability']}" if "processor" in machine else ""
    return f"{found['date']} at {found['commit']}{where}"


def met_or_bold(text: str, met: bool) -> str:
    return text if met else f"**{text}**"


def goal_of(found: Result, name: str, form: str = "{:.2f}x", scale: float = 1) -> tuple[str, str]:
    """A figure and its goal, both in the same form."""
    goal = found["goals"][name]
    wanted = float(goal["goal"].split()[1])
    return met_or_bold(form.format(goal["value"] * scale), goal["met"]), _plain(form, wanted * scale)


def _plain(form: str, wanted: float) -> str:
    """The goal without the digits that only a figure needs."""
    unit = form.partition("}")[2]
    return f"{wanted:.7g}{unit}"


def share_of(found: Result, name: str, digits: int = 1) -> tuple[str, str]:
    return goal_of(found, name, f"{{:.{digits}f}} %", 100)


def median_of(found: Result, name: str) -> float:
    return float(found["cpu_seconds"][name]["median"])


def spread_of(found: Result, name: str) -> str:
    if name not in found["cpu_seconds"]:
        return ""
    each = found["cpu_seconds"][name]
    return f"{each['median']:.2f} ({each['min']:.2f}-{each['max']:.2f})"


def beside_goal(found: Result, name: str, form: str, scale: float = 1) -> str:
    """A figure with its goal, where this result has one of that name."""
    return ", goal ".join(goal_of(found, name, form, scale)) if name in found["goals"] else ""
