"""What passes need of devices: the memory law of a model on a device, and the bytes that it cannot do without there.

What measured batches have taught about a law is kept here from one assignment of a pass to the next. No device is
leased or changed.
"""

from collections.abc import Callable, Sequence

from interlock.engine.compute.instance import first_calibration
from interlock.engine.compute.job import Layout
from interlock.engine.compute.schedule import Assignment, DeviceRoom, MemoryNeed
from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import Calibration, Law, law_for
from interlock.engine.record.words import distinct_sizes

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
        return card.on_host if beside else self._settled.get(card.key, card)

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


def too_small(need: MemoryNeed, gpus: Sequence[Device], lessor: Lessor) -> tuple[str, str] | None:
    """Say why a model fits on none of the GPUs, and what to do about it; None where one holds it, or there is none."""
    room = {gpu.name: lessor.budget(gpu) for gpu in gpus}
    healthy = [gpu for gpu in gpus if not gpu.lost]
    least = min(need.whole, need.streamed or need.whole)
    if not healthy or least <= max(room[gpu.name] for gpu in healthy):
        return None
    best = max(healthy, key=lambda gpu: room[gpu.name])
    sizes = need.whole, need.streamed, max(0, room[best.name]), lessor.ceiling, best.memory().occupied
    needs, less, free, ceiling, held = distinct_sizes(*sizes)
    streamed = f" ({less} streamed)" if need.streamed else ""
    capped = least <= best.room(best.total) - RESERVE
    where = f"under --ceiling {ceiling} after {held} of context" if capped else f"on {best.name}"
    why = f"fits on no GPU (needs {needs}{streamed}, {free} free {where})"
    return why, "raise --ceiling" if capped else f"free memory on {best.name}"
