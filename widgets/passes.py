"""The pane of passes: one model over all rows each, its batches as a grid that fills as they are committed.

Below them stand the collections, as far as there are lines; before anything is planned, what is being read.
"""

from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

from interlock.engine.record.counting import percent, several
from interlock.engine.record.snapshot import CollectionView, PassView, Snapshot
from interlock.engine.record.units import duration
from interlock.widgets import cache, glyphs
from interlock.widgets.formats import devices_of, tally, trouble
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, Span, fit, fitted, kept, width_of

LEAST_BAR, USUAL_BAR, LEAST_MODEL, MOST_MODEL = 6, 14, 8, 28
STYLES = {"running": "accent", "done": "ok", "reused": "ok", "failed": "error", "waiting": "warn", "queued": "dim"}
STYLES |= {"completed": "ok", "incomplete": "warn", "stopped": "warn", "skipped": "warn", "reading": "accent"}


class PassColumn(NamedTuple):
    """A column: what it says of a pass, and how long it stays on a narrow screen (`rank`, low stays)."""

    rank: int
    text: Callable[[PassView, Snapshot], str]
    right: bool = False
    style: str = ""


class Passes(Pane):
    """The grid of cells, one row a pass."""

    def tell(self, snapshot: Snapshot, *, with_cache: bool = False, ascii: bool = False) -> None:
        """Show this moment of the run; `with_cache` where the pane of the cache is not on the screen."""
        self.show(rows(snapshot, self.inner_width, self.inner_height, with_cache=with_cache, ascii=ascii))


def rows(snapshot: Snapshot, width: int, height: int, *, with_cache: bool = False, ascii: bool = False) -> list[Row]:
    """Passes, then a line of the cache where it is asked for, then collections; at most `height` rows.

    Where there are more passes than lines, one line tells of those that are not shown.
    """
    if not snapshot.passes:
        made = _before(snapshot, width, ascii)
        return made + _collections(snapshot, width, height - len(made), ascii)
    made = _passes(snapshot, width, max(1, height - with_cache), ascii)
    if with_cache and len(made) < height:
        made += cache.line(snapshot, width, ascii=ascii)
    return made + _collections(snapshot, width, height - len(made), ascii)


def _before(snapshot: Snapshot, width: int, ascii: bool) -> list[Row]:
    """What is done while there are no passes yet."""
    told = {
        "starting": "starting: finding devices and models",
        "resolving": f"resolving models: {len(snapshot.models)} so far",
        "reading": f"reading and tokenising {several(len(snapshot.collections), 'collection')}",
    }
    text = told.get(snapshot.phase, f"{snapshot.phase}, no pass planned")
    if snapshot.over and snapshot.reason:
        text += f": {snapshot.reason}"
    return [fitted([Span(text, STYLES.get(snapshot.phase, "dim"))], width, ascii=ascii)]


