"""The pane of leases: who holds which devices, what that took of their memory, and what it left behind.

Those that are held stand there, and the last one; zoomed all of them, and below them what is known of one. Memory is
what this process occupied on the device where it was the most, in GiB.
"""

from collections.abc import Callable, Sequence

from interlock.engine.record.facts import Receipt, node_of
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.state import LeaseState
from interlock.engine.record.words import duration, human_bytes
from interlock.engine.standing.health import goes_on
from interlock.widgets.formats import clock, devices_of, gib
from interlock.widgets.pane import Cursor, PaneKind, View, zoomed_on
from interlock.widgets.text import CURSOR, Column, Row, Span, columned, fitted, table_rows

LEAST_MODEL, WHOLE_MODEL, MOST_MODEL, WIDE, ROOMY = 12, 20, 28, 56, 100
STYLES = {"HELD": "accent", "RELEASED": "", "ENDED": "dim", "LOST": "warn"}


def cursor(view: View) -> Cursor | None:
    """Zoomed it tells of one lease, at first of the first."""
    return zoomed_on([lease.lease for lease in _ordered(view.snapshot)], view, 3)


def rows(view: View) -> list[Row]:
    """Draw the leases that are held and the last one that was, below their titles where there is room for these; zoomed
    those around one of all, and below them its receipt. It scrolls: there are as many rows as it takes."""
    found, width = cursor(view), view.width
    leases = _ordered(view.snapshot)
    if not found:
        now = leases[: 1 + sum(_held(lease, view.snapshot) for lease in leases)]
        return _table(now, view.snapshot, width, titled=view.height > 1)
    heads, *lines = _table(leases, view.snapshot, width - 1, titled=True)
    shown = [fitted([Span(" "), *heads], width)]
    for place in found.sight:
        shown.append(fitted([Span(CURSOR if place == found.place else " ", "accent"), *lines[place]], width))
    lease = leases[found.place]
    return [*shown, (Span(" " * width),), *_receipt(lease, view.snapshot, width)]


def lines_wanted(snapshot: Snapshot) -> int:
    """Say how many lines the held leases and the last one need, with their titles."""
    return 2 + sum(_held(lease, snapshot) for lease in snapshot.leases)


def counter(snapshot: Snapshot) -> str:
    """How many are held."""
    held = sum(_held(lease, snapshot) for lease in snapshot.leases)
    return f"{held} held" if held else ""


