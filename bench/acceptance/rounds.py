"""Texts to vectors by the engine's own rounds, with everything that they told; sections choose the circumstances."""

from collections.abc import Callable, Sequence

import numpy as np
from acceptance.inputs import stored
from acceptance.workbench import CEILING, Bench

from interlock.engine.compute.context import Backend, RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.job import Job, Layout, plan
from interlock.engine.compute.parts.dense import VectorFile, Vectors
from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.models.memory import Law, law_for
from interlock.engine.record import events as ev

WINDOW = 2


def masters_of(bench: Bench) -> Masters:
    """Host masters that come from the bench's own."""
    return Masters(16 << 30, bench.master)


def compute(
    bench: Bench,
    cards: Sequence[ModelCard],
    texts: Sequence[str],
    masters: Masters,
    *,
    budget: int,
    ceiling: int = CEILING,
    schedule: Schedule = Schedule.EXCLUSIVE,
    cpu_fallback: bool = False,
    attached: Callable[[], object] = lambda: None,
) -> tuple[list[Vectors], list[ev.AnyEvent]]:
    """The vectors of every model, and the events; `attached` is called when a model has come to the device."""
    told: list[ev.AnyEvent] = []

    def emit(event: ev.AnyEvent) -> None:
        told.append(event)
        if isinstance(event, ev.ModelAttached) and event.device == bench.device.name:
            attached()

    def laws(card: ModelCard, kind: str) -> Law:
        """The host, which no section lets a padded network go to, is not worth the seconds of another trace."""
        return law_for(card, kind if card.packed else bench.device.kind)

    controls = Controls()
    controls.begin(schedule, WINDOW, cpu_fallback=cpu_fallback)
    grid = [_cells(bench, number, card, texts, budget) for number, card in enumerate(cards)]
    lessor = Lessor([bench.device, bench.host], ceiling)
    context = RunContext([bench.device], bench.host, lessor, masters, controls, emit, lambda: None, Backend(laws=laws))
    PassExecutor(BatchSource(grid, [[] for _ in grid], [1.0] * len(grid), context.emit), context).run()
    vectors = [np.array(cells.files.dense.array) for cells in grid]
    for cells in grid:
        cells.files.path.unlink()
        cells.tokens.path.unlink()
    return vectors, told


def _cells(bench: Bench, number: int, card: ModelCard, texts: Sequence[str], budget: int) -> Job:
    store = stored(bench, card, texts)
    batches = list(plan(np.arange(len(store)), store.lengths(card.max_tokens), budget).batches)
    layout = Layout(card, batches=batches, collections=["Acceptance"] * len(batches))
    return Job(number, layout, store, PassFiles({"dense": VectorFile.open(bench.file(".npy"), len(texts), card.dim)}))
