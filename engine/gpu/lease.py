"""The lease: the exclusive right of one model to devices, with a byte budget, ending in a measured receipt.

One lease at a time holds a device. It is granted only if what the model is predicted to need fits under the
ceiling and in what the device has, and released on every way out, exceptions included.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.errors import InterlockError, UnavailableError
from engine.gpu.devices import Device
from engine.record import durable
from engine.record.events import Memory, Receipt

RESERVE = 64 << 20
RESIDUE_ALARM = 1 << 20


@dataclass
class Lease:
    """What a holder may use: devices, and on each at most `budget` bytes."""

    id: str
    holder: str
    devices: Sequence[Device]
    budget: int
    predicted: int
    receipts: list[Receipt] = field(default_factory=list)
    held_seconds: float = 0.0

    def hold(self, model: object, size: int) -> None:
        """Count a model of `size` bytes as attached, until nothing refers to it any more."""
        for device in self.devices:
            device.hold(model, size)

    def trim(self) -> None:
        """Give back what building the model left behind on the devices."""
        for device in self.devices:
            device.trim()

    def overruns(self) -> list[str]:
        """What the receipts show that should not be: a peak over the budget, or bytes left behind."""
        said = []
        for receipt in self.receipts:
            grown = receipt.peak.occupied - receipt.before.occupied
            if grown > self.budget:
                over = f"took {durable.human_bytes(grown)} of {durable.human_bytes(self.budget)} granted"
                said.append(f"{self.holder} {over} on {receipt.device}")
            if receipt.residue_bytes > RESIDUE_ALARM:
                left = durable.human_bytes(receipt.residue_bytes)
                said.append(f"{self.holder} left {left} behind on {receipt.device}")
        return said


class Lessor:
    """Grants leases on a set of devices, one holder at a time."""

    def __init__(self, devices: Sequence[Device], ceiling: int, granted: int = 0) -> None:
        """`ceiling` is the most memory in bytes that a lease may occupy on one device; ids go on from `granted`."""
        self.devices = devices
        self.ceiling = ceiling
        self._lock = threading.Lock()
        self._holder: str | None = None
        self._granted = granted

    @contextmanager
    def lease(self, holder: str, predicted: int, released: Callable[[Lease], object]) -> Iterator[Lease]:
        """Hold every device for `holder`; `released` gets the lease with its receipts when it has ended.

        Raises UnavailableError when `predicted` bytes do not fit, InterlockError when another model holds
        the devices.
        """
        lease = self._grant(holder, predicted)
        try:
            for device in self.devices:
                device.trim()  # what others left cached is neither this model's nor hidden from its receipt
                device.start_peak()
            before = [device.memory() for device in self.devices]
            began = time.monotonic()
            try:
                yield lease
            finally:
                peaks = [device.peak() for device in self.devices]
                for device in self.devices:
                    device.reclaim()
                lease.held_seconds = time.monotonic() - began
                lease.receipts = [_receipt(*measured) for measured in zip(self.devices, before, peaks, strict=True)]
                released(lease)
        finally:
            self._holder = None

    def budget(self) -> int:
        """Bytes that a lease may have on each device now."""
        return min(self.ceiling, *(device.available() - RESERVE for device in self.devices))

    def check(self, holder: str, predicted: int) -> int:
        """The budget that `holder` would get now. Raises UnavailableError when `predicted` bytes do not fit."""
        budget = self.budget()
        if predicted > budget:
            raise UnavailableError(
                f"{holder} needs {durable.human_bytes(predicted)} and may have {durable.human_bytes(budget)}: "
                "raise --ceiling, free memory, or leave it out of --roster"
            )
        return budget

    def _grant(self, holder: str, predicted: int) -> Lease:
        budget = self.check(holder, predicted)
        with self._lock:
            if self._holder:
                raise InterlockError(f"{holder} cannot have the devices: {self._holder} holds them")
            self._holder = holder
            self._granted += 1
        return Lease(f"L{self._granted:03d}", holder, self.devices, budget, predicted)


def _receipt(device: Device, before: Memory, peak: Memory) -> Receipt:
    after = device.memory()
    residue = after.allocated - before.allocated
    return Receipt(device=device.name, before=before, peak=peak, after=after, residue_bytes=residue)