def _receipt(lease: LeaseState, snapshot: Snapshot, width: int) -> list[Row]:
    """What it was granted, what that took, and what every device measured before it, at its peak and after it."""
    on = ", ".join(f"{name} {human_bytes(size)}" for name, size in lease.weights_on.items())
    budgets = lease.budgets or dict.fromkeys(lease.devices, lease.budget_bytes)
    facts = [
        (lease.lease, f"{lease.model}, {_state(lease, snapshot)}, pass {lease.model_pass + 1}, {lease.schedule}"),
        ("granted", f"{clock(lease.granted_at)}, held {_time(lease, snapshot)}"),
        ("budget", ", ".join(f"{name} {human_bytes(size)}" for name, size in budgets.items())),
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


def _moments(receipt: Receipt) -> list[list[str]]:
    """A device's part of a receipt, a line for each moment."""
    if receipt.lost:
        return [[receipt.device, "lost", *["?"] * 5]]
    moments = {"before": receipt.before, "peak": receipt.peak, "after": receipt.after}
    lines = [
        [receipt.device, moment, *map(human_bytes, (each.occupied, each.reserved, each.allocated)), "", ""]
        for moment, each in moments.items()
    ]
    lines[-1][-2:] = [human_bytes(receipt.residue_bytes), str(receipt.retries)]
    return lines


def _ordered(snapshot: Snapshot) -> list[LeaseState]:
    """The held ones, then the latest."""
    newest = snapshot.leases[::-1]
    return [lease for held in (True, False) for lease in newest if _held(lease, snapshot) is held]


def _table(leases: Sequence[LeaseState], snapshot: Snapshot, width: int, *, titled: bool) -> list[Row]:
    if not leases:
        return [fitted([Span("no lease yet", "dim")], width)]
    lines = []
    for lease in leases:
        told = [(text(lease, snapshot), column) for column, text in COLUMNS]
        lines.append([Span(text, _style(text, column, lease)) for text, column in told])
    columns = [column for column, _ in COLUMNS]
    columns[1] = columns[1]._replace(least=WHOLE_MODEL if width >= WIDE else LEAST_MODEL)
    if not any(line[RESIDUE_AT].text.startswith("!") for line in lines):
        columns[RESIDUE_AT] = columns[RESIDUE_AT]._replace(rank=USUAL)  # that nothing stayed matters less
    shown = columned(lines, columns, width, titled=titled, gap=2 if width >= ROOMY else 1)
    if earlier := snapshot.leases_in_all - len(leases):
        shown.append(fitted([Span(f"and {earlier} earlier (zoomed and in the summary)", "dim")], width))
    return shown


def _style(text: str, column: Column, lease: LeaseState) -> str:
    if column.title == "state":
        return STYLES[text]
    if column.title == "not freed" and text.startswith("!"):
        return "warn"
    return "" if column.rank <= USUAL or not lease.held_seconds else "dim"


def _held(lease: LeaseState, snapshot: Snapshot) -> bool:
    return lease.held and goes_on(snapshot)


def _state(lease: LeaseState, snapshot: Snapshot) -> str:
    if _held(lease, snapshot):
        return "HELD"
    if any(receipt.lost for receipt in lease.receipts):
        return "LOST"
    return "ENDED" if lease.held_seconds is None else "RELEASED"


def _time(lease: LeaseState, snapshot: Snapshot) -> str:
    """How long it was held, or has been so far."""
    if lease.held_seconds is not None:
        return duration(lease.held_seconds)
    until = snapshot.latest_at if lease.held else lease.left_at
    return duration(max(0.0, until - lease.granted_at)) if lease.granted_at and until else "?"


def _memory(lease: LeaseState, snapshot: Snapshot) -> str:
    """Before it, at its peak and after it, where that was the most; while it is held, what there is now."""
    known = [receipt for receipt in lease.receipts if not receipt.lost]
    if known:
        worst = max(known, key=lambda receipt: receipt.peak.occupied)
        sizes = (worst.before.occupied, worst.peak.occupied, worst.after.occupied)
        return " >".join(f"{gib(size):>4}" for size in sizes)
    if not _held(lease, snapshot):
        return f"with its {'node' if node_of(lease.lease) else 'process'}"
    mine = {*lease.devices}
    now = [view.memory.occupied for view in snapshot.devices if view.facts.name in mine and view.memory]
    return f"{gib(max(now)):>4} now" if now else ""


def _residue(lease: LeaseState, _: Snapshot) -> str:
    """Bytes that stayed after the release, on all devices."""
    if lease.held_seconds is None:
        return ""
    sizes = [receipt.residue_bytes for receipt in lease.receipts if not receipt.lost]
    left = sum(sizes)
    return f"!{human_bytes(left)}" if left else "0 B" if sizes else "unknown"


def _devices(lease: LeaseState, snapshot: Snapshot) -> str:
    """Those of it that it lost apart, or has lost so far."""
    lost = [receipt.device for receipt in lease.receipts if receipt.lost]
    now = [device.facts.name for device in snapshot.devices if device.lost] if _held(lease, snapshot) else []
    return devices_of(lease.devices, lost + now)


def _notes(lease: LeaseState, _: Snapshot) -> str:
    retries = sum(receipt.retries for receipt in lease.receipts)
    ended = "no receipt" if node_of(lease.lease) else "session ended"
    notes = (
        [ended] * lease.left
        + ["streamed"] * lease.streamed
        + ["warm"] * lease.warm
        + [f"retries {retries}"] * bool(retries)
    )
    return " ".join(notes)


USUAL, RESIDUE_AT = 5, 6
COLUMNS: Sequence[tuple[Column, Callable[[LeaseState, Snapshot], str]]] = (
    (Column(7, "lease"), lambda lease, _: lease.lease),
    (Column(0, "model", most=MOST_MODEL), lambda lease, _: lease.model),
    (Column(6, "devices"), _devices),
    (Column(1, "state"), _state),
    (Column(2, "held", right=True), _time),
    (Column(4, "before>peak>after"), _memory),
    (Column(3, "not freed", right=True), _residue),
    (Column(10, "weights", right=True), lambda lease, _: gib(lease.weights_bytes) if lease.weights_bytes else ""),
    (Column(9, "budget", right=True), lambda lease, _: gib(lease.budget_bytes)),
    (Column(8, "notes"), _notes),
    (Column(11, "schedule"), lambda lease, _: lease.schedule),
)
"""In their order on the screen."""
PANE = PaneKind(
    "leases", 3, "Leases", rows, cursor, counter=counter,
    help=[("{zoom}", "the whole receipt of a lease"), ("up down", "choose the lease, once zoomed")],
    sign="GiB before > peak > after, and what was not freed",
)  # fmt: skip
