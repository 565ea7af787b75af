"""What a run computes with: devices and models of this machine, or others in their place; what its passes need of
devices, by the memory law; what its placements share, the deadline among it; and what is told of a lease.

What measured batches have taught about a law is kept here from one assignment of a pass to the next.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec.structs import asdict
from torch import nn

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import Encoder, encoder_for
from interlock.engine.compute.instance import first_calibration
from interlock.engine.compute.job import Job, Layout
from interlock.engine.compute.schedule import Assignment, DeviceRoom, MemoryNeed
from interlock.engine.errors import ExitCode
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lease, Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Hydrate, Masters, hydrated_for
from interlock.engine.models.memory import Calibration, Law, law_for
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import cards_of
from interlock.engine.models.weights import load
from interlock.engine.record.events import Emit, LeaseGranted, LeaseReleased, ResidueFound
from interlock.engine.record.words import parse_duration, parse_time_of_day

Laws = Callable[[ModelCard, str], Law]


class MemoryPlanner:
    """Answers what a run's passes need of its devices.

    `host` is the CPU, which is among `devices` only where there is no GPU.
    """

    def __init__(self, devices: Sequence[Device], host: Device, laws: Laws = law_for) -> None:
        self._devices = devices
        self._host = host
        self._laws = laws
        self._law: dict[tuple[str, ...], Law] = {}
        self._settled: dict[str, ModelCard] = {}
        self._widest: dict[tuple[str, str], int] = {}
        self._known: dict[str, MemoryNeed] = {}
        self._calibrations: dict[tuple[int, str], Calibration] = {}

    def of(self, layout: Layout) -> MemoryNeed:
        """Return the bytes that a pass cannot do without: on a GPU, on one with its layers streamed, on the host.

        What was learnt does not change them, so they are worked out once, however short the assignments.
        """
        key, device = layout.card.key, self._devices[0]
        if key not in self._known:
            host = layout.least_bytes(self.law(layout.card, self._host), first_calibration(self._host))
            whole, streamed = host, 0
            if device is not self._host:
                law, first = self.law(layout.card, device), first_calibration(device)
                whole = layout.least_bytes(law, first)
                streamed = layout.least_bytes(law, first, streamed=True) if law.slots else 0
            self._known[key] = MemoryNeed(key, whole, streamed, host)
        return self._known[key]

    def least(self, layout: Layout, assignment: Assignment, name: str) -> int:
        """Return the bytes that an assignment of this pass cannot do without on the device of this name."""
        need = self.of(layout)
        if name == self._host.name:
            return need.host
        return need.streamed if assignment.streamed else need.whole

    def widest(self, layout: Layout, device: Device) -> int:
        """Predict the bytes that the weights and the widest batch of a pass take on a device."""
        key = layout.card.key, device.name
        if key not in self._widest:
            law = self.law(layout.card, device)
            self._widest[key] = layout.predicted_bytes(law, first_calibration(device))
        return self._widest[key]

    def law(self, card: ModelCard, device: Device) -> Law:
        """Return the memory law of a model on a device; estimated once, since every placement and every screen asks."""
        return self.law_as(self.card_on(card, device), device)

    def law_as(self, card: ModelCard, device: Device) -> Law:
        """Return the memory law of a model in the precision of this very card."""
        key = card.key, card.dtype, card.kernel, card.attention, device.kind
        if key not in self._law:
            self._law[key] = self._laws(card, device.kind)
        return self._law[key]

    def card_on(self, card: ModelCard, device: Device) -> ModelCard:
        """Return the card as the model computes on a device: beside GPUs the host computes in float32."""
        beside = device is self._host and device is not self._devices[0]
        settled = self._settled.get(card.key, card)
        return replace(card.on_host, batching=settled.batching) if beside else settled

    def settle(self, card: ModelCard) -> None:
        """Have a model computed as this card says from now on; what was known of its memory holds no more."""
        self._settled[card.key] = card
        self._known.pop(card.key, None)
        self._widest = {key: size for key, size in self._widest.items() if key[0] != card.key}

    def forget(self, model_pass: int) -> None:
        """Drop what was learnt in a pass."""
        self._calibrations = {key: known for key, known in self._calibrations.items() if key[0] != model_pass}

    def calibration(self, model_pass: int, device: Device) -> Calibration:
        """Return what earlier assignments of the pass have learnt on this device."""
        return self._calibrations.get((model_pass, device.name), first_calibration(device))

    def learn(self, model_pass: int, device: Device, calibration: Calibration) -> None:
        """Keep for the next assignment what this one has learnt."""
        self._calibrations[model_pass, device.name] = calibration


def rooms(devices: Sequence[Device], host: Device, lessor: Lessor, *, cpu_fallback: bool) -> list[DeviceRoom]:
    """Measure what can be leased now: of `devices` the GPUs, and the host last where it may be used."""
    gpus = [device for device in devices if device is not host]
    usable = [*gpus, host] if cpu_fallback or host in devices else gpus
    return [DeviceRoom(device.name, device.kind, lessor.budget(device), lessor.flag_on(device)) for device in usable]


CLOSING_SECONDS = 30.0
"""What is kept for releasing the leases, the journal and the summary. Chosen: all of it takes a second or two."""
UNSURE = 2.0
"""How much longer the first batch of a pass is taken to be than earlier runs, or the passes before it, make of it."""
Clock = Callable[[], float]


def seconds_until(text: str, now: datetime) -> float:
    """Return how long it is from `now`, in local time, to the end that a text asks for: `8h30m` from now, or `17:45`,
    today or tomorrow. Raises ValueError for any other text."""
    try:
        at = parse_time_of_day(text)
    except ValueError:
        return parse_duration(text)
    days = now.date(), now.date() + timedelta(days=1)
    # As the clocks go: in the night in which they are put back, a time comes twice.
    comes = [datetime.combine(day, at.replace(fold=fold)).timestamp() for day in days for fold in (0, 1)]
    return next(end for end in comes if end > now.timestamp()) - now.timestamp()


@dataclass
class _Slowest:
    """The longest that something took, in seconds, and the most that any of it cost."""

    seconds: float = 0.0
    cost: float = 0.0

    def take(self, seconds: float, cost: float) -> None:
        self.seconds, self.cost = max(self.seconds, seconds), max(self.cost, cost)

    def of(self, cost: float) -> float:
        return self.seconds * max(1.0, cost / self.cost if self.cost else 1.0)


class Deadline:
    """The end of one session; without `seconds` there is none, and everything may be begun. For any thread."""

    def __init__(
        self, seconds: float | None = None, controls: Controls | None = None, clock: Clock = time.monotonic
    ) -> None:
        """It comes `seconds` from now; `controls` are told to stop when something does not fit before it."""
        self.clock = clock
        self.near = False
        """Whether something did not fit, so that the run is to stop."""
        self.reserve: Callable[[], float] = lambda: 0.0
        """Seconds that are needed beside those of what is begun, for what the run is to deliver before it ends."""
        self.paces: Mapping[str, float] = {}
        """Tokens a second by model in earlier runs."""
        self._ends = None if seconds is None else clock() + seconds
        self._controls = controls
        self._batches: dict[int, _Slowest] = {}
        self._leases = _Slowest()
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds until then; infinite where there is no deadline."""
        return float("inf") if self._ends is None else self._ends - self.clock()

    def end_in(self, seconds: float) -> None:
        """Have it come so long from now: infinite where there is none."""
        self._ends = None if seconds == float("inf") else self.clock() + seconds

    def allows(self, seconds: float, *, reserve: bool = True) -> bool:
        """Whether what takes so long may still be begun; where it may not, the run is told to stop. Without `reserve`,
        it is what that was kept for."""
        if self._ends is None:
            return True
        if self.fits(seconds + (self.reserve() if reserve else 0.0)):
            return True
        if self._controls and not self._controls.stop_requested:
            self.near = True
            self._controls.stop(ExitCode.STOPPED)
        return False

    def fits(self, seconds: float) -> bool:
        """Whether what takes so long is over in time, with what closes the run."""
        return seconds + CLOSING_SECONDS <= self.left

    def allows_batch(self, job: Job, index: int) -> bool:
        """Whether a batch may still be begun, as `allows` says."""
        return self._ends is None or self.allows(self.seconds_of(job, index))

    def allows_lease(self, weights: int, job: Job, index: int) -> bool:
        """Whether a model with `weights` bytes may still be leased and loaded, for at least one batch."""
        with self._lock:
            opening = self._leases.of(weights)
        return self._ends is None or self.allows(opening + self.seconds_of(job, index))

    def seconds_of(self, job: Job, index: int) -> float:
        """Predict what a batch takes at most. Of a pass without any the pace of earlier runs counts, else that of the
        passes before it, either doubled; 0 where nothing is known."""
        cost, computed = job.layout.cost(index), job.layout.computed(job.batches[index])
        with self._lock:
            own, others = self._batches.get(job.model_pass), list(self._batches.values())
            if own:
                return own.of(cost)
            if pace := self.paces.get(job.card.key, 0.0):
                return UNSURE * computed / pace
            return UNSURE * cost * max((each.seconds / each.cost for each in others if each.cost), default=0.0)

    def learn(self, job: Job, index: int, seconds: float) -> None:
        """Take in what a batch took."""
        with self._lock:
            self._batches.setdefault(job.model_pass, _Slowest()).take(seconds, job.layout.cost(index))

    def learn_lease(self, weights: int, seconds: float) -> None:
        """Take in what it took to lease and load models with so many bytes."""
        with self._lock:
            self._leases.take(seconds, weights)


