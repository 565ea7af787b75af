"""What the NVIDIA driver says of a GPU and of the processes on it; where no driver is, nothing, and silently.

A GPU is named by its UUID (`GPU-...`), which no CUDA_VISIBLE_DEVICES reorders. A figure that the driver does not tell
is None, whatever the reason: not supported, not permitted, the GPU lost.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import TypeVar

import psutil

from interlock.engine.record.facts import Readings, Tenant

Value = TypeVar("Value")


THROTTLES = {0x04: "power cap", 0x08: "hardware", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""The bits of what slows a clock down (`nvmlClocksEventReason...`): without those that say that a GPU is idle, or that
somebody set its clock."""
MOST_HOLDERS = 4
"""Other processes that a reading names."""


@cache
def open_nvml() -> "Nvml | None":
    """Open the driver's own account of its GPUs, once a process; None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml)


class Nvml:
    """The driver's figures. Nothing here raises."""

    def __init__(self, library: ModuleType) -> None:
        """`library` is the module `pynvml`, initialised."""
        self._library = library

    def driver(self) -> str | None:
        """Ask for the version of the driver."""
        return self._asked(self._library.nvmlSystemGetDriverVersion)

    def cuda(self) -> str | None:
        """Ask for the newest CUDA that the driver runs: `12.4`."""
        number = self._asked(self._library.nvmlSystemGetCudaDriverVersion)
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def names(self) -> list[str]:
        """List the makes of all GPUs of the machine, hidden ones too."""
        count = self._asked(self._library.nvmlDeviceGetCount) or 0
        handles = [self._asked(self._library.nvmlDeviceGetHandleByIndex, number) for number in range(count)]
        return [self._asked(self._library.nvmlDeviceGetName, handle) or "unknown" for handle in handles]

    def readings(self, uuid: str) -> Readings | None:
        """Read the figures of a GPU now; None where not even its memory is known."""
        handle = self._handle(uuid)
        memory = self._asked(self._library.nvmlDeviceGetMemoryInfo, handle)
        if memory is None:
            return None
        load = self._asked(self._library.nvmlDeviceGetUtilizationRates, handle)
        milliwatts = self._asked(self._library.nvmlDeviceGetPowerUsage, handle)
        limit = self._asked(self._library.nvmlDeviceGetEnforcedPowerLimit, handle)
        slowed = self._asked(self._library.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
        others = self.others(uuid)
        told = sorted(others or [], key=lambda one: -(one.bytes or 0))
        return Readings(
            used=int(memory.used),
            total=int(memory.total),
            others=_sum(others),
            utilisation=None if load is None else int(load.gpu),
            temperature=self._asked(self._library.nvmlDeviceGetTemperature, handle, 0),  # 0: the GPU's own sensor
            power=None if milliwatts is None else milliwatts / 1000,
            power_limit=None if limit is None else limit / 1000,
            throttled=", ".join(dict.fromkeys(why for bit, why in THROTTLES.items() if slowed & bit)),
            holders=tuple(told[:MOST_HOLDERS]),
        )

    def processes(self, uuid: str) -> list[Tenant] | None:
        """List every process that computes on a GPU, this one too; None where the driver does not say."""
        running = self._asked(self._library.nvmlDeviceGetComputeRunningProcesses, self._handle(uuid))
        name = self._library.nvmlSystemGetProcessName
        return running and [
            Tenant(one.pid, str(self._asked(name, one.pid) or "").rpartition("/")[2], one.usedGpuMemory, _user(one.pid))
            for one in running
        ]

    def others(self, uuid: str) -> list[Tenant] | None:
        """List them as `processes` does, without this one."""
        processes = self.processes(uuid)
        return None if processes is None else [process for process in processes if process.pid != os.getpid()]

    def own(self, uuid: str) -> int | None:
        """Return this process's bytes on a GPU; None where the driver does not say, or knows it by another number."""
        running = self._asked(self._library.nvmlDeviceGetComputeRunningProcesses, self._handle(uuid)) or []
        return next((one.usedGpuMemory for one in running if one.pid == os.getpid()), None)

    def _handle(self, uuid: str) -> object:
        return self._asked(self._library.nvmlDeviceGetHandleByUUID, uuid)

    def _asked(self, ask: Callable[..., Value], *about: object) -> Value | None:
        """What the driver answers; None where it does not, or where what is asked about is itself unknown."""
        if None in about:
            return None
        library = self._library
        with suppress(library.NVMLError, library.NVMLLibraryMismatchError, UnicodeError):
            return ask(*about)
        return None


def _sum(processes: list[Tenant] | None) -> int | None:
    """Bytes of all of them; None unless every one is known."""
    if processes is None:
        return None
    sizes = [process.bytes for process in processes if process.bytes is not None]
    return sum(sizes) if len(sizes) == len(processes) else None


def _user(pid: int) -> str:
    """Whose process that is, where this machine tells."""
    with suppress(psutil.Error, KeyError):
        return str(psutil.Process(pid).username())
    return ""
