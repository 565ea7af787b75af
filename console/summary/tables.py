"""The lists of a summary as tables: which columns, called what, in which form. Pure.

The form of a cell comes of the name of its field. What is missing is shown as `-`, and a column of nothing else is not
shown. A list that is not known here gets the fields of its items as columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interlock.engine.record.words import duration, human_bytes
from interlock.widgets.formats import placed
from interlock.widgets.nodes import Step, is_bytes, written

NOTHING = "-"
LARGEST_RATE = 1e15
"""A rate beyond it was damaged, not measured."""
Item = Mapping[str, object]


@dataclass(frozen=True)
class Table:
    """Cells as text, under their heads; `count` is how many rows there are in all."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    count: int


def listed(value: object) -> list[object]:
    """Take a value as a list, as an empty one where it is none."""
    return value if isinstance(value, list) else []


def objects(value: object) -> list[dict[str, Any]]:
    return [each for each in listed(value) if isinstance(each, dict)]


def table_of(steps: tuple[Step, ...], value: object, limit: int | None = None) -> Table | None:
    """Make the table of the value at a place, of its first `limit` rows; None where it is no list of objects."""
    names = [step for step in steps if isinstance(step, str)]
    name = names[-1] if names else ""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return _table(name, [(each, "") for each in value], limit)
    if isinstance(value, dict) and names == ["configuration"]:
        rows = [(key, _text(_get(each, "value")), _text(_get(each, "origin"))) for key, each in value.items()]
        return Table(name, ("setting", "value", "from"), tuple(rows[:limit]), len(rows))
    return None


def overview(data: Mapping[str, object], limit: int | None = None) -> list[Table]:
    """Make the tables that a reader wants first: each list that holds anything, over all collections."""
    return [table for name in OVERVIEW if (table := _over(data, name, limit))]


def _over(data: Mapping[str, object], name: str, limit: int | None) -> Table | None:
    """One list; where it stands in every collection, the collection's name comes first when there are several."""
    if name == "warnings" and name in data:
        rows = tuple((str(each),) for each in listed(data[name]))
        return Table(name, ("warning",), rows[:limit], len(rows)) if rows else None
    if name in data:
        return table_of((name,), data[name], limit)
    items: list[tuple[Item, str]] = []
    collections = objects(data.get("collections"))
    for collection in collections:
        value = collection.get(name)
        own = [value] if isinstance(value, dict) else objects(value)
        items += [(item, _text(collection.get("name"))) for item in own]
    if name == "leases":
        items = list({_text(item.get("lease")): (item, where) for item, where in items}.values())
    named = len(collections) > 1 and name not in SHARED
    return _table(name, items if named else [(item, "") for item, _ in items], limit) if items else None


def _table(name: str, items: Sequence[tuple[Item, str]], limit: int | None) -> Table:
    shown = items[:limit]
    # `rows` is a head and its field, as is `dup=duplicates`, or `cost_s=cost_seconds`, whose head has a blank.
    known = [column.partition("=") for column in COLUMNS.get(name, "").split()]
    columns = [(head.replace("_", " "), field) if field else (head, head) for head, _, field in known]
    columns = columns or [(field, field) for field in dict.fromkeys(field for item, _ in items[:50] for field in item)]
    heads = ["collection", *(head for head, _ in columns)]
    rows = [[where or NOTHING, *(_cell(item, field) for _, field in columns)] for item, where in shown]
    kept = [place for place in range(len(heads)) if any(row[place] != NOTHING for row in rows)]
    cells = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table(name, tuple(heads[place] for place in kept), cells, len(items))


def _cell(item: Item, field: str) -> str:
    made = MADE.get(field)
    return made(item) if made and field not in item else _form(field, item.get(field))


def _form(field: str, value: object) -> str:
    """A value as people read it, by the name of its field."""
    if field in ("device", "devices") and isinstance(value, str | list):
        return placed(value.split(",") if isinstance(value, str) else [str(each) for each in value]) or NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _text(value)
    if field in EARLIER and not value:
        return NOTHING
    if field == "rows_per_second":
        return f"{value:,.1f}" if abs(value) < LARGEST_RATE else "?"
    if field.endswith("seconds"):  # short times to the tenth, longer ones as a clock shows them
        return f"{value:.1f}" if 0 <= value < 60 else duration(value)
    if isinstance(value, float):
        return _text(value)
    if is_bytes(field):
        return human_bytes(value)
    return f"{value + (field in COUNTED):,}"


