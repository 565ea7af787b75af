"""A model with its lease: loaded on the devices of its assignment, and on the CPU where its work has to go there.

Where a device cannot take the model after all, it is left out and an event says so; where none can, the CPU is asked.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import RLock

from interlock.engine.compute.batch_runner import BatchRunner, Fallbacks
from interlock.engine.compute.checks.canary import Canaries
from interlock.engine.compute.context import LeasedFor, MemoryPlanner, RunContext, tell_granted, tell_released
from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.compute.instance import ModelInstance, first_calibration
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.schedule import Assignment
from interlock.engine.compute.source import Queue
from interlock.engine.errors import NoDeviceError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import Trouble, classify, summed_up
from interlock.engine.gpu.lease import Lease
from interlock.engine.models.card import ModelCard
from interlock.engine.models.weights import Attached, Master, Replica, attach_to_host
from interlock.engine.record.events import Mitigated, ModelAttached, Warned
from interlock.engine.record.words import distinct_sizes

TRIES = 2
"""How often a model is attached to a device before the device is left out."""


@dataclass(eq=False)
class ResidentModel(Fallbacks):
    """Loads one model for an assignment, and finds another instance for a piece that does not fit where it is.

    `stack` ends its leases; `limits` are the bytes that it may take of each device beside other models; `lose_device`
    is called with a device that is gone, and why, and `make_room` with the pass and the device that memory is short
    for and on, from any worker.
    """

    context: RunContext
    planner: MemoryPlanner
    canaries: Canaries
    queue: Queue
    assignment: Assignment
    stack: ExitStack
    limits: Mapping[str, int] | None
    lose_device: Callable[[Device, str], object]
    make_room: Callable[[int, Device], bool]
    lease: Lease = field(init=False)

    def __post_init__(self) -> None:
        self.job = self.queue.job
        self.instances: list[ModelInstance] = []
        self._host: ModelInstance | None = None
        self._wide: dict[str, ModelInstance | None] = {}
        """By device the instances in float32; None where there can be none under this lease."""
        self._lock = RLock()

    def load(self) -> None:
        """Lease and attach; on the host where no GPU takes it, and nowhere where they are lost: others may take it.

        Raises NoDeviceError where nothing takes it.
        """
        context = self.context
        by_name = {device.name: device for device in (*context.devices, context.host)}
        assigned = [by_name[name] for name in self.assignment.devices]
        devices = self._still_roomy(assigned)
        if all(device.lost for device in assigned):
            return
        if not devices:
            self._load_on_host(f"does not fit on {', '.join(self.assignment.devices)}")
            return
        self.lease = self._leased(devices, self._assigned(devices[0]), streamed=self.assignment.streamed)
        if devices[0] is context.host:
            self.instances = [self._instance_on_host(self.lease)]
        else:
            card = self._card_on(devices[0])
            master, warm = context.masters.take(card)
            if slow := context.masters.news(card, master):
                context.emit(Warned(message=slow))
            self.stack.callback(self._give_back, card, master)
            self.instances = [instance for device in devices if (instance := self._instance(device, master, warm))]
            if not self.instances:
                if len(self.lease.lost) < len(devices):
                    self._load_on_host(f"could not be attached to {', '.join(self.assignment.devices)}")
                return
        self._try_out()

    def _give_back(self, card: ModelCard, master: Master) -> None:
        """Keep a master, unless the model is computed in another way from now on."""
        if self._card_on(self.context.devices[0]) == card:
            self.context.masters.give_back(card, master)

    def _try_out(self) -> None:
        """Keep the instances that a canary lets pass; none where the model is to be computed in another way.

        Raises NoDeviceError where no device computes it rightly.
        """
        devices = ", ".join(instance.device.name for instance in self.instances)
        right = self.canaries.sift(self.job, self.instances, self.lose_device, self._mitigated)
        self.instances = right or []
        if right == [] and len(self.lease.lost) < len(self.lease.devices):
            self._load_on_host(f"computes wrongly on {devices}")

    def runners(self) -> list[BatchRunner]:
        """Make what computes the queue, for each device where the model is loaded."""
        return [BatchRunner(self.queue, instance, self, self.context.emit) for instance in self.instances]

    def unload(self) -> None:
        """Drop the instances, and keep what they have learnt of the memory law."""
        for instance in self.instances:
            self.planner.learn(self.job.model_pass, instance.device, instance.calibration)
        self.instances, self._host, self._wide = [], None, {}

    def report_lost(self, device: Device, reason: str) -> None:
        """Emit that a device of this assignment was lost, with the rows that it took and did not compute."""
        if device.name in self.assignment.devices:
            action = "recomputing its uncommitted batches elsewhere"
            rows = self.queue.returned[device.name]
            self._mitigated(Rung.RELOCATE, f"{device.name} lost: {reason}", action, device, None, rows)

    def lose(self, instance: ModelInstance, reason: str) -> None:
        """Leave the device of this instance out from now on, also for workers that would send pieces to it."""
        self.lose_device(instance.device, reason)

    def other(self, instance: ModelInstance) -> ModelInstance | None:
        lost = {*self.lease.lost, instance.device.name}
        usable = [each for each in self.instances if each.device.name not in lost]
        return usable[0] if usable else None

    def makes_room(self, instance: ModelInstance) -> bool:
        return self.make_room(self.job.model_pass, instance.device)

    def streams_rightly(self, instance: ModelInstance) -> bool:
        device, card = instance.device, self._card_on(instance.device)
        return self.canaries.outcome(self.job, card, instance, f"not streaming on {device.name}") != "failed"

    def float32_possible(self, instance: ModelInstance, longest: int) -> bool:
        """Whether a row of this length has room in float32 on the same device, its layers streamed."""
        if instance.dtype == "float32":
            return False
        if instance.device.name in self._wide:
            return self._wide[instance.device.name] is not None
        device, budget = instance.device, self.context.lessor.budget
        law = self.planner.law_as(self._card_on(device).in_precision("float32"), device)
        tokens = computed_tokens([longest], padded=instance.encoder.padded)
        needed = law.slots + first_calibration(device).activations(law, tokens, longest)
        on_host = self.planner.law(self.job.card, self.context.host).weights
        return law.slots > 0 and needed <= budget(device) and on_host <= budget(self.context.host)

    def in_float32(self, instance: ModelInstance) -> ModelInstance | None:
        """Find the same model in float32 on the same device; the first call reads its weights and streams them."""
        device = instance.device
        with self._lock:
            if device.name not in self._wide:
                self._wide[device.name] = self._widened(device)
            return self._wide[device.name]

    def _widened(self, device: Device) -> ModelInstance | None:
        """The model in float32; None where it does not attach or computes wrongly there too."""
        began, card = time.monotonic(), self._card_on(device).in_precision("float32")
        master, warm = self.context.masters.take(card)
        replica, _ = self._attached(device, master, streamed=True)
        if replica is None:
            return None
        wide = self._ready(card, device, replica, self.lease, time.monotonic() - began, warm)
        outcome = self.canaries.outcome(self.job, card, wide, f"not using float32 on {device.name}")
        for instance in self.instances:
            if instance.device is device:  # the canary has taken its workspaces too
                instance.clear()
        return None if outcome in ("failed", "lost") else wide

    def host_possible(self) -> bool:
        """Whether the fallback is allowed, and host memory suffices."""
        context, job = self.context, self.job
        if context.devices[0] is context.host or not context.controls.cpu_fallback:
            return False
        return self._host is not None or self.planner.of(job.layout).host <= context.lessor.budget(context.host)

    def host(self, lengths: Sequence[int]) -> ModelInstance | None:
        """Find the same model on the CPU in float32, for rows of these lengths; the first call attaches it."""
        card, host = self.job.card, self.context.host
        law, known = self.planner.law(card, host), self.planner.calibration(self.job.model_pass, host)
        tokens = computed_tokens(lengths, padded=not card.tight)
        return self._on_host(LeasedFor(len(lengths), law.weights + known.activations(law, tokens, max(lengths)), 1))

    def _on_host(self, work: LeasedFor) -> ModelInstance | None:
        with self._lock:
            if self._host is None and self.host_possible():
                self._host = self._instance_on_host(self._leased([self.context.host], work, streamed=False))
            return self._host

    def _still_roomy(self, devices: Sequence[Device]) -> list[Device]:
        """The devices that still have the room that this assignment was made for: others may have taken it since."""
        room = {device.name: self.context.lessor.budget(device) for device in devices}
        needed = self._least(devices)
        short = [device for device in devices if needed[device.name] > room[device.name]]
        if short == [self.context.host]:
            return list(devices)  # the lease says what it lacks
        for device in short:
            needs, free = distinct_sizes(needed[device.name], max(0, room[device.name]))
            action = f"leaving {device.name} out of this lease"
            self._mitigated(Rung.RELOCATE, f"needs {needs}, {free} free on {device.name}", action, device, None)
        return [device for device in devices if device not in short]

    def _load_on_host(self, cause: str) -> None:
        """Attach to the CPU, because no GPU takes it. Raises NoDeviceError where the CPU may not either."""
        context, host = self.context, self.context.host
        if context.devices[0] is host:
            raise NoDeviceError(f"{cause}: drop it from --roster, and report it with what doctor prints")
        if not context.controls.cpu_fallback:
            raise NoDeviceError(f"{cause}, and CPU fallback is off: drop --no-cpu-fallback, or drop it from --roster")
        instance = self._on_host(self._assigned(host))
        if instance is None:
            needed = self.planner.of(self.job.layout).host
            needs, free = distinct_sizes(needed, max(0, context.lessor.budget(host)))
            flag = context.lessor.flag_on(host)
            raise NoDeviceError(
                f"{cause}, and the CPU has too little memory (needs {needs}, {free} free): "
                f"free memory{f', raise {flag}' if flag else ''}, or drop it from --roster"
            )
        self._mitigated(Rung.CPU, cause, "computing on the CPU in float32", instance.device, None)
        self.instances = [instance]

    def _card_on(self, device: Device) -> ModelCard:
        return self.planner.card_on(self.job.card, device)

    def _assigned(self, device: Device) -> LeasedFor:
        """Everything in the assignment."""
        job, batches = self.job, self.assignment.batches
        rows = sum(len(job.batches[index].rows) for index in batches)
        return LeasedFor(rows, self.planner.widest(job.layout, device), len(batches))

    def _least(self, devices: Sequence[Device]) -> dict[str, int]:
        layout = self.job.layout
        return {device.name: self.planner.least(layout, self.assignment, device.name) for device in devices}

    def _leased(self, devices: Sequence[Device], work: LeasedFor, *, streamed: bool) -> Lease:
        context, job = self.context, self.job
        needs = self._least(devices)
        shared = bool(self.limits) or (devices[0] is context.host and devices[0] is not context.devices[0])
        lease = self.stack.enter_context(
            context.lessor.lease(job.card.key, needs, self._released, shared=shared, limits=self.limits)
        )
        tell_granted(
            context.emit,
            lease,
            job.model_pass,
            work,
            schedule=context.controls.schedule,
            streamed=streamed,
        )
        return lease

    def _released(self, lease: Lease) -> None:
        tell_released(self.context.emit, lease, self.job.model_pass)
        for overrun in lease.overruns():
            self.context.emit(Warned(message=f"lease {lease.id}: {overrun}"))

    def _instance_on_host(self, lease: Lease) -> ModelInstance:
        host, card = self.context.host, self._card_on(self.context.host)
        began = time.monotonic()
        attached = attach_to_host(card, host, self.context.backend.load)
        return self._ready(card, host, attached, lease, time.monotonic() - began, warm=False)

    def _instance(self, device: Device, master: Master, warm: bool) -> ModelInstance | None:
        """Attach to a GPU, streamed where the weights do not fit; None, with a mitigation, where neither succeeds."""
        began, message = time.monotonic(), ""
        for streamed in [self.assignment.streamed] * TRIES + [True]:
            # To attach a streamed model takes nothing and succeeds on a full device too: so the room is asked for.
            needed = self.planner.of(self.job.layout).streamed if streamed else 0
            if streamed and not 0 < needed <= self.context.lessor.budget(device):
                message = message or f"no memory left on {device.name}"
                break
            attached, failure = self._attached(device, master, streamed)
            if attached:
                if message:
                    rung = Rung.REPLAN if streamed == self.assignment.streamed else Rung.STREAM
                    action = "attached on retry" if rung is Rung.REPLAN else "streaming its layers instead"
                    self._mitigated(rung, message, action, device, began)
                return self._ready(self._card_on(device), device, attached, self.lease, time.monotonic() - began, warm)
            message = failure
        self._mitigated(Rung.RELOCATE, message, f"leaving {device.name} out of this lease", device, began)
        return None

    def _attached(self, device: Device, master: Master, streamed: bool) -> tuple[Replica | None, str]:
        """A replica, or why there is none; what the failed try held is gone."""
        try:
            return Replica(master, device, streamed=streamed), ""
        except Exception as error:
            message = f"attaching to {device.name} failed: {summed_up(error)}"
            lost = classify(error) is Trouble.LOST
        if lost:
            self.lose_device(device, message)
        else:
            device.reclaim()
        return None, message

    def _ready(
        self, card: ModelCard, device: Device, attached: Attached, lease: Lease, seconds: float, warm: bool
    ) -> ModelInstance:
        context, job = self.context, self.job
        streamed = isinstance(attached, Replica) and attached.streamed
        law = self.planner.law_as(card, device)
        context.emit(
            ModelAttached(
                lease=lease.id,
                model=card.key,
                bytes=0 if streamed else law.weights if device.metered else attached.bytes,
                seconds=round(seconds, 3),
                device=device.name,
                warm=warm,
                streamed=streamed,
            )
        )
        encoder = context.backend.encoders(card, attached.network, device)
        calibration = self.planner.calibration(job.model_pass, device)
        return ModelInstance(device, attached, encoder, card.dtype, law, calibration, lease, context.lessor)

    def _mitigated(
        self,
        rung: Rung,
        cause: str,
        action: str,
        device: Device,
        began: float | None = None,
        rows: int | None = None,
    ) -> None:
        """Emit a step of the ladder that concerns all rows of the assignment, or so many of them."""
        self.context.emit(
            Mitigated(
                model_pass=self.job.model_pass,
                cause=cause,
                action=action,
                rows=self._assigned(device).rows if rows is None else rows,
                cost_seconds=round(time.monotonic() - began, 6) if began else 0.0,
                rung=rung,
                device=device.name,
            )
        )
