"""Runs the batches of one turn on an attached model: encode, gate, write, commit; between batches it listens.

A row that fails the gate is tried once more alone; a row that fails again is parked with its reason, and the
rest goes on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.errors import Stopped
from engine.intake.tokens import TokenStore
from engine.models.card import ModelCard
from engine.passes.batches import Batch
from engine.passes.encoder import Encoder, Vectors
from engine.passes.grid import Layout
from engine.passes.vectors import VectorFile, gate
from engine.record.events import AnyEvent, BatchCommitted, Mitigated, RowParked

SYNC_SECONDS = 1.0


@dataclass(frozen=True)
class Cells:
    """One pass as a worker sees it: what to compute, from which ids, and where the vectors go."""

    model_pass: int
    layout: Layout
    tokens: TokenStore
    file: VectorFile

    @property
    def card(self) -> ModelCard:
        return self.layout.card

    @property
    def batches(self) -> Sequence[Batch]:
        return self.layout.batches


class Worker:
    """Computes cells of one pass on one device."""

    def __init__(
        self,
        cells: Cells,
        encoder: Encoder,
        device: str,
        emit: Callable[[AnyEvent], object],
        sync: Callable[[], None],
        stop: Callable[[], bool],
    ) -> None:
        """`sync` makes the journal durable; `stop` is asked before every batch."""
        self._cells = cells
        self._encoder = encoder
        self._device = device
        self._emit = emit
        self._sync_journal = sync
        self._stop = stop
        self._synced = time.monotonic()

    def run(self, batches: Sequence[int]) -> None:
        """Compute and commit these batches in order. Raises Stopped between two of them when asked to."""
        for index in batches:
            if self._stop():
                self._sync()
                raise Stopped("stopped by the operator between two batches; --resume continues")
            self._one(index)
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self._sync()
        self._sync()

    def _one(self, index: int) -> None:
        cells, batch = self._cells, self._cells.batches[index]
        began = time.monotonic()
        vectors = self._encode(batch.rows)
        seconds = time.monotonic() - began
        if bad := gate(vectors, cells.card.dim):
            self._retry(index, vectors, bad)
        crc = cells.file.put(batch.rows, vectors)
        self._emit(
            BatchCommitted(
                model_pass=cells.model_pass,
                batch_index=index,
                rows=len(batch.rows),
                tokens=batch.tokens,
                padding=cells.layout.padding(batch),
                seconds=round(seconds, 6),
                device=self._device,
                crc=crc,
            )
        )

    def _encode(self, rows: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Vectors:
        limit = self._cells.card.max_tokens
        return self._encoder.encode([self._cells.tokens.row(int(row), limit) for row in rows])

    def _retry(self, index: int, vectors: Vectors, bad: dict[int, str]) -> None:
        """Encode each bad row alone, in place; park what stays bad as NaN."""
        cells, rows = self._cells, self._cells.batches[index].rows
        began = time.monotonic()
        for place in bad:
            alone = self._encode(rows[place : place + 1])
            if again := gate(alone, cells.card.dim):
                self._park(int(rows[place]), index, again[0])
                vectors[place] = np.nan
            else:
                vectors[place] = alone[0]
        self._emit(
            Mitigated(
                model_pass=cells.model_pass,
                batch_index=index,
                cause="; ".join(sorted({f"a vector was refused: {reason}" for reason in bad.values()})),
                action="encoded the row alone",
                rows=len(bad),
                cost_seconds=round(time.monotonic() - began, 6),
            )
        )

    def _park(self, row: int, index: int, reason: str) -> None:
        cells = self._cells
        self._emit(
            RowParked(
                model_pass=cells.model_pass,
                model=cells.card.key,
                collection=cells.layout.collections[index],
                row=row,
                reason=reason,
                batch_index=index,
            )
        )

    def _sync(self) -> None:
        """Vectors first: what the journal says is there must be there."""
        self._cells.file.sync()
        self._sync_journal()
        self._synced = time.monotonic()
