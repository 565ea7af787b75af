"""Computes a batch of a job in as few forwards as memory allows, and climbs the ladder when one falls short.

A batch is one forward unless the law says that it does not fit now. What falls short is recorded as a mitigation with
its cause, what was done and what it cost; a row that nothing helps is parked with its reason and leaves NaN.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from interlock.engine.compute.encoder import Apart, Ids
from interlock.engine.compute.instance import ModelInstance, Shortfall
from interlock.engine.compute.ladder import (
    CLIMBED,
    MOVES,
    Cause,
    Effort,
    Evidence,
    Means,
    Outgrown,
    Rung,
    Step,
    next_step,
    slices,
)
from interlock.engine.compute.source import Piece, Queue, Result, Unfinished
from interlock.engine.gpu.device_errors import Trouble, may_recur
from interlock.engine.models.networks.kernels import lay
from interlock.engine.record.events import Emit, Mitigated, PressurePassed
from interlock.engine.record.words import distinct_sizes, several

MOST_REFUSED = 16
"""Rows in a row that may be refused, alone too, before it is the precision that is taken to be at fault."""
NO_TOKENS = "no tokens: the model's tokenizer makes none of it"


class DeviceGone(Exception):
    """The worker's own device is lost; what it was computing is still to be done."""


class TooNarrow(Exception):
    """Rows are refused again and again in less than float32: the pass needs a wider precision."""


class Crowded(Exception):
    """Models beside this one are about to pause: the batch is to be done again when they have."""


class Fallbacks(ABC):
    """Where a piece can go that does not fit where it is; but for the CPU nowhere, unless who has the model says so."""

    @abstractmethod
    def lose(self, instance: ModelInstance, reason: str) -> None:
        """Leave a lost device out from now on; its own worker may be done and not find out."""

    def other(self, instance: ModelInstance) -> ModelInstance | None:
        """Find the same model on another healthy device of its lease."""
        return None

    def in_float32(self, instance: ModelInstance) -> ModelInstance | None:
        """Find the same model in float32 on the same device; None where it cannot be there, now and from now on."""
        return None

    def float32_possible(self, instance: ModelInstance, longest: int) -> bool:
        """Whether `in_float32` may be asked for a row of this length: there is room, and it computes in less."""
        return False

    def makes_room(self, instance: ModelInstance) -> bool:
        """Have companions on the instance's device pause, and tell whether there are any."""
        return False

    def streams_rightly(self, instance: ModelInstance) -> bool:
        """Whether a canary lets the instance pass now that its layers are streamed."""
        return False

    @abstractmethod
    def host(self, lengths: Sequence[int]) -> ModelInstance | None:
        """Find the same model on the CPU in float32, for rows of these lengths; None where it cannot be there."""

    @abstractmethod
    def host_possible(self) -> bool:
        """Whether `host` may be asked: the fallback is allowed, and host memory suffices."""


