"""The pane that shows the plan of a command: made in a thread, and dropped where another command is asked about."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from textual import work

from interlock.console.form import Machine
from interlock.console.screens.base import aside
from interlock.console.text.form_text import no_plan
from interlock.console.text.plan_text import PASSES, emptied, long_texts, sizes_of, sums
from interlock.engine.errors import InterlockError
from interlock.engine.record.words import drawn, duration, human_bytes, several
from interlock.widgets.pane import Pane
from interlock.widgets.text import Row, row, table_rows, wrapped

if TYPE_CHECKING:
    from interlock.engine.flows.forecast import Forecast


class PlanPane(Pane):
    """What a run would do."""

    def __init__(self, machine: Machine, *, id: str) -> None:
        super().__init__("plan", id=id)
        self._machine = machine
        self._plan: Forecast | None = None
        self._planned: Sequence[str] = ()
        self._why = ""
        """Why there is no plan."""
        self._stop = threading.Event()

    @property
    def known(self) -> bool:
        """Whether there is a plan, or a reason against it."""
        return bool(self._plan or self._why)

    def on_unmount(self) -> None:
        self._stop.set()

    def leave(self) -> None:
        """Plan no further; what was said against the last command is forgotten."""
        self._stop.set()
        self._why = ""

    @work(exclusive=True, exit_on_error=False)
    async def make(self, words: Sequence[str], pause: float = 0.0) -> None:
        """Plan a run of these arguments, after a pause in which nothing else is asked."""
        self._stop.set()
        self._stop = stop = threading.Event()
        await asyncio.sleep(pause)
        if words == self._planned:
            return
        self.entitle(above="plan: reading and tokenising...")
        try:
            self._plan = await aside(lambda: self._machine.plan(words, stop.is_set))
            self._planned, self._why = words, ""
        except InterlockError as error:
            if not stop.is_set():
                self._plan, self._planned, self._why = None, (), str(error)
        finally:
            self.entitle(above="plan")
        self.screen.set_class(self.known, "-known")
        self.draw()

    def draw(self, words: Sequence[str] | None = None, much: int = 0, key: str = "") -> None:
        """Show the plan, which may be that of other `words`; or say why there is none yet, as `no_plan` has it."""
        width = self.inner_width
        if self._why:
            lines = [
                row((line, "warn")) for text in self._why.splitlines() for line in wrapped(drawn(text, 2000), width)
            ]
            self.show([row(("no plan:", "warn")), *lines])
        elif self._plan and width > 0:
            self.show(plan_rows(self._plan, width))
        elif not self._plan:
            self.show([row((line, "dim")) for line in wrapped(no_plan(much, key), max(1, width))])
        if self._plan and words is not None and words != self._planned:
            self.entitle(above="plan before these changes")


COLUMNS = ("model", "batches", "predicted", "time", "on", "tokens", "truncated", "texts", "reused", "weights", "dtype")
"""Of the passes, what matters most first: a narrow pane leaves the last ones out."""


def plan_rows(seen: "Forecast", width: int) -> list[Row]:
    """Draw a plan in rows of at most `width` cells."""
    passes = [[PASSES[name](number, each) for name in COLUMNS] for number, each in enumerate(seen.passes, 1)]
    fitting = table_rows(COLUMNS, passes, width)[: len(passes) + 1]
    lines = [*fitting, *(row((line, "bold")) for line in wrapped(_total(seen), width))]
    for text, style in _remarks(seen):
        lines += [row((line, style)) for line in wrapped(text, width)]
    heads = ("collection", "files", "chunks", "texts", "duplicates", "refused")
    cells = []
    for rows in seen.collections:
        counts = (len(rows.collection.files), rows.chunks, rows.own_texts, rows.duplicates, len(rows.refusals))
        cells.append([rows.collection.name, *(f"{count:,}" for count in counts)])
    lines += [(), *table_rows(heads, cells, width)[: len(cells) + 1]]
    return lines


def _total(seen: "Forecast") -> str:
    """All passes together, in a line."""
    batches = sum(each.batches for each in seen.passes)
    known = [each.seconds for each in seen.passes if each.seconds is not None]
    time = f"about {duration(sum(known))}" if known and len(known) == len(seen.passes) else "time not known yet"
    vectors = f"fused vectors of {seen.fused_dim}" if seen.fused_dim else "one named vector per model"
    return f"{several(len(seen.passes), 'pass', 'passes')}, {several(batches, 'batch', 'batches')}, {time}, {vectors}"


def _remarks(seen: "Forecast") -> Iterator[tuple[str, str]]:
    """What speaks against it, and what is worth knowing, with the style of each."""
    yield from ((each.refused, "error") for each in seen.passes if each.refused)
    yield from ((f"! {each}", "warn") for each in (*emptied(seen), *seen.overlooked))
    yield from ((each, "dim") for each in (*long_texts(seen), *sums(seen)))
    yield sizes_of(seen), "dim"
    if any(each.seconds is None for each in seen.passes):
        yield "time is known once each model has run on this kind of device", "dim"
    yield f"a lease may take {human_bytes(seen.budget_bytes)} of the device", "dim"
