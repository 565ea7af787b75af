"""Texts outside a run, computed as a run computes a collection: a pass for each model over all of them.

Leases, canaries, the ladder and receipts are those of a run; what the passes give is read from scratch files and kept
nowhere.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from interlock.engine.compute.backend import RunContext
from interlock.engine.compute.backlog import Backlog
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.grid import Cells, lay_out
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.compute.schedule import Schedule
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.corpus import Rows
from interlock.engine.corpus.tokens import TokenStore, load_tokenizer, naming
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.locks import holding
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters, hydrated_for
from interlock.engine.record.events import AnyEvent, BatchCommitted, Emit, PassFailed

Told = Callable[[str, int], object]
"""Hears which model has computed how many texts."""


@dataclass(frozen=True)
class TextPass:
    """Texts for a model, each behind a prompt and cut at the model's limit."""

    card: ModelCard
    prompt: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Encoded:
    """What a model gives of texts, one row each, and the seconds that computing it took: of a CPU's time, or of all
    GPUs together."""

    rows: Outputs
    seconds: float


@dataclass(frozen=True)
class TextDevices:
    """Computes texts on GPUs, of which there is at least one; `lessor` lends them, and `host`, the CPU."""

    devices: Sequence[Device]
    host: Device
    lessor: Lessor
    emit: Emit
    cpu_fallback: bool = True

    def compute(self, asked: Sequence[TextPass], name: str, told: Told = lambda model, texts: None) -> list[Encoded]:
        """Compute what each model gives of its texts, in their order; a text that nothing helps is parked.

        `name` is what the texts are called in events, and who holds the GPUs meanwhile. Raises UnavailableError where a
        pass fails or another process holds a GPU; an interrupt ends after the batches that are being computed.
        """
        done: dict[int, list[BatchCommitted]] = {number: [] for number in range(len(asked))}
        failed = dict[int, str]()

        def heard(event: AnyEvent) -> None:
            self.emit(event)
            if isinstance(event, PassFailed):
                failed[event.model_pass] = event.reason
            elif isinstance(event, BatchCommitted):
                own = done[event.model_pass]
                own.append(event)
                told(asked[event.model_pass].card.key, sum(batch.rows for batch in own))

        with TemporaryDirectory(prefix="interlock-") as scratch, holding(self.devices, name):
            grid = [_cells(number, each, name, Path(scratch)) for number, each in enumerate(asked)]
            _interruptible(grid, self._context(heard))
            if failed:
                number, why = min(failed.items())
                raise UnavailableError(f"model {asked[number].card.key}: {why}")
            rows = [cells.files.take(np.arange(len(each.texts))) for cells, each in zip(grid, asked, strict=True)]
        return [Encoded(each, sum(batch.seconds for batch in done[number])) for number, each in enumerate(rows)]

    def _context(self, heard: Emit) -> RunContext:
        controls, masters = Controls(), Masters(0, hydrated_for(self.devices[0]))
        controls.begin(Schedule.EXCLUSIVE, 0, cpu_fallback=self.cpu_fallback)
        return RunContext(self.devices, self.host, self.lessor, masters, controls, heard, sync=lambda: None)


def _interruptible(grid: Sequence[Cells], context: RunContext) -> None:
    """Compute a grid; an interrupt comes to the thread that waits, and not to those that compute."""
    executor = PassExecutor(Backlog(grid, [[] for _ in grid], [1.0] * len(grid), context.emit), context)
    with ThreadPoolExecutor(1, "passes") as beside:
        passes = beside.submit(executor.run)
        try:
            passes.result()
        except BaseException:
            context.controls.stop(ExitCode.INTERRUPTED)
            raise


def _cells(number: int, asked: TextPass, name: str, scratch: Path) -> Cells:
    card, texts = asked.card, asked.texts
    with naming([card.key], card.tokenizer_file):
        tokenizer = load_tokenizer(card.tokenizer_file)
        with TokenStore(scratch / f"{number}.ids", tokenizer, asked.prompt, card.max_tokens) as store:
            store.add(texts)
    rows = Rows(Collection(name, name, scratch, ()), 0, own_texts=len(texts))
    layout = lay_out(number, card, store, [rows], np.zeros(len(texts), np.bool_))
    return Cells(number, layout, store, PassFiles.open(scratch / f"pass-{number}", card, len(texts)))
