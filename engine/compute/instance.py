"""A model on a device, ready for forwards: each is given what the memory law says, and measured.

An error that means a shortage comes back as data, after everything that the failed forward held is gone; any other
error is raised. What is measured corrects the law for the forwards to come.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import RLock

from interlock.engine.compute.encoder import Apart, Encoder, Ids, computed_tokens
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import Trouble, classify, summed_up
from interlock.engine.gpu.lease import Lease, Lessor
from interlock.engine.models.memory import HEAP_FACTOR, Calibration, Law
from interlock.engine.models.networks.kernels import tile
from interlock.engine.models.weights import Attached, Replica


@dataclass(frozen=True)
class Shortfall:
    """Why a forward gave nothing: `predicted` bytes were foreseen, `room` bytes were free when all was cleared."""

    trouble: Trouble | None
    """None where memory and device did what they should, but a vector is not finite or is zero."""
    message: str
    predicted: int
    room: int
    seconds: float
    foreseen: bool = False
    """It was not tried: the memory law said so."""


def first_calibration(device: Device) -> Calibration:
    """Return what is known before anything was measured."""
    return Calibration() if device.metered else Calibration(scale=HEAP_FACTOR, margin=0.0)


@dataclass(eq=False)
class ModelInstance:
    """One model on one device under one lease; used by one thread at a time."""

    device: Device
    attached: Attached
    encoder: Encoder
    dtype: str
    law: Law
    calibration: Calibration
    lease: Lease
    lessor: Lessor
    lock: AbstractContextManager[object] = field(default_factory=RLock)
    stays: bool = False
    """Whether it stays from one job to the next, beside others: then it keeps to its lease on a CPU too."""
    granted: int = 0
    """Bytes that were seen to be free for a forward: one that takes no more has no need to look again."""
    _cold: bool = True
    """The next forward takes workspaces that stay: it says nothing of activations."""
    _pause: int = 1
    """Batches for which it stays streamed before it is tried whole: twice as many each time."""
    _batches: int = 0

    def __post_init__(self) -> None:
        self.lease.watch(self.attached.network)

    @property
    def streamed(self) -> bool:
        """Whether the weights stay on the host for now."""
        return isinstance(self.attached, Replica) and self.attached.streamed

    @property
    def resident_bytes(self) -> int:
        """What its weights take of the device now."""
        return self.law.slots if self.streamed else self.law.weights

    @property
    def bounded(self) -> bool:
        """Whether a batch is cut so that by the law each forward fits."""
        return self.device.metered or self.stays

    @property
    def besides(self) -> bool:
        """Whether what bounds a forward is its share of a device that others have shares of."""
        return self.lease.shared and self.room() >= self.lease.budgets[self.device.name] - self.resident_bytes

    @property
    def way(self) -> str:
        """How its weights come to the device."""
        return "streamed" if self.streamed else "whole"

    def end_streaming(self) -> str:
        """Attach the weights whole again, and stream them no more: vectors come out wrong that way. Returns why the
        device cannot have them, empty where it has."""
        with self.lock:
            self.attached.streams = False
            return self._attached_whole()

    def clear(self) -> None:
        """Give back what forwards have left on the device beside the weights; the next one takes workspaces anew."""
        with self.lock:
            self.device.reclaim()
            self._cold = True

    def stream(self) -> None:
        """Leave the weights on the host for the forwards to come."""
        with self.lock:
            if isinstance(self.attached, Replica):
                self.attached.stream()
            self.device.reclaim()
            self._cold, self._batches = True, 0

    def adopt(self, tried: frozenset[Rung]) -> None:
        """Stream where these rungs ask for it; a piece that went to the CPU has left what it lacked behind."""
        with self.lock:
            if Rung.STREAM in tried and Rung.CPU not in tried and not self.streamed and self.attached.streams:
                self.stream()

    def grow_back(self, longest: int) -> None:
        """Undo `stream` after a batch, where the weights fit again and a row of `longest` beside them.

        What the law says is not all that may keep it from fitting: each time it stays as it is for twice as long, so
        that weights are not copied to and fro with every batch.
        """
        with self.lock:
            if self.device.name in self.lease.lost or not self.streamed:
                return
            self._batches += 1
            if self._batches < self._pause or not self._fits_whole(longest):
                return
            self._pause, self._cold = 2 * self._pause, True
            if self._attached_whole():
                self.stream()

    def _attached_whole(self) -> str:
        """Attach the weights; why the device cannot have them, of which nothing is left then that was copied."""
        self.device.reclaim()  # a workspace in the middle of a large segment would keep the weights out
        try:
            self.attached.restore()
        except Exception as error:
            if classify(error) is None:
                raise
            return summed_up(error)
        return ""

    def _fits_whole(self, longest: int) -> bool:
        self.attached.clear()  # slots that nothing needs until the next forward are room
        free = self.lessor.budget(self.device) - self.law.weights
        return self.predicted([longest]) <= min(self.lease.budgets[self.device.name] - self.law.weights, free)

    def room(self) -> int:
        """Measure what one forward may take now: of the lease's budget, and of what the device really has."""
        return min(self.lease.budgets[self.device.name] - self.resident_bytes, self.lessor.budget(self.device))

    def most_tokens(self, longest: int) -> int:
        """Return the most tokens, padding included, of a forward with a row of `longest`."""
        most = self.calibration.most_tokens(self.law, longest, self.room())
        return most if self.encoder.padded else most - most % tile(most)

    def tokens(self, lengths: Sequence[int]) -> int:
        """Count the tokens that a forward of rows of these lengths computes."""
        return computed_tokens(lengths, padded=self.encoder.padded)

    def predicted(self, lengths: Sequence[int]) -> int:
        """Predict the bytes beside the weights of a forward of rows of these lengths."""
        return self.calibration.activations(self.law, self.tokens(lengths), max(lengths))

    def refuses(self, length: int, room: int) -> bool:
        """Whether a text of this length is not tried in this room, even alone and with as little of the model as can
        be."""
        least = self.streamed or not self.attached.streams
        return self.device.metered and least and self.predicted([length]) > max(0, room)

    def attempt(self, rows: Sequence[Ids], tried: frozenset[Rung] = frozenset()) -> Outputs | Shortfall:
        """Compute the rows, as sparingly as the rungs that were `tried` ask for, or say why not.

        What cannot fit by the law is not tried: an allocator is not asked to find out. The room in a shortfall is
        what was free after clearing.
        """
        lengths, began = [len(row) for row in rows], time.monotonic()
        with self.lock:
            self.adopt(tried)  # the device's own worker may have grown the model back since the rows came here
            predicted = self.predicted(lengths)
            if self.device.metered and predicted > (room := max(0, self.room())):
                return Shortfall(Trouble.MEMORY, "", predicted, room, 0.0, foreseen=True)
            # Rows of one length that are padded carry no mask, which the law counts: they would teach too little.
            telling = not isinstance(self.encoder, Apart) and (not self.encoder.padded or len({*lengths}) > 1)
            done = self._forward(rows, self.law.activations(self.tokens(lengths), max(lengths)), telling=telling)
            if not isinstance(done, tuple):
                return done
            trouble, message = done  # here the error and its traceback, which hold activations, are gone
            self.calibration = self.calibration.strained()
            if trouble is Trouble.MEMORY:
                self.attached.clear()
                self.device.reclaim()
                self._cold = True
            return Shortfall(trouble, message, predicted, max(0, self.room()), time.monotonic() - began)

    def _forward(self, rows: Sequence[Ids], lawful: int, *, telling: bool) -> Outputs | tuple[Trouble, str]:
        """Run the network; what is measured beside the `lawful` bytes corrects the law, where that is `telling`."""
        try:
            with self.lessor.measuring(self.device) as measure, self.device.computing():
                outputs = self.encoder.encode(rows)
        except Exception as error:
            trouble = classify(error)
            if trouble is None:
                raise
            return trouble, summed_up(error)
        if measure.retries:
            self.calibration = self.calibration.strained()
        elif telling and measure.activations is not None and not (self._cold or self.streamed):
            self.calibration = self.calibration.observed(lawful, measure.activations)
        if self._cold:  # what was loaded only now, kernels and their workspaces, no allocator counts
            self.device.wall(self.lessor.ceiling_on(self.device))
        self._cold = False
        return outputs