def _passes(snapshot: Snapshot, width: int, lines: int, ascii: bool) -> list[Row]:
    """A row each; where there are more passes than lines, those around the one that is at work."""
    passes = snapshot.passes
    if len(passes) <= lines:
        return _table(passes, snapshot, width, ascii)
    current = next((place for place, each in enumerate(passes) if each.word == "running"), snapshot.current_pass or 0)
    room = max(1, lines - 1)
    first = max(0, min(current - room // 2, len(passes) - room))
    others = passes[:first] + passes[first + room :]
    failed = any(each.word == "failed" for each in others)
    text = f"and {len(others)} more: {tally(each.word for each in others)}"
    told = fitted([Span(text, "error" if failed else "dim")], width, ascii=ascii)
    return [*_table(passes[first : first + room], snapshot, width, ascii), told][:lines]


def _table(passes: tuple[PassView, ...], snapshot: Snapshot, width: int, ascii: bool) -> list[Row]:
    """Columns under one another; which are shown, and how long the bars are, is the same for all rows."""
    texts = [[column.text(each, snapshot) for column in COLUMNS] for each in passes]
    sizes = [max(width_of(line[place]) for line in texts) for place in range(len(COLUMNS))]
    number = max(2, len(str(len(snapshot.passes))))
    model = min(MOST_MODEL, max(width_of(each.model) for each in passes), max(LEAST_MODEL, width // 4))
    room = width - number - 1 - model - 1
    present = [place for place, size in enumerate(sizes) if size]
    needed = [place for place in present if COLUMNS[place].rank <= NEEDED]
    bar = USUAL_BAR if sum(sizes[place] + 1 for place in needed) + USUAL_BAR <= room else LEAST_BAR
    chosen = kept([sizes[place] for place in present], [COLUMNS[place].rank for place in present], room - bar - 1)
    shown = [present[place] for place in chosen]
    bar = max(0, room - sum(sizes[place] + 1 for place in shown))
    made = []
    for each, line in zip(passes, texts, strict=True):
        begin = [
            Span(f"{each.model_pass + 1:>{number}} ", "dim"),
            Span(fit(each.model, model, ascii=ascii), "bold" if each.word == "running" else ""),
            Span(" "),
        ]
        rest = _failed(each, line) if each.failure else _values(each, line, shown, sizes, bar, ascii)
        made.append(fitted([*begin, *rest], width, ascii=ascii))
    return made


def _failed(each: PassView, line: list[str]) -> list[Span]:
    """The reason stands where others have their grid: nothing else matters of a pass that failed."""
    done = " ".join(text for text in line[:2] if text)
    return [Span("failed", "error"), Span(f" at {done}: ", "dim"), Span(each.failure, "warn")]


def _picture(each: PassView, width: int, ascii: bool) -> str:
    """The grid; of a pass that had nothing to compute, a full one."""
    if each.word == "reused":
        return glyphs.SHADES[ascii][3] * width
    return glyphs.grid(each.cells, each.batches, width, ascii=ascii)


def _grid(each: PassView, width: int, ascii: bool) -> list[Span]:
    """What is empty of it steps back."""
    empty, done = glyphs.SHADES[ascii][0], "dim" if each.word == "reused" else "fill"
    parts = groupby(_picture(each, width, ascii), key=lambda sign: sign == empty)
    return [Span("".join(signs), "rest" if is_empty else done) for is_empty, signs in parts]


def _values(each: PassView, line: list[str], shown: list[int], sizes: list[int], bar: int, ascii: bool) -> list[Span]:
    """The grid, and the columns that are shown."""
    spans = _grid(each, bar, ascii)
    for place in shown:
        column = COLUMNS[place]
        text = line[place].rjust(sizes[place]) if column.right else line[place].ljust(sizes[place])
        style = STYLES.get(each.word, "") if column.text is _word else column.style
        spans += [Span(" "), Span(text, style)]
    return spans


def _percent(each: PassView, snapshot: Snapshot) -> str:
    return percent(each.share_done)


def _batches(each: PassView, snapshot: Snapshot) -> str:
    return f"{each.batches_done}/{each.batches}" if each.batches else ""


def _word(each: PassView, snapshot: Snapshot) -> str:
    return each.word


def _time(each: PassView, snapshot: Snapshot) -> str:
    """Spent on a pass that is over, left of one that goes on."""
    if each.word in ("running", "waiting") and each.seconds_left is not None and not snapshot.over:
        return duration(each.seconds_left) + " left"
    return duration(each.seconds / max(1, len(each.devices))) if each.seconds else ""


def _trouble(each: PassView, snapshot: Snapshot) -> str:
    return trouble(each.mitigations, each.parked)


def _devices(each: PassView, snapshot: Snapshot) -> str:
    return devices_of(each.devices)


def _weight(each: PassView, snapshot: Snapshot) -> str:
    return f"w {each.weight:.2f}"


NEEDED = 4
COLUMNS = (
    PassColumn(0, _percent, right=True),
    PassColumn(2, _batches, right=True),
    PassColumn(1, _word),
    PassColumn(3, _time, right=True),
    PassColumn(4, _trouble, style="warn"),
    PassColumn(6, _devices, style="dim"),
    PassColumn(7, _weight, style="dim"),
)
"""In their order on the screen."""


def _collections(snapshot: Snapshot, width: int, lines: int, ascii: bool) -> list[Row]:
    """A line each; where they do not all fit, how many more there are and how they stand."""
    found = snapshot.collections
    if lines < 1 or not found:
        return []
    shown = found if len(found) <= lines else found[: lines - 1]
    name = min(MOST_MODEL, max(width_of(each.name) for each in found), max(LEAST_MODEL, width // 3))
    word = max(width_of(each.word) for each in found)
    made = [_collection(each, name, word, width, ascii) for each in shown]
    if rest := found[len(shown) :]:
        more = "more " if shown else ""
        text = f"and {len(rest)} {more}{'collection' if len(rest) == 1 else 'collections'}: "
        made.append(fitted([Span(text + tally(each.word for each in rest), "dim")], width, ascii=ascii))
    return made


def _collection(each: CollectionView, name: int, word: int, width: int, ascii: bool) -> Row:
    """Its name, what became of it, and why."""
    facts = [f"{each.chunks} chunks"] if each.chunks else []
    facts += [several(each.duplicates, "duplicate")] * bool(each.duplicates) + [f"{each.refused} refused"] * bool(
        each.refused
    )
    facts += [several(each.artefacts, "file")] * bool(each.artefacts)
    facts += [] if each.verified is None else ["verified" if each.verified else "DIFFERS"]
    told = ", ".join([*([each.reason] if each.reason else []), *facts])
    spans = [
        Span(fit(each.name, name, ascii=ascii)),
        Span(" "),
        Span(each.word.ljust(word), STYLES.get(each.word, "dim")),
        Span("  " + told, "error" if each.verified is False else "dim"),
    ]
    return fitted(spans, width, ascii=ascii)
