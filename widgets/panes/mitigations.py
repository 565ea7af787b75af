"""The pane of mitigations: a row for each ladder that was climbed, with the step that it has come to and how it ended.

A ladder is all steps for one batch; of steps for a whole lease, those of one pass on one device. Those that are still
climbed, or ended with a text parked, stand first, then the latest. Zoomed, the steps of one ladder stand below.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from interlock.engine.record.events import Entry, Mitigated
from interlock.engine.record.facts import timed
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import human_bytes, several
from interlock.engine.standing.health import goes_on
from interlock.widgets.formats import RUNGS, clock, count, lack_style
from interlock.widgets.pane import Cursor, PaneKind, View, zoomed_on
from interlock.widgets.text import CURSOR, Column, Row, Span, columned, fitted, table_rows

TRYING = "still trying"
STYLES = {TRYING: "warn", "failed": "error", "open": "warn"}
LEAST_CAUSE = 12


class Ladder(NamedTuple):
    """The steps that were taken for a batch, or for a lease on a device (of which `batch` is None), oldest first."""

    model_pass: int
    batch: int | None
    device: str
    """Where the latest step was taken."""
    steps: Sequence[tuple[Entry, Mitigated]]

    @property
    def name(self) -> str:
        return f"{self.model_pass} {self.batch} {self.device if self.batch is None else ''}"

    @property
    def rung(self) -> str:
        """What the latest step does."""
        step = self.steps[-1][1]
        return RUNGS.get(step.rung, step.rung or step.action)

    @property
    def lost(self) -> float | None:
        """Seconds that its steps took; None where time means nothing."""
        seconds = [step.cost_seconds or 0.0 for entry, step in self.steps if timed(entry.device_kind)]
        return sum(seconds) if seconds else None


@lru_cache(maxsize=2)
def ladders(mitigations: Callable[[], Sequence[Entry]]) -> list[Ladder]:
    """Put the mitigations that this lists together as ladders, the one that was begun first at first; kept, because
    every drawing asks and there may be thousands."""
    found = dict[tuple[int, int | None, str], list[tuple[Entry, Mitigated]]]()
    for entry in mitigations():
        if isinstance(step := entry.body, Mitigated):
            key = step.model_pass, step.batch_index, step.device if step.batch_index is None else ""
            found.setdefault(key, []).append((entry, step))
    return [Ladder(number, batch, steps[-1][1].device, steps) for (number, batch, _), steps in found.items()]


def ended(ladder: Ladder, view: View) -> str:
    """Tell how it ended: `solved`, `1 text parked`, `failed`, or `open` where the run did before it; else that it is
    `still trying`."""
    now, cells = view.snapshot.passes[ladder.model_pass], view.cells(ladder.model_pass)
    if ladder.batch is not None and (given_up := cells.parked.get(ladder.batch)):
        return f"{several(given_up, 'text')} parked"
    if now.failure:
        return "failed"
    if ladder.batch is not None:
        solved = ladder.batch in cells.committed
    else:  # of a whole lease: its device computes
        there = "cpu" if ladder.steps[-1][1].rung == "cpu" else ladder.device
        solved = any(there in batch.device.split(",") for batch in cells.committed.values())
    if solved or now.word == "done":
        return "solved"
    return TRYING if goes_on(view.snapshot) else "open"


def pace(ladder: Ladder, view: View) -> str:
    """How fast its batch was, as a share of its pass on a device; nothing before the batch is committed."""
    done, batch = (
        view.snapshot.passes[ladder.model_pass].done,
        view.cells(ladder.model_pass).committed.get(-1 if ladder.batch is None else ladder.batch),
    )
    if not batch or not batch.seconds or not done.seconds:
        return ""
    return f"{batch.rows / batch.seconds / (done.rows / done.seconds):.0%}"


def cursor(view: View) -> Cursor | None:
    """Zoomed it tells of one ladder, at first of the first."""
    return zoomed_on([each.name for each in _ordered(view)] if view.zoomed else [], view, 2)


def rows(view: View) -> list[Row]:
    """Draw the ladders in the lines that there are, below their titles where there is room for these."""
    found, width, height = cursor(view), view.width, view.height
    listed = _ordered(view)
    if not listed:
        return [fitted([Span("none so far", "dim")], width)]
    if not found:
        titled = height > 2
        most = height - titled
        shown = listed if len(listed) <= most else listed[: max(1, most - 1)]
        drawn = _table(shown, view, width, titled=titled)
        if rest := len(listed) - len(shown):
            drawn.append(fitted([Span(f"and {rest} more", "dim")], width))
        return drawn[: max(1, height)]
    heads, *lines = _table(listed, view, width - 1, titled=True)
    drawn = [fitted([Span(" "), *heads], width)]
    for place in found.sight:
        drawn.append(fitted([Span(CURSOR if place == found.place else " ", "accent"), *lines[place]], width))
    return [*drawn, (Span(" " * width),), *_steps(listed[found.place], width)]


def _ordered(view: View) -> list[Ladder]:
    """Those that helped nothing, or are climbed, then the latest; of passes that the moment shown knows."""
    known = [each for each in ladders(view.mitigations) if each.model_pass < len(view.snapshot.passes)]
    latest = sorted(known, key=lambda each: -each.steps[-1][0].seq)
    return sorted(latest, key=lambda each: not _style(ended(each, view), view))


def _style(text: str, view: View) -> str:
    return lack_style(view.snapshot) if text.endswith(" parked") else STYLES.get(text, "")


def _table(listed: Sequence[Ladder], view: View, width: int, *, titled: bool) -> list[Row]:
    lines = [[Span(text, _style(text, view)) for text in (tell(each, view) for _, tell in COLUMNS)] for each in listed]
    return columned(lines, [column for column, _ in COLUMNS], width, titled=titled)


def _steps(ladder: Ladder, width: int) -> list[Row]:
    """What was done, one line a step, and why."""
    heads = ["at", "step", "device", "texts", "needs", "free", "cause", "what was done"]
    return table_rows(heads, [_cells(entry, step) for entry, step in ladder.steps], width)


def _cells(entry: Entry, step: Mitigated) -> list[str]:
    needs = human_bytes(step.predicted_bytes) if step.predicted_bytes else ""
    free = "" if step.free is None else human_bytes(step.free)
    return [
        clock(entry.at),
        RUNGS.get(step.rung, step.rung),
        step.device,
        f"{step.rows:,}",
        needs,
        free,
        step.cause,
        step.action,
    ]


def _where(ladder: Ladder) -> str:
    """The pass, and the batch that a pass's grid calls so."""
    return f"{ladder.model_pass + 1}" if ladder.batch is None else f"{ladder.model_pass + 1}/{ladder.batch + 1}"


