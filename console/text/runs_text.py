"""The runs of a directory as a table, for a screen and for a pipe, and as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from interlock.engine.record.runs import Overview
from interlock.engine.record.words import human_bytes, named, percent
from interlock.widgets.formats import LEVEL_STYLES, render
from interlock.widgets.text import Row, Span, fitted, table_rows

HEADS = ("state", "run", "age", "done", "issues", "device", "models", "chunks", "size", "pid", "host")
KINDS = {"sim": "SIMULATED", "scripted": "SCRIPTED"}
NAMED = 2
"""Models that are named; more are counted."""


def cells(seen: Overview, now: float) -> list[str]:
    """Tell of a run what stands under HEADS."""
    more = f" +{len(seen.models) - NAMED}" if len(seen.models) > NAMED else ""
    who = seen.occupant
    return [
        seen.health.word,
        seen.id,
        age(now - seen.began_at) if seen.began_at else "-",
        "-" if seen.share_done is None else percent(seen.share_done).strip(),
        f"!{seen.attention.total}" if seen.attention.total else "-",
        KINDS.get(seen.device_kind, seen.device_kind) or "-",
        ", ".join(seen.models[:NAMED]) + more or "-",
        f"{seen.chunks_read:,}" if seen.chunks_read else "-",
        human_bytes(seen.bytes),
        str(who.pid) if who else "-",
        who.host if who else "-",
    ]


def rows(
    seen: Sequence[Overview], marked: Sequence[Path], now: float, width: int
) -> tuple[Row, list[Row]]:  # fmt: skip
    """Draw the heads, and a row for each run: `+` where it is marked, its state in the colour of its health."""
    lines = [cells(each, now) for each in seen]
    lead = len("+ ")
    heads, *drawn = table_rows(HEADS, lines, max(1, width - lead))
    shown = []
    for each, line in zip(seen, drawn, strict=False):
        text, state = "".join(span.text for span in line), len(each.health.word)
        spans = [Span(text[:state], LEVEL_STYLES[each.health.level]), Span(text[state:])]
        shown.append(fitted([Span("+ " if each.path in marked else "  ", "title"), *spans], width))
    return fitted([Span(" " * lead), *heads], width), shown


def about(seen: Overview) -> str:
    """Tell what went wrong in a run, and why it stands as it does."""
    return ": ".join(filter(None, [", ".join(seen.attention.words), seen.health.detail]))


def says(seen: Overview, pattern: str) -> bool:
    """Tell whether a run has this text, in either case: in what is listed of it, or in what it was begun with."""
    told = (seen.id, seen.health.word, seen.device_kind, *seen.models, seen.chunks, about(seen))
    return pattern.casefold() in "\n".join(told).casefold()


def table(seen: Sequence[Overview], now: float) -> str:
    """Write runs for a pipe, a line each."""
    place = HEADS.index("issues")
    rows = [cells(each, now) for each in seen]
    for line, each in zip(rows, seen, strict=True):
        line[place] = ", ".join(each.attention.words) or "-"
    return render(HEADS, rows)


def as_json(seen: Sequence[Overview]) -> str:
    """Write runs for a program; times are seconds since the epoch, sizes bytes."""
    return json.dumps([_listed(each) for each in seen], indent=2)


def nothing(out: Path) -> list[str]:
    """Say what to do where there is no run."""
    return [
        f"No runs in {out}.",
        "interlock run CHUNKS starts one; interlock demo tries it out; --out DIR looks elsewhere.",
    ]


def age(seconds: float) -> str:
    """Write how long ago something was, in one unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _listed(seen: Overview) -> dict[str, object]:
    who, told, wrong = seen.occupant, seen.health, seen.attention
    return {
        "run": named(seen.path), "state": told.word, "detail": told.detail,
        "began_at": seen.began_at, "latest_at": seen.latest_at, "models": seen.models,
        "chunks_read": seen.chunks_read, "done": seen.share_done, "device_kind": seen.device_kind,
        "chunks": seen.chunks, "exit_code": seen.exit_code,
        "parked": wrong.parked, "warnings": wrong.warnings, "mitigations": wrong.mitigations, "refused": wrong.refused,
        "bytes": seen.bytes, "in_use": seen.held,
        "pid": who.pid if who else None, "user": who.user if who else None, "host": who.host if who else None,
    }  # fmt: skip
