"""The pane of passes: one model over all rows each, its batches as a grid that fills as they are committed.

Below them stand the collections, as far as there are lines; before anything is planned, what is being read.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from interlock.engine.record.events import BatchCommitted
from interlock.engine.record.facts import node_of
from interlock.engine.record.health import outputs_of, time_left_of
from interlock.engine.record.snapshot import GONE, CollectionView, PassCells, PassView, Snapshot
from interlock.engine.record.words import duration, percent, several
from interlock.widgets import cache, glyphs
from interlock.widgets.formats import count, devices_of, tally, trouble
from interlock.widgets.pane import Chooser
from interlock.widgets.text import CURSOR, Row, Span, fit, fitted, kept, width_of

LEAST_BAR, USUAL_BAR, LEAST_MODEL, MOST_MODEL = 6, 14, 8, 28
WHOLE_MODEL, WIDE = 20, 56
"""Cells of a name that are never cut in a pane that is wide: other columns go first."""
STYLES = {"running": "accent", "done": "ok", "reused": "ok", "failed": "error", "waiting": "warn", "queued": "dim"}
STYLES |= {"completed": "ok", "incomplete": "warn", "stopped": "warn", "skipped": "warn", "reading": "accent"}
STYLES |= {"died": "error", "paused": "warn", "missing": "error"}


CELLS = {"queued": ("▁", "rest"), "committed": ("▇", "fill"), "mitigated": ("▲", "warn"), "parked rows": ("✖", "error")}
SECONDS, CELL_GAP, MOST_NODES = 6, 2, 4


class PassColumn(NamedTuple):
    """A column: what it says of a pass, and how long it stays on a narrow screen (`rank`, low stays)."""

    rank: int
    text: Callable[[PassView, Snapshot], str]
    right: bool = False
    style: str = ""


class Passes(Chooser):
    _chosen: int | None = None
    """The pass that an operator chose; before that, the one at work is told of."""
    _of: object = None
    _cells = PassCells()

    def draw(self, snapshot: Snapshot, *, with_cache: bool = False) -> None:
        """Show this moment of the run; `with_cache` where the pane of the cache is not on the screen."""
        self._again = None
        self.show(rows(snapshot, self.inner_width, self.inner_height, with_cache=with_cache))

    def detail(self, snapshot: Snapshot, cells: Callable[[int], PassCells]) -> None:
        """Show all batches of one pass, which `cells` tells of."""

        def draw(places: int) -> None:
            chosen = snapshot.current_pass or 0 if self._chosen is None else self._chosen
            chosen = max(0, min(chosen + places, len(snapshot.passes) - 1))
            self._chosen = chosen if places else self._chosen
            width, height = self.inner_width, self.inner_height
            self.show(detail(snapshot, chosen, self._known(snapshot, chosen, cells), width, height))

        self._again = draw
        draw(0)

    def _known(self, snapshot: Snapshot, chosen: int, cells: Callable[[int], PassCells]) -> PassCells:
        """Ask only for what has changed."""
        now = snapshot.passes[chosen] if snapshot.passes else None
        of = (chosen, now.batches_done, now.mitigations, now.parked) if now else None
        if of != self._of:
            self._of, self._cells = of, cells(chosen)
        return self._cells


def rows(snapshot: Snapshot, width: int, height: int, *, with_cache: bool = False) -> list[Row]:
    """Draw passes, then a line of the cache where it is asked for, then collections; at most `height` rows.

    Where there are more passes than lines, one line tells of those that are not shown.
    """
    if snapshot.passes:
        shown = _passes(snapshot, width, max(1, height - with_cache))
        if with_cache and len(shown) < height:
            shown += cache.line(snapshot, width)
    else:
        shown = [_before(snapshot, width)]
    shown += _collections(snapshot, width, height - len(shown))
    return shown


def detail(snapshot: Snapshot, chosen: int, cells: PassCells, width: int, height: int) -> list[Row]:
    """Draw the passes with one of them chosen, and its whole grid: each batch with its number, its state and its
    seconds. As many rows as that takes, for a pane that scrolls."""
    if not snapshot.passes:
        return rows(snapshot, width, height)
    lines = max(1, min(len(snapshot.passes), height // 3))
    first = max(0, min(chosen - lines // 2, len(snapshot.passes) - lines))
    table = _table(snapshot.passes[first : first + lines], snapshot, width - 1)
    marks = (Span(CURSOR if place == chosen else " ", "accent") for place in range(first, first + lines))
    now = snapshot.passes[chosen]
    shown = [fitted([mark, *row], width) for mark, row in zip(marks, table, strict=True)]
    shown += [
        fitted([Span(_summed(now, cells))], width),
        *(fitted([Span(text)], width) for text in (*_nodes(cells), *_gave(now))),
        _signs(width),
        *_board(now.batches, cells, width),
    ]
    return shown


def _summed(each: PassView, cells: PassCells) -> str:
    """How its batches went, in a line."""
    seconds = sorted(batch.seconds for batch in cells.committed.values())
    text = f"pass {each.model_pass + 1} {each.model}: {len(seconds)} of {several(each.batches, 'batch', 'batches')}"
    if seconds:
        text += f", median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s; "
        counts = sorted(_counted(cells).items())
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


def _gave(each: PassView) -> list[str]:
    """What it has beside a vector of each text, where it has."""
    facts = outputs_of(each)
    return ["so far: " * (each.word == "running") + ", ".join(facts)] if facts else []


def _counted(cells: PassCells) -> Counter[str]:
    return Counter(batch.device for batch in cells.committed.values())


def _signs(width: int) -> Row:
    """What the signs of the grid mean."""
    texts = [piece for name, (sign, style) in CELLS.items() for piece in (Span(sign, style), Span(f" {name}  ", "dim"))]
    return fitted([*texts, Span("seconds of each", "dim")], width)


@lru_cache(maxsize=2)
def _board(batches: int, cells: PassCells, width: int) -> list[Row]:
    """Batches in their order, as many on a line as it has room for; kept, because there may be ten thousand."""
    digits = len(str(batches))
    size = digits + 2 + SECONDS
    across = max(1, (width + CELL_GAP) // (size + CELL_GAP))
    lines = []
    for begin in range(0, batches, across):
        spans: list[Span] = []
        for index in range(begin, min(begin + across, batches)):
            spans += [Span(" " * CELL_GAP), *_cell(index, cells, digits)]
        lines.append(fitted(spans[1:], width))
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
    doing = {
        "starting": "starting: finding devices and models",
        "resolving": f"resolving models: {len(snapshot.models)} so far",
        "reading": "reading and tokenising chunks",
    }
    text = doing.get(snapshot.phase, f"{snapshot.phase}, no pass planned")
    if snapshot.over and snapshot.reason:
        text += f": {snapshot.reason}"
    return fitted([Span(text, STYLES.get(snapshot.phase, "dim"))], width)


def _passes(snapshot: Snapshot, width: int, lines: int) -> list[Row]:
    """A row each; where there are more passes than lines, those around the one that is at work."""
    passes = snapshot.passes
    if len(passes) <= lines:
        return _table(passes, snapshot, width)
    current = next((place for place, each in enumerate(passes) if each.word == "running"), snapshot.current_pass or 0)
    room = max(1, lines - 1)
    first = max(0, min(current - room // 2, len(passes) - room))
    others = passes[:first] + passes[first + room :]
    failed = any(each.failure for each in others)
    text = f"and {len(others)} more: {tally(each.word for each in others)}"
    more = fitted([Span(text, "error" if failed else "dim")], width)
    return [*_table(passes[first : first + room], snapshot, width), more][:lines]


def _table(passes: tuple[PassView, ...], snapshot: Snapshot, width: int) -> list[Row]:
    """Columns under one another; which are shown, and how long the bars are, is the same for all rows."""
    texts = [[column.text(each, snapshot) for column in COLUMNS] for each in passes]
    sizes = [max(width_of(line[place]) for line in texts) for place in range(len(COLUMNS))]
    number = max(2, len(str(len(snapshot.passes))))
    model = min(
        MOST_MODEL,
        max(width_of(each.model) for each in passes),
        max(WHOLE_MODEL if width >= WIDE else LEAST_MODEL, width // 4),
    )
    room = width - number - 1 - model - 1
    # Nothing is written under a column that is empty in every row, so it takes no room from the others.
    present = [place for place, size in enumerate(sizes) if size]
    # The bar keeps its usual length where the needed columns leave that much; else it shrinks so that they stay.
    needed = [place for place in present if COLUMNS[place].rank <= NEEDED]
    bar = USUAL_BAR if sum(sizes[place] + 1 for place in needed) + USUAL_BAR <= room else LEAST_BAR
    chosen = kept([sizes[place] for place in present], [COLUMNS[place].rank for place in present], room - bar - 1)
    shown = [present[place] for place in chosen]
    # What the columns that were left out would have taken goes back to the bar: every row ends at the right edge.
    bar = max(0, room - sum(sizes[place] + 1 for place in shown))
    table = []
    for each, line in zip(passes, texts, strict=True):
        name = Span(fit(each.model, model), "bold" if each.word == "running" else "")
        if each.failure:  # the reason stands where others have their grid: nothing else matters of a pass that failed
            done = " ".join(text for text in line[:2] if text)
            at = f" at {done}" if each.batches else ""
            rest = [Span(each.word, "error"), Span(f"{at}: ", "dim"), Span(each.failure, "warn")]
        else:
            rest = [*_grid(each, bar), *_values(each, line, shown, sizes)]
        table.append(fitted([Span(f"{each.model_pass + 1:>{number}} ", "dim"), name, Span(" "), *rest], width))
    return table


def _grid(each: PassView, width: int) -> list[Span]:
    """Which batches are committed (all, where there was nothing to compute); what is empty of it steps back."""
    empty, full = glyphs.SHADES[0], glyphs.SHADES[-1]
    if each.word == "reused":
        return [Span(full * width, "dim")]
    parts = groupby(glyphs.grid(each.cells, each.batches, width), key=lambda sign: sign == empty)
    return [Span("".join(signs), "rest" if is_empty else "fill") for is_empty, signs in parts]


def _values(each: PassView, line: list[str], shown: list[int], sizes: list[int]) -> list[Span]:
    spans = []
    for place in shown:
        column = COLUMNS[place]
        text = line[place].rjust(sizes[place]) if column.right else line[place].ljust(sizes[place])
        style = STYLES.get(line[place].strip(), "") if column.text is _word else column.style
        spans += [Span(" "), Span(text, style)]
    return spans


def _word(each: PassView, snapshot: Snapshot) -> str:
    if each.word != "running":
        return each.word
    return "died" if snapshot.phase == GONE else "paused" if snapshot.paused else each.word


def _of_all(each: PassView) -> str:
    """How many of its batches are done, in as many cells whenever that is."""
    return f"{each.batches_done:>{len(str(each.batches))}}/{each.batches}" if each.batches else ""


def _time(each: PassView, snapshot: Snapshot) -> str:
    """Spent on a pass that is over, left of one that goes on."""
    goes_on = not snapshot.over and not snapshot.paused and snapshot.phase != GONE
    left = time_left_of(each) if each.word in ("running", "waiting") and goes_on else None
    if left:
        return duration(left.seconds) + " left"
    return duration(each.wall_seconds) if each.done.seconds else ""


def _weight(each: PassView) -> str:
    """Its weight in the fusion; of a sparse model, which is not fused, how many terms a text has."""
    if each.kind == "dense":
        return f"w {each.weight:.2f}"
    return f"{each.terms_per_text:.0f} terms" if each.done.terms else "sparse"


NEEDED = 4
COLUMNS = (
    PassColumn(0, lambda each, _: percent(each.share_done), right=True),
    PassColumn(2, lambda each, _: _of_all(each), right=True),
    PassColumn(1, _word),
    PassColumn(3, _time, right=True),
    PassColumn(4, lambda each, _: trouble(each.mitigations, each.parked), style="warn"),
    PassColumn(6, lambda each, _: devices_of(each.devices), style="dim"),
    PassColumn(7, lambda each, _: _weight(each), style="dim"),
)
"""In their order on the screen."""


def _collections(snapshot: Snapshot, width: int, lines: int) -> list[Row]:
    """A line each; where they do not all fit, how many more there are and how they stand."""
    collections = snapshot.collections
    if lines < 1 or not collections:
        return []
    shown = collections if len(collections) <= lines else collections[: lines - 1]
    name = min(MOST_MODEL, max(width_of(each.name) for each in collections), max(LEAST_MODEL, width // 3))
    word = max(width_of(each.word) for each in collections)
    rows = [_collection(each, name, word, width) for each in shown]
    if rest := collections[len(shown) :]:
        more = "more " if shown else ""
        text = f"and {len(rest)} {more}{'collection' if len(rest) == 1 else 'collections'}: "
        rows.append(fitted([Span(text + tally(each.word for each in rest), "dim")], width))
    return rows


def _collection(each: CollectionView, name: int, word: int, width: int) -> Row:
    """Its name, what became of it, and why."""
    facts = [each.reason] if each.reason else []
    facts += [f"{each.chunks} chunks"] * bool(each.chunks)
    facts += [several(each.duplicates, "duplicate")] * bool(each.duplicates)
    facts += [f"{each.refused} refused"] * bool(each.refused)
    facts += [several(each.artefacts, "file")] * bool(each.artefacts)
    facts += [] if each.verified is None else ["verified" if each.verified else "DIFFERS"]
    spans = [
        Span(fit(each.name, name)),
        Span(" "),
        Span(each.word.ljust(word), STYLES.get(each.word, "dim")),
        Span("  " + ", ".join(facts), "error" if each.verified is False else "dim"),
    ]
    return fitted(spans, width)
