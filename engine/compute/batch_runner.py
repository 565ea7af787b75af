"""Computes a cell of the grid in as few forwards as memory allows, and climbs the ladder when one falls short.

A batch is one forward unless the law says that it does not fit now. What falls short is recorded as a mitigation with
its cause, what was done and what it cost; a row that nothing helps is parked with its reason and leaves NaN.
"""

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from interlock.engine.compute.batches import Batch
from interlock.engine.compute.encoder import Ids
from interlock.engine.compute.instance import ModelInstance, Shortfall
from interlock.engine.compute.ladder import MOVES, Cause, Effort, Evidence, Means, Rung, Step, next_step, slices
from interlock.engine.compute.parts.files import Rows as Indices
from interlock.engine.compute.parts.outputs import NOTHING, Outputs
from interlock.engine.compute.source import Queue
from interlock.engine.gpu.device_errors import Trouble, may_recur
from interlock.engine.models.networks.kernels import lay
from interlock.engine.record.events import Emit, Mitigated, PressurePassed, RowParked
from interlock.engine.record.facts import Computed
from interlock.engine.record.words import distinct_sizes, several

MOST_REFUSED = 16
"""Rows in a row that may be refused, alone too, before it is the precision that is taken to be at fault."""


class DeviceGone(Exception):
    """The worker's own device is lost; what it was computing is still to be done."""


class TooNarrow(Exception):
    """Rows are refused again and again in less than float32: the pass needs a wider precision."""


class Crowded(Exception):
    """Models beside this one are about to pause: the batch is to be done again when they have."""


class Fallbacks(Protocol):
    """Where a piece can go that does not fit where it is."""

    def lose(self, instance: ModelInstance, reason: str) -> None:
        """Leave a lost device out from now on; its own worker may be done and not find out."""

    def other(self, instance: ModelInstance) -> ModelInstance | None:
        """Find the same model on another healthy device of its lease."""

    def in_float32(self, instance: ModelInstance) -> ModelInstance | None:
        """Find the same model in float32 on the same device; None where it cannot be there, now and from now on."""

    def float32_possible(self, instance: ModelInstance, longest: int) -> bool:
        """Whether `in_float32` may be asked for a row of this length: there is room, and it computes in less."""

    def makes_room(self, instance: ModelInstance) -> bool:
        """Have companions on the instance's device pause, and tell whether there are any."""

    def streams_rightly(self, instance: ModelInstance) -> bool:
        """Whether a canary lets the instance pass now that its layers are streamed."""

    def host(self, lengths: Sequence[int]) -> ModelInstance | None:
        """Find the same model on the CPU in float32, for rows of these lengths; None where it cannot be there."""

    def host_possible(self) -> bool:
        """Whether `host` may be asked: the fallback is allowed, and host memory suffices."""


@dataclass(frozen=True)
class _Piece:
    """Rows of the batch that go through together, by their index in it, longest first."""

    indices: Indices
    effort: Effort
    instance: ModelInstance


@dataclass(frozen=True)
class Result:
    """What became of a batch: what its rows gave; its forwards; what computed how many rows."""

    outputs: Outputs
    forwards: int
    parts: Sequence[Computed]


