"""A model that stays: it computes jobs one after the other until it is closed, on a GPU where it fits beside everything
else, otherwise on the CPU in float32.

It is loaded when it is first needed, under a lease of its own on one device. Batches go through the same ladder as
those of a run; what moves to the CPU takes the model with it. Every move of its weights, and that it left, is an event
with bytes and cause.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from traceback import clear_frames
from typing import Any

from msgspec.structs import replace
from torch import nn

from interlock.engine.compute.batch_runner import BatchRunner, DeviceGone, Fallbacks, TooNarrow
from interlock.engine.compute.context import (
    Granted,
    Laws,
    LeasedFor,
    MemoryPlanner,
    tell_granted,
    tell_released,
)
from interlock.engine.compute.encoder import Encoder, encoder_for
from interlock.engine.compute.instance import ModelInstance
from interlock.engine.compute.job import Job
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.source import Queue, Result
from interlock.engine.errors import NoDeviceError, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import classify, summed_up
from interlock.engine.gpu.lease import TooSmall, too_small
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import hydrated_for
from interlock.engine.models.memory import law_for
from interlock.engine.models.networks.batching import Batching
from interlock.engine.models.weights import Attached, Replica, attach_to_host, load
from interlock.engine.record.events import AnyEvent, Mitigated, ModelMoved, ModelUnloaded
from interlock.engine.record.words import human_bytes, several

FILES, ON_CPU = "disk", "computing on the CPU in float32"
Encoders = Callable[[ModelCard, nn.Module, Device], Encoder]


@dataclass(frozen=True, eq=False)
class _Held:
    """The model on a device: what ends its lease, and how long it took to get there."""

    instance: ModelInstance
    lease: ExitStack
    seconds: float

    @property
    def told(self) -> dict[str, Any]:
        """Where it is, as events tell it, with the bytes that its weights take there."""
        instance = self.instance
        size = instance.law.weights if instance.device.metered else instance.attached.bytes
        return {"lease": instance.lease.id, "device": instance.device.name, "bytes": size}


class HeldModel(Fallbacks):
    """A model and where it is; whoever closes it or has it moved holds no instance any more, because the weights live
    as long as somebody refers to them."""

    def __init__(self, card: ModelCard, on: Granted, *, encoders: Encoders = encoder_for, laws: Laws = law_for) -> None:
        self.card = card
        self.loading = 0.0
        """Seconds that bringing it into memory took so far."""
        self._gpus, self._host, self._lessor, self._emit = on.gpus, on.host, on.lessor, on.emit
        self._fallback, self._encoders = on.cpu_fallback or not on.gpus, encoders
        self._planner = MemoryPlanner(on.gpus or [on.host], on.host, laws)
        self._held: _Held | None = None
        self._beside: _Held | None = None
        """The model on the CPU, where a batch has just needed it: it stays there alone once the batch is done."""
        self._runner: BatchRunner | None = None
        self._read: nn.Module | None = None
        self._why = ""
        """The cause of the last step of the ladder to the CPU."""

    @property
    def instance(self) -> ModelInstance | None:
        """The model where it is now; None where it is in no memory."""
        return self._held.instance if self._held else None

    def network(self) -> nn.Module:
        """Return the network where it is; read from its files, and attached later, where it is nowhere yet."""
        if self._held:
            return self._held.instance.attached.network
        self._read = self._read or load(self.card)
        return self._read

    def becomes(self, card: ModelCard) -> bool:
        """Have the weights that are in memory compute what another card of them says: without another prompt, or with
        other outputs. Whether they can."""
        if card == self.card:
            return True
        mine, read = self.card, self.card.snapshot
        same = dataclasses.replace(card, snapshot=read, asked=mine.asked, by_token=mine.by_token, shape=mine.shape)
        known = card.snapshot.head_digests.items() <= read.head_digests.items()
        if not self._held or same != mine or card.snapshot.fingerprint != read.fingerprint or not known:
            return False
        self.card = dataclasses.replace(card, snapshot=read)  # what was read has the heads of both
        instance = self._held.instance
        instance.encoder = self._encoder(instance.attached.network, instance.device)
        return True

    def close(self, cause: str = "done") -> None:
        """Take the model off its device, if it is on one, and end the lease."""
        self._read = self._runner = None
        while held := self._held or self._beside:
            if held is self._held:
                self._held = None
            else:
                self._beside = None
            told, stack, began = held.told, held.lease, time.monotonic()
            self._planner.learn(0, held.instance.device, held.instance.calibration)
            del held  # nothing but this frame would keep the weights
            stack.close()
            seconds = round(time.monotonic() - began, 3)
            self._emit(ModelUnloaded(model=self.card.key, cause=cause, seconds=seconds, **told))

    def choose(self, job: Job) -> tuple[Device, str]:
        """Find the device that the model is on, or the GPU with the most room for it, or the CPU; and why.

        Raises UnavailableError where it fits on no GPU and may not go to the CPU.
        """
        if self._held:
            return self._held.instance.device, ""
        if not self._gpus:
            return self._host, "no GPU is granted to it"
        best = max(self._gpus, key=self._lessor.budget)
        needed = self.least(best, job)
        small = too_small(needed, 0, self._gpus, self._lessor)
        if small is None and not best.lost:
            return best, f"{human_bytes(needed)} fit on {best.name}"
        why, remedy, _ = small or TooSmall(f"has no GPU left: {best.name} is lost", "start anew")
        if not self._fallback:
            raise UnavailableError(
                f"model {self.card.key} {why}, and CPU fallback is off: drop --no-cpu-fallback, or {remedy}"
            )
        return self._host, why

    def least(self, device: Device, job: Job) -> int:
        """Predict the bytes that the model and the longest row of a job take on a device."""
        law, known = self._planner.law(self.card, device), self._planner.calibration(0, device)
        return job.layout.least_bytes(law, known)

    def load(self, job: Job) -> None:
        """Have the model on a device, with room for the rows of a job one by one. Raises UnavailableError where it fits
        nowhere."""
        if self._held:
            instance = self._held.instance
            rows = instance.predicted([max((each.longest for each in job.batches), default=1)])
            if not instance.device.metered and rows > instance.granted:  # of a GPU the ladder knows what to do
                self._lessor.check(self.card.key, rows, instance.device)
                instance.granted = rows
            return
        device, why = self.choose(job)
        try:
            self._held = self._attached_to(device, job, FILES, why)
        except Exception as error:
            if classify(error) is None or not self._falls_back(device):
                raise
            why = f"attaching to {device.name} failed: {summed_up(error)}"
        else:
            return
        device.reclaim()
        self._mitigated(why, device, sum(len(each.rows) for each in job.batches))
        self._held = self._attached_to(self._host, job, FILES, why)

    def compute(self, job: Job, progress: Callable[[int], object] = lambda _: None) -> list[Result]:
        """Compute a job, and put what comes of each batch to its files; `progress` takes how many rows are done. What
        is returned says of each batch how it ran, without its outputs.

        Raises NoDeviceError where a lost device leaves it none, UnavailableError as `load` does.
        """
        try:
            self.load(job)
            results, done, queue = [], 0, Queue(job, range(len(job.batches)))
            while (index := queue.take()) is not None:
                results.append(self._computed(queue, index))
                progress(done := done + len(job.batches[index].rows))
        except BaseException as error:
            self._runner = None
            clear_frames(error.__traceback__)  # they hold the network, and who catches it wants to unload that
            raise
        self._runner = None
        return results

    def _computed(self, queue: Queue, index: int) -> Result:
        """Compute a batch and put what comes of it, on the CPU where its GPU turns out to be of no use."""
        while True:
            assert self._held, "it was loaded, and is somewhere until it is closed"
            instance = self._held.instance
            device = instance.device
            self._runner = self._runner or BatchRunner(queue, instance, self, self._heard)
            try:
                result = self._runner.compute(index)
            except DeviceGone as gone:
                why = f"{device.name} lost: {gone}"
            except TooNarrow:
                why = f"{several(queue.refused, 'text')} in a row not finite in {instance.dtype}"
            else:
                del instance
                if self._beside:
                    self._move(self._why)
                queue.job.files.put(queue.job.batches[index].rows, result.outputs)
                return dataclasses.replace(result, outputs=Outputs())
            if not self._falls_back(device):
                raise NoDeviceError(f"model {self.card.key} cannot compute on {device.name}: {why}")
            del instance
            queue.refused = 0
            self._mitigated(why, device, len(queue.job.batches[index].rows))
            self._beside = self._beside or self._attached_to(self._host, queue.job)
            self._move(why)

    def _move(self, why: str) -> None:
        """Give the device up for the CPU, where the model is too."""
        assert self._held and self._beside, "it is on both"
        source, beside, self._beside = self._held.instance.device.name, self._beside, None
        self.close(why)
        self._held = beside
        self._moved(beside, source, why)

    def _attached_to(self, device: Device, job: Job, source: str = "", why: str = "") -> _Held:
        """Put the model on a device under a new lease, which has room for the longest row of a job at least."""
        card, began = self._planner.card_on(self.card, device), time.monotonic()
        law, known = self._planner.law(self.card, device), self._planner.calibration(0, device)
        needed = self.least(device, job)
        with ExitStack() as stack:
            released = partial(tell_released, self._emit, model_pass=0)
            # What stays lies beside others that stay: the models of a service, those on the host.
            lease = stack.enter_context(self._lessor.lease(card.key, {device.name: needed}, released, shared=True))
            tell_granted(self._emit, lease, 0, LeasedFor(sum(len(each.rows) for each in job.batches), needed))
            attached = self._attached(card, device)
            encoder = self._encoder(attached.network, device)
            instance = ModelInstance(device, attached, encoder, card.dtype, law, known, lease, self._lessor, stays=True)
            attached.streams = False  # no canary looks at it
            instance.granted = 0 if device.metered else needed - law.weights
            seconds = time.monotonic() - began
            self.loading += seconds
            held = _Held(instance, stack.pop_all(), seconds)
        if source:
            self._moved(held, source, why)
        return held

    def _encoder(self, network: nn.Module, device: Device) -> Encoder:
        card = self._planner.card_on(self.card, device)
        if card.kind != "scores":  # no canary looks at it, and questions are few: padded ones are computed alone
            card = dataclasses.replace(card, batching=Batching.SINGLE)
        return self._encoders(card, network, device)

    def _attached(self, card: ModelCard, device: Device) -> Attached:
        """Attach what was read for its tokenizer, where it is that, or what is read now."""
        network, self._read = self._read if card.dtype == self.card.dtype else None, None

        def read(card: ModelCard) -> nn.Module:
            return load(card) if network is None else network

        if device.kind == "cpu":
            return attach_to_host(card, device, read)
        return Replica(hydrated_for(device, read)(card), device)

    def _moved(self, held: _Held, source: str, why: str) -> None:
        seconds = round(held.seconds, 3)
        self._emit(ModelMoved(model=self.card.key, source=source, cause=why, seconds=seconds, **held.told))

    def _heard(self, event: AnyEvent) -> None:
        """Tell of the ladder's steps, which are of no pass. Of rows that are parked the results tell."""
        if isinstance(event, Mitigated):
            self._why = event.cause if event.rung is Rung.CPU else self._why
            self._emit(replace(event, model=self.card.key, batch_index=None))

    def _mitigated(self, cause: str, device: Device, rows: int) -> None:
        """Emit that the CPU computes from now on."""
        key, name = self.card.key, device.name
        self._emit(
            Mitigated(model_pass=0, model=key, cause=cause, action=ON_CPU, rows=rows, rung=Rung.CPU, device=name)
        )

    def _falls_back(self, device: Device) -> bool:
        """Whether the model may go to the CPU from this device."""
        return self._fallback and device is not self._host

    # What the ladder asks.

    def lose(self, instance: ModelInstance, reason: str) -> None:
        self._lessor.lose(instance.device, reason)

    def host(self, lengths: Sequence[int]) -> ModelInstance | None:
        if self._beside is None:
            assert self._runner, "it is what asks"
            self._beside = self._attached_to(self._host, self._runner.queue.job)
        return self._beside.instance

    def host_possible(self) -> bool:
        if self._held is None or not self._falls_back(self._held.instance.device):
            return False
        law = self._planner.law(self.card, self._host)
        return self._beside is not None or law.weights <= self._lessor.budget(self._host)
