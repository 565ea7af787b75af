"""A device that models are leased: what it holds, what it has, and how it gives cached memory back.

`Device` is what a lease needs to know. Here the one device is the host's processor, whose memory is the
memory of this process.
"""

import ctypes
import gc
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil
import torch

from engine.errors import UnavailableError
from engine.record.events import Memory


class Device(Protocol):
    """Something that holds one model at a time."""

    name: str
    kind: str

    def memory(self) -> Memory:
        """What it holds now, in bytes."""

    def available(self) -> int:
        """Bytes that a new lease may count on."""

    def hold(self, model: object, size: int) -> None:
        """Count `size` bytes as allocated here for as long as `model` lives."""

    def start_peak(self) -> None:
        """Begin a new measurement of the peak."""

    def peak(self) -> Memory:
        """The most it held since `start_peak`."""

    def trim(self) -> None:
        """Give back memory that is cached and free."""

    def reclaim(self) -> None:
        """Give back everything that is no longer used, after looking for it."""


class CpuDevice:
    """The host: `allocated` counts the weights of attached models that live, `occupied` this process's resident set."""

    name = "cpu"
    kind = "cpu"

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._allocated = 0
        self._peak_allocated = 0
        self._peak_sampled = 0

    def memory(self) -> Memory:
        occupied = int(self._process.memory_info().rss)
        self._peak_sampled = max(self._peak_sampled, occupied)
        return Memory(allocated=self._allocated, occupied=occupied)

    def available(self) -> int:
        return int(psutil.virtual_memory().available)

    def hold(self, model: object, size: int) -> None:
        self._allocated += size
        self._peak_allocated = max(self._peak_allocated, self._allocated)
        weakref.finalize(model, self._let_go, size)

    def _let_go(self, size: int) -> None:
        self._allocated -= size

    def start_peak(self) -> None:
        with suppress(OSError), Path("/proc/self/clear_refs").open("w") as handle:
            handle.write("5")  # resets VmHWM, the kernel's own peak of the resident set
        self._peak_allocated = self._allocated
        self._peak_sampled = 0

    def peak(self) -> Memory:
        occupied = max(self.memory().occupied, self._peak_sampled, _high_water())
        return Memory(allocated=self._peak_allocated, occupied=occupied)

    def reclaim(self) -> None:
        gc.collect()
        self.trim()

    def trim(self) -> None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _high_water() -> int:
    """The kernel's peak of this process's resident set in bytes; 0 where it does not tell."""
    with suppress(OSError, StopIteration), Path("/proc/self/status").open() as handle:
        line = next(line for line in handle if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10
    return 0


def choose(wanted: str) -> list[Device]:
    """The devices that `--devices` names: `auto` or `cpu`. Raises UnavailableError for what is not here."""
    if wanted in ("auto", "cpu"):
        return [CpuDevice()]
    raise UnavailableError(f"no device {wanted!r} here; this version runs on: auto, cpu")


def describe_host() -> dict[str, str]:
    """What the summary says of the machine; no names of hosts or people."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open() as handle:
        for line in handle:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"