class BatchRunner:
    """Computes the batches of a queue on one instance of its model."""

    def __init__(self, queue: Queue, instance: ModelInstance, fallbacks: Fallbacks, emit: Emit) -> None:
        self.queue = queue
        self.instance = instance
        self._cells = queue.cells
        self._fallbacks = fallbacks
        self._emit = emit
        self._pressed = False
        self._index = 0
        self._batch = Batch(NOTHING, 0, 0)
        self._rows: Sequence[Ids] = ()
        self._parked: list[RowParked] = []
        self._computed: list[tuple[Indices, str, str]] = []
        self._done: list[tuple[Indices, Outputs]] = []

    def prepare(self, index: int) -> Sequence[Ids]:
        """Read the ids of a batch and lay them out for the device; for any thread, while another batch computes."""
        rows = self._cells.ids(self._cells.batches[index].rows)
        return rows if self.instance.encoder.padded else lay(rows, self.instance.device.torch)

    def compute(self, index: int, rows: Sequence[Ids] | None = None) -> Result:
        """Compute a batch, wherever it fits; `rows` are those that were prepared.

        Raises DeviceGone when the instance's device is lost, UnavailableError for ids beyond the model's words; nothing
        is committed then.
        """
        cells, device = self._cells, self.instance.device
        if reason := self.instance.lease.lost.get(device.name):
            raise DeviceGone(reason)
        self._index, self._rows = index, self.prepare(index) if rows is None else rows
        self._batch = cells.batches[index]
        try:
            outputs, forwards, calm = self._through(self._planned())
        except DeviceGone as gone:
            outputs, forwards, calm = self._through(self._on_host_only(gone))
        for parked in self._parked:  # only now: what is not committed is done again
            self._emit(parked)
        if left := self.queue.left():  # with this batch, for the one that was taken ahead is hardly ever longer
            self.instance.grow_back(max(cells.batches[each].longest for each in (index, *left)))
        if self._pressed and calm and not self.instance.streamed:
            self._pressed = False
            passed = PressurePassed(model_pass=cells.model_pass, batch_index=index, device=self.instance.device.name)
            self._emit(passed)
        return Result(outputs, forwards, self._parts())

    def _parts(self) -> list[Computed]:
        """What computed how many rows."""
        counts = Counter[tuple[str, str]]()
        for indices, device, dtype in self._computed:
            if len(indices):  # where all were refused, it computed nothing that counts
                counts[device, dtype] += len(indices)
        return [Computed(device=device, dtype=dtype, rows=rows) for (device, dtype), rows in counts.items()]

    def _through(self, planned: Sequence[_Piece]) -> tuple[Outputs, int, bool]:
        """Compute pieces and what comes of them: the outputs, the forwards, and whether nothing fell short."""
        pieces, self._parked = deque(planned), []
        self._done = []
        self._computed.clear()
        forwards, calm = 0, len(pieces) == 1
        while pieces:
            piece = pieces.popleft()
            again = self._try(piece)
            forwards, calm = forwards + 1, calm and not again
            pieces.extendleft(reversed(again))
        return Outputs.none(self._cells.card).joined(len(self._rows), self._done), forwards, calm

    def _on_host_only(self, gone: DeviceGone) -> list[_Piece]:
        """The whole batch on the CPU, where it may be what the device was lost of: it would cost the next GPU too.

        Raises `gone` where it is not, or the CPU may not be used.
        """
        began, lengths = time.monotonic(), [len(row) for row in self._rows]
        possible = may_recur(str(gone)) and self._fallbacks.host_possible()
        host = self._fallbacks.host(lengths) if possible else None
        if host is None:
            raise gone
        name = self.instance.device.name
        cause, action = f"{name} lost at this batch: {gone}", "computing it on the CPU in float32, and on no other GPU"
        short, seconds = Shortfall(None, str(gone), 0, 0, 0.0), time.monotonic() - began
        self._mitigated(Rung.CPU, cause, action, self.instance, len(self._batch.rows), short, seconds)
        return [_Piece(np.arange(len(self._rows)), Effort(), host)]

    def _planned(self) -> list[_Piece]:
        """The batch as one forward, or what it is cut into so that each piece fits."""
        whole = _Piece(np.arange(len(self._rows)), Effort(), self.instance)
        if not self.instance.device.metered:
            return [whole]
        lengths, padded = self._lengths(whole), self.instance.encoder.padded
        tokens, allowed = self.instance.tokens(lengths), self.instance.most_tokens(self._batch.longest)
        if allowed >= tokens:
            return [whole]
        pieces = [replace(whole, indices=whole.indices[cut]) for cut in slices(lengths, allowed, padded=padded)]
        if len(pieces) > 1 and not self._pressed:
            self._pressed = True
            predicted, room = self.instance.predicted(lengths), max(0, self.instance.room())
            needs, free = distinct_sizes(predicted, room)
            cause = (
                f"too large for the free memory ({several(len(lengths), 'text')}, {tokens:,} tokens: needs {needs}, "
                f"{free} free)"
            )
            action = f"computing in {len(pieces)} forwards of at most {max(allowed, self._batch.longest):,} tokens"
            short = Shortfall(Trouble.MEMORY, cause, predicted, room, 0.0, foreseen=True)
            self._mitigated(Rung.REPLAN, cause, action, self.instance, len(self._rows), short, 0.0)
        return pieces

    def _try(self, piece: _Piece) -> list[_Piece]:
        """One forward, whose sound rows are done; the pieces that are still to do because of it."""
        began = time.monotonic()
        whole = len(piece.indices) == len(self._rows)
        rows = self._rows if whole else [self._rows[index] for index in piece.indices]
        got = piece.instance.attempt(rows, piece.effort.tried)
        if isinstance(got, Shortfall):
            if got.trouble is Trouble.LOST:
                self._lose(piece.instance, got.message)
            return self._climb(piece, Cause.LOST if got.trouble is Trouble.LOST else Cause.MEMORY, got)
        bad = got.refused(self._cells.card.dim)
        self._count(piece, refused=bool(bad))
        if self.queue.refused >= MOST_REFUSED:
            raise TooNarrow
        sound = np.array([row for row in range(len(got)) if row not in bad], np.int64)
        self._done.append((piece.indices[sound], got.taken(sound) if bad else got))
        self._computed.append((piece.indices[sound], piece.instance.device.name, piece.instance.dtype))
        if not bad:
            return []
        reasons = "; ".join(sorted(set(bad.values())))
        short = Shortfall(None, reasons, 0, 0, time.monotonic() - began)
        return self._climb(replace(piece, indices=piece.indices[sorted(bad)]), Cause.NOT_FINITE, short)

    def _lose(self, instance: ModelInstance, reason: str) -> None:
        """Say that an instance's device is of no more use, at once: others would relocate pieces to it. Raises
        DeviceGone where it is the one that this computes on."""
        self._fallbacks.lose(instance, reason)
        if instance is self.instance:
            raise DeviceGone(reason)

    def _count(self, piece: _Piece, *, refused: bool) -> None:
        """Count a row that was refused again, alone: a whole batch may be spoilt once by what is not the precision."""
        if not refused and not piece.effort.tried:
            self.queue.refused = 0
        elif refused and piece.effort.tried and len(piece.indices) == 1 and piece.instance.dtype != "float32":
            self.queue.refused += 1

    def _climb(self, piece: _Piece, cause: Cause, short: Shortfall) -> list[_Piece]:
        """Take the next rung; the pieces that come of it."""
        began, instance, lengths = time.monotonic(), piece.instance, self._lengths(piece)
        evidence = Evidence(
            cause=cause,
            rows=len(lengths),
            longest=max(lengths),
            tokens=instance.tokens(lengths),
            predicted=short.predicted,
            room=short.room,
            allowed_tokens=instance.most_tokens(max(lengths)),
            foreseen=short.foreseen,
        )
        on_host = instance.device.kind == "cpu"
        means = Means(
            streams=instance.attached.streams,
            slices_mlp=instance.attached.slices_mlp,
            others=not on_host and self._fallbacks.other(instance) is not None,
            float32=cause is Cause.NOT_FINITE
            and not on_host
            and self._fallbacks.float32_possible(instance, max(lengths)),
            cpu=not on_host and self._fallbacks.host_possible(),
        )
        step = next_step(piece.effort, evidence, means)
        if step.rung is Rung.PARK:
            self._park(piece, short.message if cause is Cause.NOT_FINITE else step.reason)
            return []
        alone = cause is Cause.MEMORY and len(lengths) == 1 and step.rung is not Rung.REPLAN
        if alone and instance is self.instance and self._fallbacks.makes_room(instance):
            raise Crowded
        if (target := self._taken(step, piece)) is None:
            return self._climb(replace(piece, effort=step.effort) if step.rung in MOVES else piece, cause, short)
        self._pressed = self._pressed or (cause is Cause.MEMORY and instance is self.instance)
        happened = f"invalid vector ({short.message})" if cause is Cause.NOT_FINITE else step.happened
        self._mitigated(step.rung, happened, step.action, instance, len(lengths), short, time.monotonic() - began)
        cuts = step.pieces(lengths, padded=instance.encoder.padded)
        return [_Piece(piece.indices[cut], step.effort, target) for cut in cuts]

    def _lengths(self, piece: _Piece) -> list[int]:
        return [len(self._rows[index]) for index in piece.indices]

    def _taken(self, step: Step, piece: _Piece) -> ModelInstance | None:
        """Do what the step says; the instance that computes from now on. None where that turns out not to help, and is
        no longer among the means: a piece that moves on leaves no trace of it. Where to move to is asked once."""
        match step.rung:
            case Rung.STREAM | Rung.SLICE_MLP:
                piece.instance.adopt(step.effort.tried)
                if step.rung is Rung.STREAM and not self._fallbacks.streams_rightly(piece.instance):
                    if lacks := piece.instance.end_streaming():
                        self._lose(piece.instance, lacks)
                    return None
            case Rung.RELOCATE:
                return self._fallbacks.other(piece.instance)
            case Rung.FLOAT32:
                return self._fallbacks.in_float32(piece.instance)
            case Rung.CPU:
                return self._fallbacks.host(self._lengths(piece))
        return piece.instance

    def _mitigated(
        self, rung: Rung, cause: str, action: str, instance: ModelInstance, rows: int, short: Shortfall, seconds: float
    ) -> None:
        measured = short.trouble is not None
        self._emit(
            Mitigated(
                model_pass=self._cells.model_pass,
                batch_index=self._index,
                cause=cause,
                action=action,
                rows=rows,
                cost_seconds=round(short.seconds + seconds, 6),
                rung=rung,
                device=instance.device.name,
                predicted_bytes=short.predicted if measured else None,
                free_bytes=short.room if measured else None,
                foreseen=short.foreseen,
            )
        )

    def _park(self, piece: _Piece, reason: str) -> None:
        cells = self._cells
        self._parked += [
            RowParked(
                model_pass=cells.model_pass,
                model=cells.card.key,
                collection=cells.layout.collections[self._index],
                row=row,
                reason=reason,
                batch_index=self._index,
            )
            for row in self._batch.rows[piece.indices].tolist()
        ]