@dataclass(frozen=True)
class Backend:
    """Where devices, models and their vectors come from; the defaults are those of this machine."""

    devices: Callable[[str, Sequence[str]], list[Device]] = choose
    """By `--devices` and `--faults`."""
    host: Callable[[], Device] = CpuDevice
    cards: Callable[[Sequence[ModelSpec], Policy, Sequence[Device], Emit], list[ModelCard]] = cards_of
    """Of the roster's models for these devices; emits how each was resolved."""
    laws: Laws = law_for
    load: Callable[[ModelCard], nn.Module] = load
    """A model for the host's own processor."""
    hydrate: Callable[[Device], Hydrate] = hydrated_for
    """A model's host master, for devices like this one."""
    encoders: Callable[[ModelCard, nn.Module, Device], Encoder] = encoder_for
    clock: Callable[[], float] = time.monotonic
    """What batches, the run and its deadline are timed by, in seconds."""


REAL = Backend()


@dataclass(frozen=True)
class RunContext:
    """What every placement of a run shares. `host` is the CPU, which is among `devices` only where there is no GPU."""

    devices: Sequence[Device]
    host: Device
    lessor: Lessor
    masters: Masters
    controls: Controls
    emit: Emit
    sync: Callable[[], None]
    """Makes the journal durable."""
    backend: Backend = REAL
    deadline: Deadline = field(default_factory=Deadline)


