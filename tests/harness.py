"""Passes without a run: texts and vectors in memory, events folded, and what a run says before its passes."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interlock.engine.compute.job import Job, lay_out
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.corpus import Rows
from interlock.engine.corpus.tokens import Specials, Tokenised
from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.roster import entry_of
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

    def begin(self, grid: Sequence[Job], devices: Sequence[Device], ceiling: int, schedule: str, run_id: str) -> None:
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
        file: Any = File(len(lengths), card)
        cells.append(Job(number, layout, tokens, file))
    return cells


class Tokens(Tokenised):
    """Rows of these lengths; `ids` makes those of a row from its number and its length."""

    def __init__(self, lengths: Sequence[int], ids: Callable[[int, int], np.ndarray]) -> None:
        super().__init__(np.asarray(lengths, np.int64), Specials((), ()))
        self._rows = [ids(row, length).astype(np.uint32) for row, length in enumerate(lengths)]

    def stored(self, text: int) -> np.ndarray:
        return self._rows[text]


def written_out(outputs: Outputs, card: ModelCard) -> np.ndarray:
    """All parts of a few rows of a model side by side, with a weight for each of its words; NaN for parked rows.

    Tokens are told by how many there are and by their mean, each weighed by its place; at a thousandth, since what is
    rounded to float16 may differ by that much more.
    """
    form = card.by_token.vectors
    tokens = [] if outputs.tokens is None or form is None else [_told_of(outputs.tokens, form.dim)]
    return np.hstack([*outputs.matrices(card.words), *tokens])


def _told_of(tokens: TokenRows, dim: int) -> np.ndarray:
    vectors, counts = tokens.to_float32(), tokens.counts
    told = np.full((len(tokens), 1 + dim), np.nan, np.float32)
    for row, (first, count) in enumerate(zip(tokens.starts, counts, strict=False)):
        if not tokens.parked[row]:
            places = np.arange(1, count + 1) / max(1, count)
            told[row] = [count, *(places @ vectors[first : first + count] / max(1, count) / 1000)]
    return told


def _width(card: ModelCard) -> int:
    """Numbers in a row that is written out."""
    tokens = 1 + card.by_token.vectors.dim if card.by_token.vectors else 0
    return ("dense" in card.outputs) * card.dim + ("sparse" in card.outputs) * card.words + tokens


class File:
    """What rows gave, written out, and how often each row was written."""

    def __init__(self, rows: int, card: ModelCard) -> None:
        self.array = np.full((rows, _width(card)), np.nan, np.float32)
        self.puts: Counter[int] = Counter()
        self._card = card

    def put(self, rows: np.ndarray, outputs: Outputs) -> int:
        self.array[rows] = written_out(outputs, self._card)
        self.puts.update(rows.tolist())
        return outputs.crc()

    def sync(self) -> None:
        """There is no disk."""
