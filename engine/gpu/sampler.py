"""Looks at the devices of a run once a period, from a thread of its own, and tells what it sees.

It never disturbs the run: a device that cannot be looked at is left alone from then on, and when telling fails because
whoever listened is gone, it stops.
"""

import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.record.events import DeviceSampled, DiskLow, Emit, MemoryTaken
from interlock.engine.record.facts import LEAST_DISK, NOTICED, Memory, Readings

EASED = 1.1
"""So many times what is needed must be free before a shortage is over, lest it come and go."""


class Sampler:
    """Emits a `DeviceSampled` of each device, at once and then once a `period` in seconds, while its block runs; the
    first of them tells what is free of the disk that `place` is on."""

    def __init__(
        self,
        devices: Sequence[Device],
        emit: Emit,
        period: float = 1.0,
        place: Path | None = None,
        margin: int = RESERVE,
    ) -> None:
        self._devices = list(devices)
        self._emit = emit
        self._period = period
        self._place = place
        self._margin = margin
        self._taken: set[str] = set()
        self._disk_low = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while self._devices and not self._ended.is_set():
            for device in list(self._devices):
                self._look_at(device)
            self._ended.wait(self._period)

    def _look_at(self, device: Device) -> None:
        try:
            sample = DeviceSampled(device=device.name, memory=device.memory(), readings=device.readings())
            if self._place and sample.readings and device is self._devices[0]:
                with suppress(OSError):
                    free = shutil.disk_usage(self._place).free
                    sample = replace(sample, readings=replace(sample.readings, disk_free=free))
        except Exception:  # whatever a driver does must not end the run
            self._devices.remove(device)
            return
        try:
            if not self._ended.is_set():
                self._emit(sample)
                if told := self._change(device, sample):
                    self._emit(told)
                if disk := self._disk(sample.readings):
                    self._emit(disk)
        except Exception:  # whoever listened is gone
            self._ended.set()

    def _change(self, device: Device, sample: DeviceSampled) -> MemoryTaken | None:
        """What is to be told where others took what the next batch needs, or gave it back."""
        if not device.metered or device.lost or not sample.readings:
            return None
        before = device.name in self._taken
        found = squeeze(device, sample.memory, sample.readings, self._margin, ends=before)
        if found.over is not before:
            return None
        self._taken ^= {device.name}
        return found

    def _disk(self, readings: Readings | None) -> DiskLow | None:
        """What is to be told where the disk fell below what it should have free, or is well again."""
        free = readings.disk_free if readings else None
        if free is None or (free < LEAST_DISK * (EASED if self._disk_low else 1)) is self._disk_low:
            return None
        self._disk_low = not self._disk_low
        return DiskLow(place=str(self._place), free_bytes=free, over=not self._disk_low)


def squeeze(device: Device, memory: Memory, readings: Readings, margin: int, *, ends: bool = False) -> MemoryTaken:
    """Compare what the next batch needs, and the margin, with what others leave it; `over` where that is enough, and
    where it `ends` also enough to last."""
    needed, weights = device.next_need
    others = readings.others_beside(memory.occupied)
    free = max(0, readings.total - readings.used + memory.reserved - weights)
    short = needed and others >= NOTICED and free < (needed + margin) * (EASED if ends else 1)
    return MemoryTaken(
        device=device.name,
        others_bytes=others,
        free_bytes=free,
        needed_bytes=needed + margin,
        holders=readings.holders,
        over=not short,
    )