@dataclass(frozen=True)
class Granted:
    """GPUs that no run holds, and the CPU, for texts outside a run; who leases them, and what takes events."""

    gpus: Sequence[Device]
    host: Device
    lessor: Lessor
    emit: Emit
    cpu_fallback: bool = True


@dataclass(frozen=True)
class LeasedFor:
    """What a lease is opened for, and the bytes that its widest batch is predicted to take on a device."""

    rows: int
    predicted: int
    batches: int = 0


def tell_granted(
    emit: Emit, lease: Lease, model_pass: int, work: LeasedFor, *, schedule: str = "exclusive", streamed: bool = False
) -> None:
    """Emit what a lease grants."""
    emit(
        LeaseGranted(
            lease=lease.id,
            model_pass=model_pass,
            model=lease.holder,
            devices=[device.name for device in lease.devices],
            device_kind=lease.devices[0].kind,
            budget_bytes=lease.budget,
            predicted_bytes=min(work.predicted, lease.budget),
            batches=work.batches,
            rows=work.rows,
            budgets=dict(lease.budgets),
            schedule=schedule,
            streamed=streamed,
        )
    )


def tell_released(emit: Emit, lease: Lease, model_pass: int) -> None:
    """Emit the receipts of a lease that has ended, and each residue that was found."""
    emit(
        LeaseReleased(
            lease=lease.id,
            model_pass=model_pass,
            model=lease.holder,
            held_seconds=round(lease.held_seconds, 3),
            receipts=lease.receipts,
        )
    )
    for found in lease.residues:
        emit(ResidueFound(**asdict(found)))
