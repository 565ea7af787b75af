"""The runs of a directory as a table, for a screen and for a pipe, and as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from interlock.engine.record.words import few, human_bytes, named, percent, remaining
from interlock.engine.standing.judgement import Attention, DeviceUse, Judgement
from interlock.engine.standing.runs import Overview
from interlock.widgets.formats import LEVEL_STYLES, devices_of, render
from interlock.widgets.header import sign_of
from interlock.widgets.text import Column, Row, Span, fitted, in_columns, sized

COLUMNS = (
    Column(0, "state"), Column(1, "run", least=15), Column(2, "done", right=True), Column(3, "eta", right=True),
    Column(8, ""), Column(4, "issues", least=13), Column(5, "devices", least=17, most=48), Column(6, "reason"),
    Column(7, "age", right=True), Column(9, "kind"), Column(10, "models", least=14), Column(11, "chunks", right=True),
    Column(12, "size", right=True), Column(13, "pid", right=True), Column(14, "host"),
)  # fmt: skip
"""What a list tells of a run; the one without a title is how far its end may be off."""
REASON = 7
"""Its place: it is worth a third of the width, or nothing."""
KINDS = {"sim": "SIMULATED", "scripted": "SCRIPTED"}
NAMED, EACH = 2, 4
"""Models that are named, and devices of which each is told; more are counted."""


def cells(seen: Overview, now: float) -> list[Span]:
    """Tell of a run what stands in COLUMNS, empty where there is nothing to tell."""
    more = f" +{len(seen.models) - NAMED}" if len(seen.models) > NAMED else ""
    who, wrong, left = seen.occupant, seen.attention, seen.left
    worst = next((level for level in ("error", "warn") if any(each.level == level for each in seen.devices)), "")
    return [
        Span(f"{sign_of(seen.health)} {seen.health.word}", LEVEL_STYLES[seen.health.level]),
        Span(seen.id),
        Span("" if seen.share_done is None else percent(seen.share_done).strip()),
        Span(remaining(left.seconds) if left else ""),
        Span(f"±{remaining(left.spread)}" if left else "", "dim"),
        Span(issues(wrong), "error" if wrong.parked and seen.health.level == "error" else "warn"),
        Span(in_use(seen.devices), worst),
        Span(seen.health.detail),
        Span(age(now - seen.began_at) if seen.began_at else ""),
        Span(KINDS.get(seen.device_kind, seen.device_kind)),
        Span(", ".join(seen.models[:NAMED]) + more),
        Span(f"{seen.chunks_read:,}" if seen.chunks_read else ""),
        Span(human_bytes(seen.bytes)),
        Span(str(who.pid) if who else ""),
        Span(who.host if who else ""),
    ]


def issues(wrong: Attention) -> str:
    """Name what does not come back by itself, and count the rest: `1 text parked !27`."""
    rest = wrong.rest.total
    return " ".join([*wrong.losses.words, *[f"!{rest}"] * bool(rest)])


def in_use(found: Sequence[DeviceUse]) -> str:
    """Tell how much is used of what the run may have of each device, and name them, those that are lost apart:
    `41% cuda:0, lost cuda:1`; of more than EACH the least and the most; of those that nobody uses any more their names
    alone."""
    shares = [each.share for each in found if each.share is not None]
    if shares and len(found) <= EACH:
        told = [_used(each.share) for each in found if not each.lost]
    else:
        told = [" to ".join(dict.fromkeys(map(_used, (min(shares), max(shares)))))] if shares else []
    names, lost = [each.name for each in found], [each.name for each in found if each.lost]
    return " ".join([*told, devices_of(names, lost)])


def _used(share: float | None) -> str:
    return "?" if share is None else f"{min(999, int(share * 100 + 1e-9))}%"


def rows(seen: Sequence[Overview], marked: Sequence[Path], now: float, width: int) -> tuple[Row, list[Row]]:
    """Draw the heads, and a row for each run: `+` where it is marked; what does not fit goes by its rank."""
    lines = [cells(each, now) for each in seen]
    some = [any(line[place].text for line in lines) for place in range(len(COLUMNS))]
    heads = [Span(column.title * there, "title") for column, there in zip(COLUMNS, some, strict=True)]
    reason = COLUMNS[REASON]._replace(least=max(20, width // 3))
    columns = (*COLUMNS[:REASON], reason, *COLUMNS[REASON + 1 :])
    sizes = sized([heads, *lines], columns, width - 2)
    signs = [Span("  "), *(Span("+ " if each.path in marked else "  ", "title") for each in seen)]
    head, *drawn = [
        fitted([sign, *in_columns(line, columns, sizes)], width)
        for sign, line in zip(signs, [heads, *lines], strict=True)
    ]
    return head, drawn


def about(seen: Overview) -> str:
    """Tell why a run stands as it does, and what went wrong in it."""
    return "; ".join(filter(None, [seen.health.told, ", ".join(seen.attention.words)]))


def says(seen: Overview, pattern: str) -> bool:
    """Tell whether a run has this text, in either case: in what is listed of it, or in what it was begun with."""
    told = (seen.id, seen.health.word, seen.device_kind, *seen.models, seen.chunks, about(seen))
    return pattern.casefold() in "\n".join(told).casefold()


def table(seen: Sequence[Overview], now: float) -> str:
    """Write runs for a pipe, a line each; its reason, which may be long, at its end."""
    heads = [column.title for column in COLUMNS]
    order, rows = [*(head for head in heads if head not in ("", "reason")), "reason"], []
    for each in seen:
        line = dict(zip(heads, (span.text for span in cells(each, now)), strict=True))
        spread = line.pop("")
        line |= {"state": each.health.word, "eta": line["eta"] + spread, "issues": ", ".join(each.attention.words)}
        rows.append([line[head] or "-" for head in order])
    return render(order, rows)


def as_json(seen: Sequence[Overview]) -> str:
    """Write runs for a program; times are seconds since the epoch, sizes bytes."""
    return json.dumps([_listed(each) for each in seen], indent=2)


def nothing(places: Sequence[Path]) -> list[str]:
    """Say what to do where there is no run."""
    return [
        f"No runs in {few([*map(str, places)], 2)}.",
        "interlock run CHUNKS starts one; interlock demo tries it out; --out DIR looks elsewhere.",
    ]


def age(seconds: float) -> str:
    """Write how long ago something was, in one unit."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _listed(seen: Overview) -> dict[str, object]:
    who, ran, wrong, left = seen.occupant, seen.ran or seen, seen.attention, seen.left
    told = ran.health
    return {
        "run": named(seen.path), "state": told.word, "level": told.level, "detail": told.told,
        "upload": upload_told(seen),
        "seconds_left": left.seconds if left else None, "seconds_off": left.spread if left else None,
        "devices": [each._asdict() for each in seen.devices],
        "began_at": seen.began_at, "latest_at": seen.latest_at, "models": seen.models,
        "chunks_read": seen.chunks_read, "done": ran.share_done, "device_kind": seen.device_kind,
        "chunks": seen.chunks, "exit_code": seen.exit_code,
        "lost": wrong.lost, "nodes_lost": wrong.nodes,
        "parked": wrong.parked, "warnings": wrong.warnings, "mitigations": wrong.mitigations,
        "refused": wrong.refused + wrong.allowed,
        "bytes": seen.bytes, "in_use": seen.held,
        "pid": who.pid if who else None, "user": who.user if who else None, "host": who.host if who else None,
    }  # fmt: skip


def upload_told(seen: Judgement) -> dict[str, object] | None:
    """Write for a program how the upload of a run stands; None where none is under way or failed."""
    if not seen.ran:
        return None
    return {"state": seen.health.word, "detail": seen.health.told, "done": seen.share_done}
