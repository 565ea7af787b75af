"""Passes without a run: texts and vectors in memory, events folded, and what a run says before its passes."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interlock.engine.gpu.device import Device
from interlock.engine.intake.collections import Collection
from interlock.engine.intake.corpus import Rows
from interlock.engine.models.card import ModelCard
from interlock.engine.models.roster import entry_of
from interlock.engine.passes.grid import Cells, lay_out
from interlock.engine.record import events as ev
from interlock.engine.record.facts import DeviceFacts
from interlock.engine.record.fold import fold
from interlock.engine.record.state import RunState


class Told:
    """Takes the events of passes, from any thread, and folds them; `told` is what else is done with each."""

    def __init__(self) -> None:
        self.events: list[ev.AnyEvent] = []
        self.state = RunState()
        self._lock = threading.Lock()

    def __call__(self, event: ev.AnyEvent) -> None:
        with self._lock:
            entry = ev.Entry(seq=len(self.events), at=0.0, session=0, elapsed=0.0, device_kind="sim", body=event)
            fold(self.state, entry)
            self.events.append(event)
            self.told(event)

    def told(self, event: ev.AnyEvent) -> None:
        """Nothing else."""

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def begin(self, grid: Sequence[Cells], devices: Sequence[Device], ceiling: int, schedule: str, run_id: str) -> None:
        """What a run says before its passes."""
        nothing: dict[str, Any] = {"config": {}, "versions": {}, "environment": {}}
        self(ev.RunStarted(run_id=run_id, chunks="", fusion="none", schedule=schedule, **nothing))
        facts = [
            DeviceFacts(name=each.name, kind=each.kind, label=each.label, total_bytes=each.total, ceiling_bytes=ceiling)
            for each in devices
        ]
        self(ev.DevicesFound(devices=facts))
        self(ev.RosterResolved(roster=[entry_of(cells.card, 1.0, cells.card.dim) for cells in grid]))
        for share in (share for cells in grid for share in cells.layout.planned):
            self(share)


def grid_of(
    cards: Sequence[ModelCard], lengths: Sequence[int], ids: Callable[[int, int], np.ndarray], *splits: int
) -> list[Any]:
    """The cells of every pass over texts of these lengths, in one collection or, cut at `splits`, in several."""
    tokens: Any = Tokens(lengths, ids)
    corpus = [
        Rows(Collection(f"c{first}", f"c{first}", Path("c"), ()), first, own_texts=end - first)
        for first, end in itertools.pairwise(sorted({0, *splits, len(lengths)}))
    ]
    cells = []
    for number, card in enumerate(cards):
        layout = lay_out(number, card, tokens, corpus, np.zeros(len(lengths), np.bool_))
        file: Any = File(len(lengths), card.dim)
        cells.append(Cells(number, layout, tokens, file))
    return cells


class Tokens:
    """Rows of these lengths; `ids` makes those of a row from its number and its length."""

    def __init__(self, lengths: Sequence[int], ids: Callable[[int, int], np.ndarray]) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        self._rows = [ids(row, length) for row, length in enumerate(lengths)]

    def lengths(self, limit: int) -> np.ndarray:
        return np.minimum(self._lengths, limit)

    def truncated(self, limit: int) -> np.ndarray:
        return np.maximum(self._lengths - limit, 0)

    def row(self, text: int, limit: int) -> np.ndarray:
        return self._rows[text][:limit]


class File:
    """Vectors, and how often each row was written."""

    def __init__(self, rows: int, dim: int) -> None:
        self.array = np.full((rows, dim), np.nan, np.float32)
        self.puts: Counter[int] = Counter()

    def put(self, rows: np.ndarray, vectors: np.ndarray) -> int:
        self.array[rows] = vectors
        self.puts.update(rows.tolist())
        return 0

    def sync(self) -> None:
        """There is no disk."""
