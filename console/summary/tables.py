"""The lists of a summary as tables: which columns, called what, in which form. Pure.

What is missing is shown as `-`, and a column of nothing else is not shown. A list that is not known here gets the
fields of its items as columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from interlock.engine.record.units import duration, human_bytes
from interlock.widgets.nodes import Step, written

NOTHING = "-"
MOST = 1e15
"""A rate beyond it was damaged, not measured."""
Item = Mapping[str, object]
Form = Callable[[object], str]


@dataclass(frozen=True)
class Table:
    """Cells as text, under their heads; `count` is how many rows there are in all."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    count: int


def table_of(steps: tuple[Step, ...], value: object, most: int | None = None) -> Table | None:
    """The table of the value at a place, of its first `most` rows; None where it is no list of objects."""
    names = [step for step in steps if isinstance(step, str)]
    name = names[-1] if names else ""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return _table(name, [(each, "") for each in value], most)
    if isinstance(value, dict) and names == ["configuration"]:
        rows = [(key, _text(_get(each, "value")), _text(_get(each, "origin"))) for key, each in value.items()]
        return Table(name, ("setting", "value", "from"), tuple(rows[:most]), len(rows))
    return None


def overview(data: Mapping[str, object], most: int | None = None) -> list[Table]:
    """What a reader wants to see first: each list of the summary that holds anything, over all its collections."""
    made = [_over(data, name, most) for name in OVERVIEW]
    return [table for table in made if table]


def _over(data: Mapping[str, object], name: str, most: int | None) -> Table | None:
    """One list; where it stands in every collection, the collection's name comes first when there are several."""
    if name in data:
        return _warnings(data[name], most) if name == "warnings" else table_of((name,), data[name], most)
    collections = [each for each in _list(data.get("collections")) if isinstance(each, dict)]
    items: list[tuple[Item, str]] = []
    for collection in collections:
        found = collection.get(name)
        each = [found] if isinstance(found, dict) else _list(found)
        items += [(item, _text(collection.get("name"))) for item in each if isinstance(item, dict)]
    if name == "leases":
        items = list({_text(item.get("lease")): (item, where) for item, where in items}.values())
    named = len(collections) > 1 and name not in SHARED
    return _table(name, items if named else [(item, "") for item, _ in items], most) if items else None


def _warnings(value: object, most: int | None) -> Table | None:
    rows = tuple((str(each),) for each in _list(value))
    return Table("warnings", ("warning",), rows[:most], len(rows)) if rows else None


def _table(name: str, items: Sequence[tuple[Item, str]], most: int | None) -> Table:
    shown = items[:most]
    columns = COLUMNS.get(name) or _columns([item for item, _ in items[:50]])
    heads, rows = tuple(columns), tuple(tuple(cell(item) for cell in columns.values()) for item, _ in shown)
    if any(where for _, where in shown):
        heads, rows = ("collection", *heads), tuple((where, *row) for (_, where), row in zip(shown, rows, strict=True))
    kept = [place for place in range(len(heads)) if any(row[place] != NOTHING for row in rows)]
    return Table(name, _chosen(heads, kept), tuple(_chosen(row, kept) for row in rows), len(items))