class BatchRunner:
    """Computes the batches of a queue on one instance of its model."""

    def __init__(self, queue: Queue, instance: ModelInstance, fallbacks: Fallbacks, emit: Emit) -> None:
        self.queue = queue
        self.instance = instance
        self._job = queue.job
        self._fallbacks = fallbacks
        self._emit = emit
        self._pressed = False
        self._tried = Outgrown()

    def prepare(self, index: int) -> Sequence[Ids]:
        """Read the ids of a batch and lay them out for the device; for any thread, while another batch computes."""
        rows = self._job.ids(self._job.batches[index].rows)
        encoder = self.instance.encoder
        # What has token types too is laid out with them, and rows that are computed apart are laid out so.
        if encoder.padded or isinstance(encoder, Apart) or rows[0].ndim > 1:
            return rows
        return lay(rows, self.instance.device.torch)

    def compute(self, index: int, rows: Sequence[Ids] | None = None) -> Result:
        """Compute a batch, wherever it fits; `rows` are those that were prepared.

        Raises DeviceGone when the instance's device is lost, UnavailableError for ids beyond the model's words; nothing
        is committed then.
        """
        job, instance = self._job, self.instance
        if reason := instance.lease.lost.get(instance.device.name):
            raise DeviceGone(reason)
        rows = self.prepare(index) if rows is None else rows
        whole = Piece(np.flatnonzero([len(row) for row in rows]), Effort(), instance)
        todo = [whole] if len(whole.indices) else []
        try:
            now = self._through(Unfinished(job, index, rows, deque(todo)), planned=True)
        except DeviceGone as gone:
            now = self._through(self._on_host_only(gone, Unfinished(job, index, rows, deque(todo))))
        now.park(replace(whole, indices=np.setdiff1d(np.arange(len(rows)), whole.indices)), NO_TOKENS)
        for parked in now.lost():  # only now: what is not committed is done again
            self._emit(parked)
        if left := self.queue.left():  # with this batch, for the one that was taken ahead is hardly ever longer
            instance.grow_back(max(job.batches[each].longest for each in (index, *left)))
        if self._pressed and now.calm and not instance.streamed:
            self._pressed = False
            self._emit(PressurePassed(model_pass=job.model_pass, batch_index=index, device=instance.device.name))
        return now.result()

    def _through(self, now: Unfinished, *, planned: bool = False) -> Unfinished:
        """Compute all pieces of a batch and what comes of them; one that is `planned` first as the law says."""
        if planned:
            self._plan(now)
        while now.pieces:
            self._sort_out(now)
            if not now.pieces:
                break
            piece = now.pieces.popleft()
            again = self._try(piece, now)
            now.forwards, now.calm = now.forwards + 1, now.calm and not again
            now.pieces.extendleft(reversed(again))
        return now

    def _sort_out(self, now: Unfinished) -> None:
        """Spare rows a climb of which it is known how it ends, and have the one that tells most of the others go first.

        A row in the middle of its own climb goes on.
        """
        tried, instance, first = self._tried, self.instance, now.pieces[0]
        climbing = len(first.indices) == 1 and (first.effort.again or first.effort.tried & CLIMBED)
        if tried.off == math.inf or climbing:
            return
        other, room = self._fallbacks.other(instance), instance.room()
        if not tried.holds(room, other.room() if other else 0):
            return
        own, beside = (
            [row for piece in now.pieces if piece.instance is each for row in piece.indices.tolist()]
            for each in (instance, other)
        )
        out = [row for row in own if len(now.rows[row]) >= tried.off or instance.refuses(len(now.rows[row]), room)]
        if spared := out + [row for row in beside if len(now.rows[row]) >= tried.far]:
            now.remove(spared)
            self._spare(now, spared)
        rows = sorted({*own} - {*out})
        lengths = [len(now.rows[row]) for row in rows]
        if (middle := tried.middle(lengths)) is not None:
            now.remove([rows[middle]])
            now.pieces.appendleft(Piece(np.array([rows[middle]]), Effort(), instance))

    def _spare(self, now: Unfinished, rows: Sequence[int]) -> None:
        """Have rows that are as long as one that failed computed at once where that was, or parked."""
        tried, fallbacks, other = self._tried, self._fallbacks, self._fallbacks.other(self.instance)
        lengths = {row: len(now.rows[row]) for row in rows}
        near = [row for row in rows if other and lengths[row] < min(tried.far, tried.out)]
        rest = sorted({*rows} - {*near})
        may = [row for row in rest if lengths[row] < tried.out]
        host = fallbacks.host([lengths[row] for row in may]) if may and fallbacks.host_possible() else None
        lost = sorted({*rest} - {*may}) if host else rest
        now.park(Piece(np.array(lost, np.int64), Effort(), self.instance), f"{tried.why}; nothing left to try")
        for there, many, rung in ((other, near, Rung.RELOCATE), (host, may, Rung.CPU)):
            if not (there and many):
                continue
            # Elsewhere the climb begins anew, but for the way there.
            piece = Piece(np.array(many), Effort(frozenset({rung} - {Rung.RELOCATE}), moves=frozenset({rung})), there)
            if rung not in tried.told:  # of the batches that follow each commit says where it was computed
                tried.told.add(rung)
                where = there.device.name if rung is Rung.RELOCATE else "the CPU in float32"
                action, short = f"computing all that does not fit on {where} at once", Shortfall(None, "", 0, 0, 0.0)
                self._mitigated(now, rung, tried.why, action, replace(piece, instance=self.instance), short)
            now.calm = False
            now.pieces.append(piece)

    def _on_host_only(self, gone: DeviceGone, now: Unfinished) -> Unfinished:
        """The whole batch on the CPU, where it may be what the device was lost of: it would cost the next GPU too.

        Raises `gone` where it is not, or the CPU may not be used.
        """
        began, (whole,) = time.monotonic(), now.pieces
        possible = may_recur(str(gone)) and self._fallbacks.host_possible()
        host = self._fallbacks.host(now.lengths(whole)) if possible else None
        if host is None:
            raise gone
        cause = f"{self.instance.device.name} lost at this batch: {gone}"
        action = "computing it on the CPU in float32, and on no other GPU"
        short = Shortfall(None, str(gone), 0, 0, time.monotonic() - began)
        self._mitigated(now, Rung.CPU, cause, action, whole, short)
        now.pieces = deque([replace(whole, instance=host)])
        return now

    def _plan(self, now: Unfinished) -> None:
        """Cut a batch that does not fit as one forward so that each piece does."""
        if not now.pieces:
            return
        (whole,), instance = now.pieces, self.instance
        lengths = now.lengths(whole)
        needed = instance.predicted(lengths)
        instance.device.next_need = needed, instance.resident_bytes
        if not instance.bounded or needed <= instance.granted:
            return
        tokens, allowed = instance.tokens(lengths), instance.most_tokens(now.batch.longest)
        if allowed >= tokens:
            return
        cuts = slices(lengths, allowed, padded=instance.encoder.padded)
        now.pieces = deque(replace(whole, indices=whole.indices[cut]) for cut in cuts)
        now.calm = len(cuts) == 1 or instance.besides
        if not now.calm and not self._pressed:
            self._pressed = True
            needs, free = distinct_sizes(needed, room := max(0, instance.room()))
            cause = (
                f"too large for the free memory ({several(len(lengths), 'text')}, {tokens:,} tokens: needs {needs}, "
                f"{free} free)"
            )
            action = f"computing in {len(cuts)} forwards of at most {max(allowed, now.batch.longest):,} tokens"
            short = Shortfall(Trouble.MEMORY, cause, needed, room, 0.0, foreseen=True)
            self._mitigated(now, Rung.REPLAN, cause, action, whole, short)

    def _try(self, piece: Piece, now: Unfinished) -> list[Piece]:
        """One forward, whose sound rows are done; the pieces that are still to do because of it."""
        began = time.monotonic()
        got = piece.instance.attempt(now.rows_of(piece), piece.effort.tried)
        if isinstance(got, Shortfall):
            if got.trouble is Trouble.LOST:
                self._lose(piece.instance, got.message)
            return self._climb(piece, Cause.LOST if got.trouble is Trouble.LOST else Cause.MEMORY, got, now)
        bad = got.refused(self._job.card.dim)
        # A row that was refused again, alone: a whole batch may be spoilt once by what is not the precision.
        if not bad and not piece.effort.tried:
            self.queue.refused = 0
        elif bad and piece.effort.tried and len(piece.indices) == 1 and piece.instance.dtype != "float32":
            self.queue.refused += 1
        if self.queue.refused >= MOST_REFUSED:
            raise TooNarrow
        now.take(piece, got, [*bad])
        if piece.instance is self.instance:
            self._tried.passed(max(now.lengths(piece)))
        if not bad:
            return []
        short = Shortfall(None, "; ".join(sorted(set(bad.values()))), 0, 0, time.monotonic() - began)
        return self._climb(replace(piece, indices=piece.indices[sorted(bad)]), Cause.NOT_FINITE, short, now)

    def _lose(self, instance: ModelInstance, reason: str) -> None:
        """Say that an instance's device is of no more use, at once: others would relocate pieces to it. Raises
        DeviceGone where it is the one that this computes on."""
        self._fallbacks.lose(instance, reason)
        if instance is self.instance:
            raise DeviceGone(reason)

    def _climb(self, piece: Piece, cause: Cause, short: Shortfall, now: Unfinished) -> list[Piece]:
        """Take the next rung; the pieces that come of it."""
        began, instance, lengths = time.monotonic(), piece.instance, now.lengths(piece)
        longest, on_host, fallbacks = max(lengths), instance.device.kind == "cpu", self._fallbacks
        evidence = Evidence(
            cause=cause,
            rows=len(lengths),
            longest=longest,
            tokens=instance.tokens(lengths),
            predicted=short.predicted,
            room=short.room,
            allowed_tokens=instance.most_tokens(longest),
            foreseen=short.foreseen,
        )
        not_finite = cause is Cause.NOT_FINITE
        means = Means(
            streams=instance.attached.streams,
            others=not on_host and fallbacks.other(instance) is not None,
            float32=not_finite and not on_host and fallbacks.float32_possible(instance, longest),
            cpu=not on_host and fallbacks.host_possible(),
        )
        step = next_step(piece.effort, evidence, means)
        if cause is Cause.MEMORY and len(lengths) == 1 and step.rung in (*MOVES, Rung.PARK):
            self._tried.learn(evidence, step, at_home=instance is self.instance, on_host=on_host)
        if step.rung is Rung.PARK:
            now.park(piece, short.message if not_finite else step.reason)
            return []
        alone = cause is Cause.MEMORY and len(lengths) == 1 and step.rung is not Rung.REPLAN
        if alone and instance is self.instance and fallbacks.makes_room(instance):
            raise Crowded
        if (target := self._taken(step, instance, lengths)) is None:
            again = replace(piece, effort=step.effort) if step.rung in MOVES else piece
            return self._climb(again, cause, short, now)
        self._pressed = self._pressed or (cause is Cause.MEMORY and instance is self.instance)
        happened = f"invalid vector ({short.message})" if not_finite else step.happened
        short = replace(short, seconds=short.seconds + time.monotonic() - began)
        self._mitigated(now, step.rung, happened, step.action, piece, short)
        cuts = step.pieces(lengths, padded=instance.encoder.padded)
        return [Piece(piece.indices[cut], step.effort, target) for cut in cuts]

    def _taken(self, step: Step, instance: ModelInstance, lengths: Sequence[int]) -> ModelInstance | None:
        """Do what the step says; the instance that computes from now on. None where that turns out not to help, and is
        no longer among the means: a piece that moves on leaves no trace of it. Where to move to is asked once."""
        match step.rung:
            case Rung.STREAM:
                instance.adopt(step.effort.tried)
                if not self._fallbacks.streams_rightly(instance):
                    if lacks := instance.end_streaming():
                        self._lose(instance, lacks)
                    return None
            case Rung.RELOCATE:
                return self._fallbacks.other(instance)
            case Rung.FLOAT32:
                return self._fallbacks.in_float32(instance)
            case Rung.CPU:
                return self._fallbacks.host(lengths)
        return instance

    def _mitigated(self, now: Unfinished, rung: Rung, cause: str, action: str, piece: Piece, short: Shortfall) -> None:
        """Emit a step of the ladder for a piece, and what the forward cost that fell short."""
        measured = short.trouble is not None
        self._emit(
            Mitigated(
                model_pass=self._job.model_pass,
                batch_index=now.index,
                cause=cause,
                action=action,
                rows=len(piece.indices),
                cost_seconds=round(short.seconds, 6),
                rung=rung,
                device=piece.instance.device.name,
                predicted_bytes=short.predicted if measured else None,
                free_bytes=short.room if measured else None,
                foreseen=short.foreseen,
            )
        )
