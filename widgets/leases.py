"""The pane of leases: who holds which devices, what that took of their memory, and what it left behind.

Held ones stand first, then the latest. Memory is what this process occupied on the device where it was the most, in
GiB.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from interlock.engine.record.facts import Receipt, node_of
from interlock.engine.record.snapshot import GONE, Snapshot
from interlock.engine.record.state import LeaseState
from interlock.engine.record.words import duration, human_bytes
from interlock.widgets.formats import MIB, clock, devices_of, gib
from interlock.widgets.pane import Chooser
from interlock.widgets.text import CURSOR, Row, Span, fit, fitted, kept, table_rows, width_of

LEAST_MODEL, WHOLE_MODEL, MOST_MODEL, WIDE, ROOMY = 12, 20, 28, 56, 100
STYLES = {"HELD": "accent", "RELEASED": "", "LOST": "error"}


class LeaseColumn(NamedTuple):
    """What is told of a lease under one title; of low `rank` is what stays on a narrow screen."""

    title: str
    rank: int
    text: Callable[[LeaseState, Snapshot], str]
    right: bool = False


class Leases(Chooser):
    _drawn: object = None
    _chosen = ""
    """The lease that an operator chose; before that, the first is told of."""

    def draw(self, snapshot: Snapshot) -> None:
        """Show this moment of the run; times are told by the second, so nothing is drawn up more often than that."""
        self._again = None
        size = (self.inner_width, self.inner_height)
        key = (size, int(snapshot.latest_at), snapshot.phase, snapshot.leases_in_all, snapshot.leases)
        if key != self._drawn:
            self._drawn = key
            self.show(rows(snapshot, *size[:2]))

    def detail(self, snapshot: Snapshot) -> None:
        """Show all that is known of one lease."""

        def draw(places: int) -> None:
            names = [lease.lease for lease in _ordered(snapshot)]
            place = names.index(self._chosen) if self._chosen in names else 0
            place = max(0, min(place + places, len(names) - 1))
            self._chosen = names[place] if places else self._chosen
            self.show(detail(snapshot, place, self.inner_width, self.inner_height))

        self._drawn, self._again = None, draw
        draw(0)


def rows(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    """All leases that are known, for a pane that scrolls, below their titles where `height` has room for these."""
    return _rows(snapshot, width, height)


def detail(snapshot: Snapshot, chosen: int, width: int, height: int) -> list[Row]:
    """Draw the leases around one of them, and below them all that is known of that one; as many rows as it takes."""
    leases = _ordered(snapshot)
    if not leases:
        return rows(snapshot, width, height)
    heads, *lines = _rows(snapshot, width - 1, 2)
    count = max(1, min(len(leases), height // 3))
    first = max(0, min(chosen - count // 2, len(leases) - count))
    shown = [fitted([Span(" "), *heads], width)]
    for place in range(first, first + count):
        shown.append(fitted([Span(CURSOR if place == chosen else " ", "accent"), *lines[place]], width))
    shown += [(Span(" " * width),), *_receipt(leases[chosen], snapshot, width)]
    return shown


def _receipt(lease: LeaseState, snapshot: Snapshot, width: int) -> list[Row]:
    """What it was granted, what that took, and what every device measured before it, at its peak and after it."""
    on = ", ".join(f"{name} {human_bytes(size)}" for name, size in lease.weights_on.items())
    facts = [
        (lease.lease, f"{lease.model}, {_state(lease, snapshot)}, pass {lease.model_pass + 1}, {lease.schedule}"),
        ("granted", f"{clock(lease.granted_at)}, held {_time(lease, snapshot)}"),
        ("budget", ", ".join(f"{name} {human_bytes(size)}" for name, size in _budgets(lease).items())),
        ("predicted", f"{human_bytes(lease.predicted_bytes)} at most"),
        ("weights", f"{on or human_bytes(lease.weights_bytes)}, attached in {lease.attach_seconds:.1f} s"),
        ("notes", _notes(lease, snapshot)),
    ]
    shown = [fitted([Span(f"{name:<10}", "dim"), Span(text)], width) for name, text in facts if text]
    if not lease.receipts:
        return [*shown, fitted([Span("no receipt before it is released", "dim")], width)]
    heads = ["device", "moment", "occupied", "reserved", "allocated", "residue", "retries"]
    cells = [line for receipt in lease.receipts for line in _moments(receipt)]
    return [*shown, (Span(" " * width),), *table_rows(heads, cells, width)]


def _budgets(lease: LeaseState) -> Mapping[str, int]:
    return lease.budgets or dict.fromkeys(lease.devices, lease.budget_bytes)


def _moments(receipt: Receipt) -> list[list[str]]:
    """A device's part of a receipt, a line for each moment."""
    if receipt.lost:
        return [[receipt.device, "lost", *["?"] * 5]]
    moments = {"before": receipt.before, "peak": receipt.peak, "after": receipt.after}
    lines = [
        [
            receipt.device,
            moment,
            *(human_bytes(size) for size in (each.occupied, each.reserved, each.allocated)),
            "",
            "",
        ]
        for moment, each in moments.items()
    ]
    lines[-1][-2:] = [human_bytes(receipt.residue_bytes), str(receipt.retries)]
    return lines


