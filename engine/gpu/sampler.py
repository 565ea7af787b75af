"""Looks at the devices of a run once a period, from a thread of its own, and reports what it sees.

It never disturbs the run: a device that cannot be looked at is left alone from then on, and when a report fails because
whoever takes them is gone, it stops.
"""

import threading
from collections.abc import Callable, Sequence

from interlock.engine.gpu.device import Device
from interlock.engine.record.facts import Memory, Readings

Report = Callable[[str, Memory, Readings | None], object]


class Sampler:
    """Samples devices while its block runs: `with Sampler(devices, report): ...`.

    `report(name, memory, readings)` is called for each device, at once and then once a `period` in seconds.
    """

    def __init__(self, devices: Sequence[Device], report: Report, period: float = 1.0) -> None:
        self._devices = list(devices)
        self._report = report
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
            memory, readings = device.memory(), device.readings()
        except Exception:  # whatever a driver does must not end the run
            self._devices.remove(device)
            return
        try:
            if not self._ended.is_set():
                self._report(device.name, memory, readings)
        except Exception:  # whoever listened is gone
            self._ended.set()
