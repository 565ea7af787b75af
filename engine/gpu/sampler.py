"""Looks at the devices of a run once a period, from a thread of its own, and tells what it sees.

It never disturbs the run: a device that cannot be looked at is left alone from then on, and when telling fails because
whoever listened is gone, it stops.
"""

import threading
from collections.abc import Sequence

from interlock.engine.gpu.device import Device
from interlock.engine.record.events import DeviceSampled, Emit


class Sampler:
    """Emits a `DeviceSampled` of each device, at once and then once a `period` in seconds, while its block runs."""

    def __init__(self, devices: Sequence[Device], emit: Emit, period: float = 1.0) -> None:
        self._devices = list(devices)
        self._emit = emit
        self._period = period
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
        except Exception:  # whatever a driver does must not end the run
            self._devices.remove(device)
            return
        try:
            if not self._ended.is_set():
                self._emit(sample)
        except Exception:  # whoever listened is gone
            self._ended.set()
