"""Looks at the devices of a run once a period, from a thread of its own, and tells what it sees.

It never disturbs the run: a device that cannot be looked at is left alone from then on, and when telling fails because
whoever listened is gone, it stops.
"""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from interlock.engine.gpu.cpu import memory_free, memory_holders
from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.record.events import DeviceSampled, DiskLow, Emit, MemoryLow, MemoryTaken
from interlock.engine.record.facts import LEAST_DISK, LEAST_MEMORY, NOTICED, Memory, Readings

EASED = 1.1
"""So many times what is needed must be free before a shortage is over, lest it come and go."""
ANEW = 10.0
"""Seconds after which is looked anew for who has the host's memory: all processes are asked."""


class Sampler:
    """Emits a `DeviceSampled` of each device, at once and then once a `period` in seconds, while its block runs; the
    first of them tells what is free of the host's memory and of the disk that `place` is on, if one is given."""

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
        self._low: set[str] = set()
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
                free = memory_free()
                seen = replace(sample.readings, memory_free=free)
                if free < LEAST_MEMORY:
                    seen = replace(seen, memory_holders=memory_holders(int(time.monotonic() / ANEW)))
                with suppress(OSError):
                    seen = replace(seen, disk_free=shutil.disk_usage(self._place).free)
                sample = replace(sample, readings=seen)
        except Exception:  # whatever a driver does must not end the run
            self._devices.remove(device)
            return
        try:
            if not self._ended.is_set():
                self._emit(sample)
                if told := self._change(device, sample):
                    self._emit(told)
                for short in self._shortages(sample.readings) if sample.readings else ():
                    self._emit(short)
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

    def _shortages(self, readings: Readings) -> Iterator[DiskLow | MemoryLow]:
        """What is to be told where disk or memory fell below what should be free, or is well again."""
        disk, memory = readings.disk_free, readings.memory_free
        if disk is not None and self._turned("disk", disk, LEAST_DISK):
            yield DiskLow(place=str(self._place), free_bytes=disk, over="disk" not in self._low)
        if memory is not None and self._turned("memory", memory, LEAST_MEMORY):
            over = "memory" not in self._low
            yield MemoryLow(free_bytes=memory, holders=readings.memory_holders, over=over)

    def _turned(self, what: str, free: int, least: int) -> bool:
        """Note whether there is too little of it; tell whether that is new."""
        low = free < least * (EASED if what in self._low else 1)
        turned = low is not (what in self._low)
        self._low ^= {what} if turned else set()
        return turned


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