def _ordered(snapshot: Snapshot) -> list[LeaseState]:
    """The held ones, then the latest."""
    newest = list(reversed(snapshot.leases))
    return sorted(newest, key=lambda lease: not _held(lease, snapshot))


def _rows(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    leases = _ordered(snapshot)
    if not leases:
        return [fitted([Span("no lease yet", "dim")], width)]
    texts = [[column.text(lease, snapshot) for column in COLUMNS] for lease in leases]
    titles = [column.title if height > 1 else "" for column in COLUMNS]
    gap = 2 if width >= ROOMY else 1
    sizes = _sizes([titles, *texts], texts, width, gap)
    shown = [_row(titles, ["dim"] * len(COLUMNS), sizes, width, gap)] if height > 1 else []
    for lease, line in zip(leases, texts, strict=True):
        styles = [_style(column, lease, snapshot) for column in COLUMNS]
        shown.append(_row(line, styles, sizes, width, gap))
    if earlier := snapshot.leases_in_all - len(leases):
        shown.append(fitted([Span(f"and {earlier} earlier (all are in the summary)", "dim")], width))
    return shown


def _sizes(lines: Sequence[Sequence[str]], texts: Sequence[Sequence[str]], width: int, gap: int) -> dict[int, int]:
    """The columns that say anything and fit, with their widths; what is over goes to the names of models."""
    widest = [max(width_of(line[place]) for line in lines) for place in range(len(COLUMNS))]
    least = list(widest)
    least[MODEL_AT] = min(widest[MODEL_AT], WHOLE_MODEL if width >= WIDE else LEAST_MODEL)
    some = [place for place in range(len(COLUMNS)) if any(line[place] for line in texts)]
    # That nothing stayed behind matters less than what was taken.
    clean = not any(line[RESIDUE_AT].startswith("!") for line in texts)
    ranks = [USUAL + 1 if clean and place == RESIDUE_AT else COLUMNS[place].rank for place in some]
    fits = kept([least[place] for place in some], ranks, width, gap)
    sizes = {some[at]: least[some[at]] for at in fits}
    spare = width + gap - sum(size + gap for size in sizes.values())
    if MODEL_AT in sizes:
        sizes[MODEL_AT] = min(widest[MODEL_AT], MOST_MODEL, sizes[MODEL_AT] + spare)
    return sizes


def _row(line: Sequence[str], styles: Sequence[str], sizes: Mapping[int, int], width: int, gap: int) -> Row:
    spans: list[Span] = []
    for place, size in sizes.items():
        spans += [Span(" " * gap), Span(fit(line[place], size, right=COLUMNS[place].right), styles[place])]
    return fitted(spans[1:], width)


def _style(column: LeaseColumn, lease: LeaseState, snapshot: Snapshot) -> str:
    if column.text is _state:
        return STYLES[_state(lease, snapshot)]
    if column.text is _residue and _left(lease):
        return "warn"
    return "" if column.rank <= USUAL or not lease.held_seconds else "dim"


def _held(lease: LeaseState, snapshot: Snapshot) -> bool:
    return lease.held and not snapshot.over and snapshot.phase != GONE


def _state(lease: LeaseState, snapshot: Snapshot) -> str:
    if _held(lease, snapshot):
        return "HELD"
    return "LOST" if lease.held_seconds is None or any(receipt.lost for receipt in lease.receipts) else "RELEASED"


def _time(lease: LeaseState, snapshot: Snapshot) -> str:
    """How long it was held, or has been so far."""
    if lease.held_seconds is not None:
        return duration(lease.held_seconds)
    return duration(max(0.0, snapshot.latest_at - lease.granted_at)) if lease.granted_at and lease.held else "?"


def _memory(lease: LeaseState, snapshot: Snapshot) -> str:
    """Before it, at its peak and after it, where that was the most; while it is held, what there is now."""
    known = [receipt for receipt in lease.receipts if not receipt.lost]
    if known:
        worst = max(known, key=lambda receipt: receipt.peak.occupied)
        sizes = (worst.before.occupied, worst.peak.occupied, worst.after.occupied)
        return " >".join(f"{gib(size):>4}" for size in sizes)
    if not _held(lease, snapshot):
        return "unknown"
    now = [view.memory.occupied for view in snapshot.devices if view.facts.name in lease.devices and view.memory]
    return f"{gib(max(now)):>4} now" if now else ""


def _residue(lease: LeaseState, snapshot: Snapshot) -> str:
    """Bytes that stayed after the release, on all devices."""
    if lease.held_seconds is None:
        return ""
    left = _left(lease)
    known = any(not receipt.lost for receipt in lease.receipts)
    return f"!{left / MIB:.0f} MiB" if left >= MIB else f"!{left} B" if left else "0 B" if known else "unknown"


def _notes(lease: LeaseState, snapshot: Snapshot) -> str:
    lost = [receipt.device for receipt in lease.receipts if receipt.lost]
    retries = sum(receipt.retries for receipt in lease.receipts)
    notes = [f"lost {devices_of(lost)}"] * bool(lost) + [_ended(lease)] * lease.left
    notes += ["streamed"] * lease.streamed + ["warm"] * lease.warm + [f"retries {retries}"] * bool(retries)
    return " ".join(notes)


def _ended(lease: LeaseState) -> str:
    return "no receipt" if node_of(lease.lease) else "session ended"


def _left(lease: LeaseState) -> int:
    return sum(receipt.residue_bytes for receipt in lease.receipts if not receipt.lost)


USUAL = 4
MODEL_AT, RESIDUE_AT = 1, 6
COLUMNS = (
    LeaseColumn("lease", 5, lambda lease, _: lease.lease),
    LeaseColumn("model", 0, lambda lease, _: lease.model),
    LeaseColumn("devices", 6, lambda lease, _: devices_of(lease.devices)),
    LeaseColumn("state", 1, _state),
    LeaseColumn("held", 2, _time, right=True),
    LeaseColumn("before>peak>after", 4, _memory),
    LeaseColumn("residue", 3, _residue, right=True),
    LeaseColumn("weights", 9, lambda lease, _: gib(lease.weights_bytes) if lease.weights_bytes else "", right=True),
    LeaseColumn("budget", 8, lambda lease, _: gib(lease.budget_bytes), right=True),
    LeaseColumn("notes", 7, _notes),
    LeaseColumn("schedule", 10, lambda lease, _: lease.schedule),
)
"""In their order on the screen."""