COLUMNS: Sequence[tuple[Column, Callable[[Ladder, View], str]]] = (
    (Column(1, "pass/batch"), lambda each, _: _where(each)),
    (Column(5, "device"), lambda each, _: each.device),
    (Column(0, "now"), lambda each, _: each.rung),
    (Column(2, "ended"), ended),
    (Column(3, "cause", least=LEAST_CAUSE), lambda each, _: each.steps[-1][1].cause),
    (Column(6, "steps", right=True), lambda each, _: f"{len(each.steps)}"),
    (Column(4, "of usual", right=True), pace),
    (Column(7, "lost", right=True), lambda each, _: "" if each.lost is None else f"{each.lost:.1f} s"),
    (Column(8, "at"), lambda each, _: clock(each.steps[-1][0].at)),
)
"""In their order on the screen."""


def counter(snapshot: Snapshot) -> str:
    """How many steps were taken."""
    return count(snapshot.mitigations) if snapshot.mitigations else ""


PANE = PaneKind(
    "mitigations", 4, "Mitigations", rows, cursor, counter=counter,
    help=[("{zoom}", "the steps of a ladder, with needs and causes"), ("up down", "choose the ladder, once zoomed")],
    sign="what a shortage was answered with; of usual: how fast its batch was, of the pace of its pass",
)  # fmt: skip