def _text(value: object) -> str:
    match value:
        case None:
            return NOTHING
        case str():
            return value or NOTHING
        case bool():
            return "yes" if value else "no"
        case list() if all(isinstance(each, str) for each in value):
            return ",".join(value) or NOTHING
    return written(value)


def _occupied(moment: str) -> Callable[[Item], str]:
    return lambda item: _form("occupied", _get(item.get(moment), "occupied"))


def _most_occupied(lease: Item) -> str:
    peaks = [_get(_get(each, "peak"), "occupied") for each in listed(lease.get("receipts"))]
    return _form("occupied", max((peak for peak in peaks if isinstance(peak, int)), default=None))


def _left_behind(lease: Item) -> str:
    left = [_get(each, "residue_bytes") for each in listed(lease.get("receipts"))]
    return _form("bytes", sum(each for each in left if isinstance(each, int)) if left else None)


def _get(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


SHARED = ("leases", "cache")
"""Lists that every collection repeats, or that belong to the run."""
OVERVIEW = (
    "collections", "passes", "leases", "mitigations", "parked", "nodes", "devices", "exports", "verification",
    "refusals", "missing", "residues", "canaries", "calibrations", "controls", "warnings",
)  # fmt: skip
EARLIER = ("split_rows", "spans", "records", "same", "renamed", "refused_files")
"""What not every run does or tells: 0 says nothing."""
COUNTED = ("model_pass", "batch_index")
"""Places that are counted from 1 for people."""
MADE: Mapping[str, Callable[[Item], str]] = {
    "passes.count": lambda item: f"{len(listed(item.get('passes'))):,}",
    "mitigations.count": lambda item: f"{len(listed(item.get('mitigations'))):,}",
    "verification.ok": lambda item: _text(_get(item.get("verification"), "ok")),
    "receipts.peak": _most_occupied,
    "receipts.residue": _left_behind,
    "before.occupied": _occupied("before"),
    "peak.occupied": _occupied("peak"),
    "after.occupied": _occupied("after"),
}
"""Columns that are no field of an item."""
COLUMNS: Mapping[str, str] = {
    "collections": "collection=name status files records chunks same dup=duplicates refused passes=passes.count "
    "mitig=mitigations.count verified=verification.ok reason",
    "passes": "pass=model_pass model status batches rows reused=rows_reused tokens seconds rows/s=rows_per_second "
    "kind truncated=truncated_rows coverage terms=terms_per_text token_vectors token_bytes device split=split_rows "
    "spans dtype pooling limit=max_tokens weight termless=rows_without_terms reason",
    "leases": "lease pass=model_pass model devices held=held_seconds peak=receipts.peak budget=budget_bytes "
    "residue=receipts.residue predicted=predicted_bytes weights=weights_bytes attach=attach_seconds streamed warm "
    "schedule",
    "receipts": "device before=before.occupied peak=peak.occupied after=after.occupied residue=residue_bytes retries "
    "lost",
    "mitigations": "pass=model_pass batch=batch_index rung device cause action rows cost_s=cost_seconds",
    "exports": "path rows bytes sha256",
    "refusals": "file record reason",
    "verification": "store ok points expected stale pruned sampled worst_cosine=worst_cosine detail",
    "parked": "pass=model_pass model file record chunk=chunk_id row reason",
    "missing": "pass=model_pass model kind weight reason",
    "cache": "model outcome bytes seconds retries source commit",
    "devices": "device=name label total=total_bytes ceiling=ceiling_bytes peak=peak_occupied_bytes lost",
    "nodes": "node=name label batches rows seconds lost again=rows_again doubled=batches_doubled sent=sent_bytes "
    "devices refused",
    "residues": "lease device bytes left=left_bytes action",
    "canaries": "pass=model_pass model device dtype outcome cosine least reference rows attention streamed "
    "action detail seconds remembered",
    "calibrations": "pass=model_pass device batches scale margin worst",
}
