"""The pane of passes: one model over all rows each, its batches as a grid that fills as they are committed.

Below them stand the collections, as far as there are lines; before anything is planned, what is being read.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby

from interlock.engine.record.events import BatchCommitted
from interlock.engine.record.facts import node_of, on_host
from interlock.engine.record.snapshot import GONE, CollectionView, PassCells, PassView, Snapshot
from interlock.engine.record.words import duration, percent, remaining, several
from interlock.engine.standing.health import at_rest, goes_on, outputs_of
from interlock.engine.standing.outlook import doing, time_left_of
from interlock.widgets import glyphs
from interlock.widgets.formats import count, devices_of, lack_style, parked, tally
from interlock.widgets.pane import Cursor, PaneKind, View, around, zoomed_on
from interlock.widgets.panes import cache
from interlock.widgets.text import CURSOR, Column, Row, Span, fit, fitted, in_columns, sized, width_of

LEAST_BAR, USUAL_BAR, LEAST_MODEL, MOST_MODEL = 6, 14, 8, 28
WHOLE_MODEL, WIDE = 20, 56
"""Cells of a name that are never cut in a pane that is wide: other columns go first."""
STYLES = {"running": "accent", "done": "ok", "reused": "ok", "failed": "error", "waiting": "warn", "queued": "dim"}
STYLES |= {"completed": "ok", "incomplete": "error", "stopped": "warn", "skipped": "warn", "reading": "accent"}
STYLES |= {"on CPU": "warn", "died": "error", "paused": "warn", "missing": "error", "not begun": "dim"}
ENDED = {"running": "died", "waiting": "stopped", "queued": "not begun"}
"""How a pass stands of a run that does not go on."""

CELLS = {"queued": ("▁", "rest"), "committed": ("▇", "fill"), "mitigated": ("▲", "warn"), "parked rows": ("✖", "error")}
SECONDS, CELL_GAP, MOST_NODES = 6, 2, 4


def cursor(view: View) -> Cursor | None:
    """Zoomed it tells of one pass, before one was chosen of that at work."""
    names = [str(each.model_pass) for each in view.snapshot.passes]
    return zoomed_on(names, view, 3, first=view.snapshot.current_pass or 0, top=0)


def rows(view: View) -> list[Row]:
    """Draw passes, then a line of the cache where that has no pane, then collections, in the lines that there are; of
    more passes than lines, one line tells of those that are not shown. Zoomed all batches of one pass stand below."""
    snapshot, width, height = view.snapshot, view.width, view.height
    if found := cursor(view):
        return _detail(view, found)
    with_cache = "cache" not in view.shown and not view.zoomed
    if snapshot.passes:
        shown = _passes(snapshot, width, max(1, height - with_cache))
        shown += [cache.line(snapshot, width)] if with_cache and len(shown) < height else []
    else:
        shown = [_before(snapshot, width)]
    return [*shown, *_collections(snapshot, width, height - len(shown))]


def _detail(view: View, found: Cursor) -> list[Row]:
    """The passes around the chosen one, and its whole grid: each batch with its number, its state and its seconds. As
    many rows as that takes, for a pane that scrolls."""
    snapshot, width, cells = view.snapshot, view.width, view.cells(found.place)
    table = _table(snapshot.passes[found.sight.start : found.sight.stop], snapshot, width - 1)
    marks = (Span(CURSOR if place == found.place else " ", "accent") for place in found.sight)
    now = snapshot.passes[found.place]
    gave = ", ".join(outputs_of(now))  # beside a vector of each text
    told = [_summed(now, cells), *_nodes(cells), *["so far: " * (now.word == "running") + gave] * bool(gave)]
    signs = [piece for name, (sign, style) in CELLS.items() for piece in (Span(sign, style), Span(f" {name}  ", "dim"))]
    return [
        *(fitted([mark, *row], width) for mark, row in zip(marks, table, strict=True)),
        *(fitted([Span(text)], width) for text in told),
        fitted([*signs, Span("seconds of each", "dim")], width),
        *_board(now.batches, cells, width),
    ]


def _summed(each: PassView, cells: PassCells) -> str:
    """How its batches went, in a line."""
    seconds = sorted(batch.seconds for batch in cells.committed.values())
    text = f"pass {each.model_pass + 1} {each.model}: {len(seconds)} of {several(each.batches, 'batch', 'batches')}"
    if seconds:
        text += f", median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s; "
        counts = sorted(Counter(batch.device for batch in cells.committed.values()).items())
        text += ", ".join(f"{name} {number}" for name, number in counts if not node_of(name))
    return text.removesuffix("; ")


def _nodes(cells: PassCells) -> list[str]:
    """How many batches each node has computed, and how fast, the slowest first; nothing on one machine."""
    mine: dict[str, list[BatchCommitted]] = {}
    for batch in cells.committed.values():
        mine.setdefault(node_of(batch.device.partition(",")[0]), []).append(batch)
    paces = {
        node: sum(batch.tokens for batch in batches) / max(1e-9, sum(batch.seconds for batch in batches))
        for node, batches in mine.items()
        if node
    }
    slowest = sorted(paces, key=lambda node: (paces[node], node))
    told = [f"{node} {len(mine[node])} at {count(paces[node])} tokens/s" for node in slowest[:MOST_NODES]]
    more = [f"and {len(slowest) - MOST_NODES} faster"] * (len(slowest) > MOST_NODES)
    return [f"{several(len(slowest), 'node')}: {', '.join(told + more)}"] if slowest else []


MOST_CELLS = 50_000
"""Batches that are drawn one by one."""


@lru_cache(maxsize=2)
def _board(batches: int, cells: PassCells, width: int) -> list[Row]:
    """Batches in their order, as many on a line as it has room for; kept, because there may be ten thousand."""
    digits = len(str(batches))
    size = digits + 2 + SECONDS
    across = max(1, (width + CELL_GAP) // (size + CELL_GAP))
    lines = []
    for begin in range(0, min(batches, MOST_CELLS), across):
        spans: list[Span] = []
        for index in range(begin, min(begin + across, batches)):
            spans += [Span(" " * CELL_GAP), *_cell(index, cells, digits)]
        lines.append(fitted(spans[1:], width))
    if batches > MOST_CELLS:
        lines.append((Span(f"and {batches - MOST_CELLS:,} more", "dim"),))
    return lines


def _cell(index: int, cells: PassCells, digits: int) -> list[Span]:
    """A batch: its number from 1, its state, its seconds; the worst that is to be said of it is its state."""
    batch = cells.committed.get(index)
    word = "committed" if batch else "queued"
    word = "parked rows" if cells.parked.get(index) else "mitigated" if cells.mitigated.get(index) else word
    sign, style = CELLS[word]
    seconds = f"{batch.seconds:.2f}"[:SECONDS] if batch else ""
    number = Span(f"{index + 1:>{digits}} ", "" if batch else "dim")
    return [number, Span(sign, style), Span(f"{seconds:>{SECONDS}}")]


def _before(snapshot: Snapshot, width: int) -> Row:
    """What is done while there are no passes yet."""
    text = doing(snapshot) or f"{snapshot.phase}, no pass planned"
    if snapshot.phase == "resolving" and snapshot.models:
        text += f": {several(len(snapshot.models), 'model')} so far"
    if snapshot.over and snapshot.reason:
        text += f": {snapshot.reason}"
    return fitted([Span(text, STYLES.get(snapshot.phase, "dim"))], width)


def _passes(snapshot: Snapshot, width: int, lines: int) -> list[Row]:
    """A row each; where there are more passes than lines, those around the one that is at work."""
    passes = snapshot.passes
    if len(passes) <= lines:
        return _table(passes, snapshot, width)
    current = next((place for place, each in enumerate(passes) if each.word == "running"), snapshot.current_pass or 0)
    sight = around(len(passes), current, max(1, lines - 1))
    others = passes[: sight.start] + passes[sight.stop :]
    text = f"and {len(others)} more: {tally(each.word for each in others)}"
    more = fitted([Span(text, "error" if any(each.failure for each in others) else "dim")], width)
    return [*_table(passes[sight.start : sight.stop], snapshot, width), more][:lines]


def _table(passes: tuple[PassView, ...], snapshot: Snapshot, width: int) -> list[Row]:
    """Columns under one another; which are shown, and how long the bars are, is the same for all rows."""
    columns, texts = [column for column, _, _ in COLUMNS], []
    for each in passes:
        told = [(text(each, snapshot), style and style(snapshot)) for _, style, text in COLUMNS]
        texts.append([Span(text, style or STYLES.get(text, "")) for text, style in told])
    number = max(2, len(str(len(snapshot.passes)))) + 1
    least = max(WHOLE_MODEL if width >= WIDE else LEAST_MODEL, width // 4)
    name = min(MOST_MODEL, least, max(width_of(each.model) for each in passes))
    # The bar keeps its usual length where the needed columns leave that much; else it shrinks so that they stay.
    room = width - number - name - 1
    needed = [max(width_of(line[place].text) for line in texts) for place in range(len(columns))]
    taken = sum(size + 1 for size, column in zip(needed, columns, strict=True) if size and column.rank <= NEEDED)
    bar = USUAL_BAR if taken + USUAL_BAR <= room else LEAST_BAR
    sizes = sized(texts, columns, room - bar - 1)
    # What the columns that were left out would have taken goes back to the bar: every row ends at the right edge.
    bar = max(0, room - sum(size + 1 for size in sizes.values()))
    table = []
    for each, line in zip(passes, texts, strict=True):
        spans = [Span(f"{each.model_pass + 1:>{number - 1}} ", "dim")]
        spans += [Span(fit(each.model, name), "bold" if each.word == "running" else ""), Span(" ")]
        if each.failure:  # the reason stands where others have their grid: nothing else matters of a pass that failed
            done = " ".join(text for text, _ in line[:2] if text)
            at = f" at {done}" if each.batches else ""
            spans += [Span(each.word, "error"), Span(f"{at}: ", "dim"), Span(each.failure, "warn")]
        else:
            style = "dim" if snapshot.phase == GONE else "fill"
            spans += [*_grid(each, bar, style), Span(" "), *in_columns(line, columns, sizes)]
        table.append(fitted(spans, width))
    return table


def _grid(each: PassView, width: int, style: str) -> list[Span]:
    """Which batches are committed (all, where there was nothing to compute); what is empty of it steps back."""
    empty, full = glyphs.SHADES[0], glyphs.SHADES[-1]
    if each.word == "reused":
        return [Span(full * width, "dim")]
    parts = groupby(glyphs.grid(each.cells, each.batches, width), key=lambda sign: sign == empty)
    return [Span("".join(signs), "rest" if is_empty else style) for is_empty, signs in parts]


def _word(each: PassView, snapshot: Snapshot) -> str:
    """How it stands; a CPU has no gauge beside GPUs, so the pass that it computes says so."""
    if not goes_on(snapshot):
        return ENDED.get(each.word, each.word)
    if each.word != "running":
        return each.word
    hosted = snapshot.on_gpus and bool(each.at_work) and all(map(on_host, each.at_work))
    return "paused" if snapshot.paused else "on CPU" if hosted else each.word


def _of_all(each: PassView) -> str:
    """How many of its batches are done, in as many cells whenever that is."""
    return f"{each.batches_done:>{len(str(each.batches))}}/{each.batches}" if each.batches else ""


def _time(each: PassView, snapshot: Snapshot) -> str:
    """Spent on a pass that is over, left of one that goes on."""
    waits = each.word in ("running", "waiting") and not at_rest(snapshot)
    left = time_left_of(each, snapshot.passes) if waits else None
    if left:
        return remaining(left.seconds) + " left"
    return duration(each.wall_seconds) if each.done.seconds else ""


def _devices(each: PassView, snapshot: Snapshot) -> str:
    """Those that compute it, or did; while it goes on, those that are lost apart."""
    lost = [device.facts.name for device in snapshot.devices if device.lost and each.batches_done < each.batches]
    now = [*each.at_work, *(name for name in each.devices if name in lost)] if each.at_work else each.devices
    return devices_of(now, lost)


NEEDED = 4
COLUMNS: Sequence[tuple[Column, Callable[[Snapshot], str] | None, Callable[[PassView, Snapshot], str]]] = (
    (Column(0, right=True), None, lambda each, _: percent(each.share_done)),
    (Column(2), None, lambda each, _: _of_all(each)),
    (Column(1), None, _word),
    (Column(3, right=True), None, _time),
    (Column(4), lack_style, lambda each, _: parked(each.parked)),
    (Column(6), lambda _: "dim", _devices),
)
"""In their order on the screen: where, in what style (else that of the word it says), and what."""


def _collections(snapshot: Snapshot, width: int, lines: int) -> list[Row]:
    """A line each; where they do not all fit, how many more there are and how they stand."""
    collections = snapshot.collections
    if lines < 1 or not collections:
        return []
    shown = collections if len(collections) <= lines else collections[: lines - 1]
    name = min(MOST_MODEL, max(width_of(each.name) for each in collections), max(LEAST_MODEL, width // 3))
    word = max(width_of(each.word) for each in collections)
    rows = [
        fitted(
            [
                Span(fit(each.name, name)), Span(" "), Span(each.word.ljust(word), STYLES.get(each.word, "dim")),
                Span("  " + ", ".join(_known(each)), "error" if each.verified is False else "dim"),
            ],
            width,
        )
        for each in shown
    ]  # fmt: skip
    if rest := collections[len(shown) :]:
        more = "more " if shown else ""
        text = f"and {len(rest)} {more}{'collection' if len(rest) == 1 else 'collections'}: "
        rows.append(fitted([Span(text + tally(each.word for each in rest), "dim")], width))
    return rows


def _known(each: CollectionView) -> list[str]:
    """What became of a collection, and why."""
    facts = [each.reason] if each.reason else []
    facts += [f"{each.read.chunks} chunks"] * bool(each.read.chunks)
    facts += [several(each.read.duplicates, "duplicate")] * bool(each.read.duplicates)
    facts += [f"{each.refused} refused"] * bool(each.refused)
    facts += [several(each.artefacts, "file")] * bool(each.artefacts)
    return facts + ([] if each.verified is None else ["verified" if each.verified else "DIFFERS"])


PANE = PaneKind(
    "passes", 2, "Passes", rows, cursor,
    help=[
        ("{zoom}", "the whole grid of a pass, with the state and seconds of each batch"),
        ("up down", "choose the pass, once zoomed; pageup and pagedown scroll its grid"),
    ],
    sign="the bar fills as batches are committed",
)  # fmt: skip
