"""The lease: the right of one model to devices, with a byte budget on each, ending in a measured receipt.

A model is alone on its devices unless its lease is a shared one; budgets of shared leases fit side by side. A lease is
granted only if what the model is predicted to need fits under the ceiling and in what the device has free. It ends on
every way out, exceptions included; what is left behind is looked for, recorded, and missing in the next budget.
"""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from interlock.engine.errors import InterlockError, UnavailableError
from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.record import words
from interlock.engine.record.facts import Memory, Receipt, Residue

RESIDUE_ALARM = 1 << 20
HOST_RESERVE = 512 << 20
"""Bytes of the host that are left to everything else where no ceiling limits what a model may have there."""


@contextmanager
def imports_left_alone() -> Iterator[None]:
    """Spare what is there before the block: every lease ends with a collection of garbage, which would walk it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass
class Lease:
    """What a holder may use: devices, and on each at most so many bytes."""

    id: str
    holder: str
    devices: Sequence[Device]
    budgets: Mapping[str, int]
    shared: bool = False
    receipts: list[Receipt] = field(default_factory=list)
    residues: list[Residue] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    """Devices that were lost under it, with what they said."""
    held_seconds: float = 0.0
    peaks: dict[str, Memory] = field(default_factory=dict)
    _models: list["weakref.ref[object]"] = field(default_factory=list)

    @property
    def budget(self) -> int:
        """The smallest of its budgets."""
        return min(self.budgets.values())

    def watch(self, model: object) -> None:
        """Look for who still holds `model` if something is left behind."""
        self._models.append(weakref.ref(model))

    def holders(self) -> str:
        """Name who refers to models that should be gone; empty when nobody does."""
        alive = [model for ref in self._models if (model := ref()) is not None]
        kinds = {type(holder).__name__ for model in alive for holder in gc.get_referrers(model) if holder is not alive}
        if alive and not kinds:  # since Python 3.12 a frame that runs does not show its locals to the collector
            kinds = {"a local variable"}
        return ", ".join(sorted(kinds))

    def overruns(self) -> list[str]:
        """Describe each peak over its budget; a shared lease cannot tell whose a peak was."""
        overruns = []
        for receipt in self.receipts:
            grown = receipt.peak.occupied - receipt.before.occupied
            budget = self.budgets[receipt.device]
            if grown > budget and not self.shared:
                over = "used {} of a {} budget".format(*words.distinct_sizes(grown, budget))
                overruns.append(f"{self.holder} {over} on {receipt.device}")
        return overruns


@dataclass
class Measure:
    """What one forward took: `activations` are bytes beside what was allocated before it; None where not to be had."""

    activations: int | None = None
    retries: int = 0


class Lessor:
    """Grants leases on a set of devices."""

    def __init__(
        self,
        devices: Sequence[Device],
        ceiling: int,
        host_ceiling: int = 0,
        margin: int = RESERVE,
        *,
        granted: int = 0,
        whose: str = "",
    ) -> None:
        """`ceiling` is the most memory in bytes that the run may occupy on one device, `host_ceiling` on the host: 0 is
        all that is free but a reserve, or `ceiling` where there is no GPU; `margin` bytes of each are promised to no
        lease. Ids begin with `whose` and go on from `granted`."""
        self.devices = devices
        self.ceiling, self.margin = ceiling, margin
        self._host_ceiling = host_ceiling or (0 if any(device.kind != "cpu" for device in devices) else ceiling)
        self._host_flag = "--host-ceiling" if host_ceiling else "--ceiling" if self._host_ceiling else ""
        self._by_name = {device.name: device for device in devices}
        self._open: list[Lease] = []
        self._lock = threading.RLock()
        self._forward_locks = {device.name: threading.RLock() for device in devices}
        self._granted = granted
        self._whose = whose

    @contextmanager
    def lease(
        self,
        holder: str,
        needs: Mapping[str, int],
        released: Callable[[Lease], object],
        *,
        shared: bool = False,
        limits: Mapping[str, int] | None = None,
    ) -> Iterator[Lease]:
        """Hold the devices that `needs` names, each with the bytes that it must have at least; `limits` caps budgets.

        `released` gets the lease with its receipts when it has ended. Raises UnavailableError where the bytes do not
        fit, InterlockError where another model holds a device.
        """
        lease = self._grant(holder, needs, shared, limits or {})
        try:
            for device in lease.devices:
                device.trim()  # what others left cached is neither this model's nor hidden from its receipt
                device.wall(self.ceiling_on(device))
                device.start_peak()
            before = [device.memory() for device in lease.devices]
            retries = [device.retries() for device in lease.devices]
            began = time.monotonic()
            try:
                yield lease
            finally:
                self._mark()
                for device in lease.devices:
                    if device.name not in lease.lost:
                        device.reclaim()
                lease.held_seconds = time.monotonic() - began
                lease.receipts = [self._receipt(lease, *at) for at in zip(lease.devices, before, retries, strict=True)]
                released(lease)
        finally:
            self._open.remove(lease)

    def lose(self, device: Device, reason: str) -> None:
        """Mark this device as lost in every open lease, whose receipts cannot measure it any more."""
        with self._lock:
            for lease in self._open:
                if device.name in lease.budgets:
                    lease.lost.setdefault(device.name, reason)

    def ceiling_on(self, device: Device) -> int:
        """Return the most bytes that the run may occupy on a device."""
        if device.kind != "cpu":
            return self.ceiling
        return self._host_ceiling or device.total

    def flag_on(self, device: Device) -> str:
        """Name the setting of that ceiling; empty where only what is free counts."""
        return self._host_flag if device.kind == "cpu" else "--ceiling"

    def budget(self, device: Device) -> int:
        """Measure the bytes that a lease may have on a device now."""
        ceiling = self.ceiling_on(device)
        return min(
            ceiling, device.room(ceiling) - (self.margin if self.flag_on(device) else max(self.margin, HOST_RESERVE))
        )

    def check(self, holder: str, predicted: int, device: Device) -> int:
        """Return the bytes that `holder` would get now. Raises UnavailableError when `predicted` bytes do not fit."""
        budget = self.budget(device)
        if predicted > budget:
            device.next_need = predicted, 0
            needs, free = words.distinct_sizes(predicted, max(0, budget))
            or_raise = f" or raise {flag}" if (flag := self.flag_on(device)) else ""
            raise UnavailableError(f"{holder} needs {needs}, {free} available on {device.name}: free memory{or_raise}")
        return budget

    @contextmanager
    def measuring(self, device: Device) -> Iterator[Measure]:
        """Keep other forwards off the device while the block runs one, and measure the peak where the device can.

        The measure is complete when the block has ended without an exception.
        """
        with self._forward_locks[device.name]:
            measure = Measure()
            if not device.metered:
                yield measure
                return
            self._mark(device)
            device.start_peak()
            before, retries = device.memory().allocated, device.retries()
            yield measure
            measure.activations = device.peak().allocated - before
            measure.retries = device.retries() - retries

    def _grant(self, holder: str, needs: Mapping[str, int], shared: bool, limits: Mapping[str, int]) -> Lease:
        devices = [self._by_name[name] for name in needs]
        with self._lock:
            for device in devices:
                for lease in self._open:
                    if device.name in lease.budgets and not (shared and lease.shared):
                        other = lease.holder
                        raise InterlockError(f"{holder} cannot lease {device.name}: {other} holds it")
            self._mark(*devices)
            budgets = {device.name: self.check(holder, needs[device.name], device) for device in devices}
            budgets = {name: min(budget, limits.get(name, budget)) for name, budget in budgets.items()}
            self._granted += 1
            lease = Lease(f"{self._whose}L{self._granted:03d}", holder, devices, budgets, shared)
            self._open.append(lease)
            return lease

    def _mark(self, *devices: Device) -> None:
        """Keep the peaks measured so far: the counters are about to begin anew."""
        with self._lock:
            for device in devices or self.devices:
                holders = [lease for lease in self._open if device.name in lease.budgets]
                if holders:
                    peak = device.peak()
                    for lease in holders:
                        before = lease.peaks.get(device.name, peak)
                        lease.peaks[device.name] = Memory(
                            allocated=max(before.allocated, peak.allocated),
                            occupied=max(before.occupied, peak.occupied),
                            reserved=max(before.reserved, peak.reserved),
                        )

    def _receipt(self, lease: Lease, device: Device, before: Memory, retries: int) -> Receipt:
        lost = device.name in lease.lost
        after = device.memory()
        left = after.allocated - before.allocated
        if left > RESIDUE_ALARM and not lost:
            after = self._escalate(lease, device, before, left)
        return Receipt(
            device=device.name,
            before=before,
            peak=lease.peaks.get(device.name, after),
            after=after,
            residue_bytes=0 if lost else max(0, after.allocated - before.allocated),
            retries=device.retries() - retries,
            lost=lost,
        )

    def _escalate(self, lease: Lease, device: Device, before: Memory, left: int) -> Memory:
        """Look again for what stayed, and say who holds it."""
        who = lease.holders()
        device.reclaim()
        after = device.memory()
        action = f"still referenced by {who}" if who else "no reference to its weights left"
        kept = after.allocated - before.allocated
        lease.residues.append(Residue(lease=lease.id, device=device.name, bytes=left, action=action, left_bytes=kept))
        return after


class TooSmall(NamedTuple):
    """Why a model fits on no GPU, and what to do about it; `flags` of a session in which it fits, where any make it."""

    why: str
    remedy: str
    flags: tuple[str, ...] = ()


def too_small(whole: int, streamed: int, gpus: Sequence[Device], lessor: Lessor) -> TooSmall | None:
    """Say why a model that needs so many bytes, fewer where it is streamed (0: it cannot be), fits on none of the GPUs;
    None where one holds it, or there is none."""
    room = {gpu.name: lessor.budget(gpu) for gpu in gpus}
    healthy = [gpu for gpu in gpus if not gpu.lost]
    least = min(whole, streamed or whole)
    if not healthy or least <= max(room[gpu.name] for gpu in healthy):
        return None
    best = max(healthy, key=lambda gpu: room[gpu.name])
    sizes = whole, streamed, max(0, room[best.name]), lessor.ceiling, best.memory().occupied
    needs, less, free, ceiling, held = words.distinct_sizes(*sizes)
    capped = least <= best.room(best.total) - lessor.margin
    kept = f"{held} of context and {words.human_bytes(lessor.margin)} of margin"
    where = f"left of --ceiling {ceiling} after {kept}" if capped else f"free on {best.name}"
    why = f"fits on no GPU (needs {needs}{f' ({less} streamed)' * bool(streamed)}, {free} {where})"
    if not capped:
        return TooSmall(why, f"free memory on {best.name}")
    tenths = -(-10 * (lessor.ceiling + least - room[best.name]) >> 30)  # of a GiB, rounded up
    size = f"{tenths / 10:g}GiB"
    return TooSmall(why, f"raise --ceiling to {size} or more", ("--ceiling", size))