def _chosen(cells: tuple[str, ...], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(cells[place] for place in places)


def _columns(items: Sequence[Item]) -> dict[str, Callable[[Item], str]]:
    """The fields of items of a kind that is not known here."""
    names = dict.fromkeys(name for item in items for name in item)
    return {name: _field(name) for name in names}


def _field(name: str, form: "Form | None" = None) -> Callable[[Item], str]:
    return lambda item: (form or _text)(item.get(name))


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


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _bytes(value: object) -> str:
    return human_bytes(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _seconds(value: object) -> str:
    """Short times to the tenth, longer ones as a clock shows them."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _text(value)
    return f"{value:.1f}" if 0 <= value < 60 else duration(value)


def _rate(value: object) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _text(value)
    return f"{value:,.1f}" if abs(value) < MOST else "?"


def _pass(item: Item) -> str:
    """Passes are counted from 1 for people."""
    number = item.get("model_pass")
    return str(number + 1) if isinstance(number, int) else _text(number)


def _batch(item: Item) -> str:
    """Batches too."""
    index = item.get("batch_index")
    return str(index + 1) if isinstance(index, int) else _text(index)


def _size(name: str) -> Callable[[Item], str]:
    return lambda item: f"{len(_list(item.get(name))):,}"


def _verified(item: Item) -> str:
    found = item.get("verification")
    return _text(found.get("ok")) if isinstance(found, dict) else NOTHING


def _receipts(item: Item, *names: str) -> Iterator[int]:
    """A number of each receipt of a lease."""
    for each in _list(item.get("receipts")):
        found: object = each
        for name in names:
            found = _get(found, name)
        if isinstance(found, int):
            yield found


def _get(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _occupied(moment: str) -> Callable[[Item], str]:
    return lambda item: _bytes(_get(item.get(moment), "occupied"))


SHARED = ("leases", "cache")
"""Lists that every collection repeats, or that belong to the run."""
OVERVIEW = (
    "collections",
    "passes",
    "leases",
    "mitigations",
    "parked",
    "devices",
    "exports",
    "verification",
    "refusals",
    "residues",
    "calibrations",
    "controls",
    "warnings",
)
COLUMNS: Mapping[str, Mapping[str, Callable[[Item], str]]] = {
    "collections": {
        "collection": _field("name"),
        "status": _field("status"),
        "files": _field("files", _count),
        "chunks": _field("chunks", _count),
        "dup": _field("duplicates", _count),
        "refused": _field("refused", _count),
        "passes": _size("passes"),
        "mitig": _size("mitigations"),
        "verified": _verified,
        "reason": _field("reason"),
    },
    "passes": {
        "pass": _pass,
        "model": _field("model"),
        "status": _field("status"),
        "batches": _field("batches", _count),
        "rows": _field("rows", _count),
        "reused": _field("rows_reused", _count),
        "tokens": _field("tokens", _count),
        "seconds": _field("seconds", _seconds),
        "rows/s": _field("rows_per_second", _rate),
        "device": _field("device"),
        "truncated": _field("truncated_rows", _count),
        "dtype": _field("dtype"),
        "weight": _field("weight"),
        "reason": _field("reason"),
    },
    "leases": {
        "lease": _field("lease"),
        "pass": _pass,
        "model": _field("model"),
        "devices": _field("devices"),
        "held": _field("held_seconds", _seconds),
        "peak": lambda item: _bytes(max(_receipts(item, "peak", "occupied"), default=None)),
        "budget": _field("budget_bytes", _bytes),
        "residue": lambda item: _bytes(sum(_receipts(item, "residue_bytes")) if item.get("receipts") else None),
        "predicted": _field("predicted_bytes", _bytes),
        "weights": _field("weights_bytes", _bytes),
        "attach": _field("attach_seconds", _seconds),
        "streamed": _field("streamed"),
        "warm": _field("warm"),
        "schedule": _field("schedule"),
    },
    "receipts": {
        "device": _field("device"),
        "before": _occupied("before"),
        "peak": _occupied("peak"),
        "after": _occupied("after"),
        "residue": _field("residue_bytes", _bytes),
        "retries": _field("retries", _count),
        "lost": _field("lost"),
    },
    "mitigations": {
        "pass": _pass,
        "batch": _batch,
        "rung": _field("rung"),
        "device": _field("device"),
        "cause": _field("cause"),
        "action": _field("action"),
        "rows": _field("rows", _count),
        "cost s": _field("cost_seconds", _seconds),
    },
    "exports": {
        "path": _field("path"),
        "rows": _field("rows", _count),
        "bytes": _field("bytes", _bytes),
        "sha256": _field("sha256"),
    },
    "refusals": {"file": _field("file"), "record": _field("record"), "reason": _field("reason")},
    "verification": {
        "store": _field("store"),
        "ok": _field("ok"),
        "points": _field("points", _count),
        "expected": _field("expected", _count),
        "stale": _field("stale", _count),
        "sampled": _field("sampled", _count),
        "worst cosine": _field("worst_cosine"),
        "detail": _field("detail"),
    },
    "parked": {"pass": _pass, "model": _field("model"), "row": _field("row"), "reason": _field("reason")},
    "cache": {
        "model": _field("model"),
        "outcome": _field("outcome"),
        "bytes": _field("bytes", _bytes),
        "seconds": _field("seconds", _seconds),
        "retries": _field("retries", _count),
        "source": _field("source"),
        "commit": _field("commit"),
    },
    "devices": {
        "device": _field("name"),
        "label": _field("label"),
        "total": _field("total_bytes", _bytes),
        "ceiling": _field("ceiling_bytes", _bytes),
        "peak": _field("peak_occupied_bytes", _bytes),
        "lost": _field("lost"),
    },
    "residues": {
        "lease": _field("lease"),
        "device": _field("device"),
        "bytes": _field("bytes", _bytes),
        "left": _field("left_bytes", _bytes),
        "action": _field("action"),
    },
    "calibrations": {
        "pass": _pass,
        "device": _field("device"),
        "batches": _field("batches", _count),
        "scale": _field("scale"),
        "margin": _field("margin"),
        "worst": _field("worst"),
    },
}
