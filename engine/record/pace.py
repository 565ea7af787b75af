"""How fast models were in earlier runs, as their summaries tell: what a run expects before it has begun."""

import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from interlock.engine.record import atomic

RUNS_ASKED = 20
"""Earlier runs whose pace is looked at, the latest ones."""


class _Pass(msgspec.Struct):
    """What a summary says of a pass, as far as it matters here."""

    model: str
    dtype: str
    status: str
    tokens: int
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None


class _Passes(msgspec.Struct):
    passes: list[_Pass]


class _Told(msgspec.Struct):
    device_kind: str
    collections: list[_Passes]


def paces(out: Path, kind: str) -> dict[tuple[str, str], float]:
    """Read tokens a second by model and precision from the latest runs in `out` on this kind of device."""
    known: dict[tuple[str, str], float] = {}
    for path in sorted(out.glob("*/summary.json"), key=_written)[-RUNS_ASKED:]:
        with suppress(OSError, ArithmeticError, RecursionError, msgspec.MsgspecError):  # a bad one hurts no other
            told = msgspec.json.decode(atomic.content(path), type=_Told)
            if told.device_kind == kind:
                known |= _of(each for found in told.collections for each in found.passes)
    return known


def _of(passes: Iterable[_Pass]) -> dict[tuple[str, str], float]:
    """The paces of one run: over all its collections, for a few texts alone tell a pace badly."""
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for each in passes:
        if each.status == "completed" and each.tokens > 0 and each.seconds:
            tokens, seconds = sums.get((each.model, each.dtype), (0, 0.0))
            sums[each.model, each.dtype] = tokens + each.tokens, seconds + each.seconds
    found = {which: tokens / seconds for which, (tokens, seconds) in sums.items()}
    return {which: pace for which, pace in found.items() if math.isfinite(pace)}  # anything else no journal could hold


def _written(path: Path) -> float:
    """When a file was written last; never, where nobody can tell."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
