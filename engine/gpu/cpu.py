"""The host's processor as a device: its memory is the memory of this process."""

import ctypes
import gc
import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path

import psutil
import torch

from interlock.engine.gpu.device import Device
from interlock.engine.record.facts import Memory, Readings, Tenant
from interlock.engine.record.words import safe

CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where Linux says what a container may use and uses: control groups of version 2, and of version 1."""
MOST_HOLDERS = 3
"""Processes that are told."""


class CpuDevice(Device):
    """The host: `allocated` counts the weights of attached models that live, `occupied` this process's resident set."""

    name = "cpu"
    kind = "cpu"
    label = "host"
    key: str | None = None
    metered = False

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.total = int(psutil.virtual_memory().total)
        self._process = psutil.Process()
        self._allocated = 0
        self._peak_allocated = 0
        self._peak_sampled = 0

    def memory(self) -> Memory:
        occupied = int(self._process.memory_info().rss)
        self._peak_sampled = max(self._peak_sampled, occupied)
        return Memory(allocated=self._allocated, occupied=occupied)

    def room(self, ceiling: int) -> int:
        """Measure what the host has free, or the container that this process is in; a ceiling counts what a lease adds
        there, not what was there before."""
        return memory_free()

    def computing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def retries(self) -> int:
        return 0

    def readings(self) -> Readings | None:
        memory = psutil.virtual_memory()
        return Readings(used=int(memory.total - memory.available), total=int(memory.total))

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
        occupied = max(self.memory().occupied, self._peak_sampled)
        with suppress(OSError, StopIteration), Path("/proc/self/status").open() as handle:
            line = next(line for line in handle if line.startswith("VmHWM:"))  # in KiB
            occupied = max(occupied, int(line.split()[1]) << 10)
        return Memory(allocated=self._peak_allocated, occupied=occupied)

    def reclaim(self) -> None:
        if self._allocated:  # else no weights are left for anything to hold, and the search looks at every object
            gc.collect()
        self.trim()

    def trim(self) -> None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def memory_free() -> int:
    """Measure what the host has free, or the container that this process is in."""
    return min([int(psutil.virtual_memory().available), *_free_in_containers()])


@lru_cache(maxsize=1)
def memory_holders(_: int) -> tuple[Tenant, ...]:
    """Find the processes with most of the host's memory that this one may see, itself as `this run`; looked for anew
    for each number."""
    found = list[Tenant]()
    for each in psutil.process_iter(["name", "username", "memory_info"]):
        if size := each.info["memory_info"] and int(each.info["memory_info"].rss):
            name = "this run" if each.pid == os.getpid() else safe(each.info["name"] or "?")
            found.append(Tenant(each.pid, name, size, each.info["username"] or ""))
    return tuple(sorted(found, key=lambda one: -(one.bytes or 0))[:MOST_HOLDERS])


def _free_in_containers() -> Iterator[int]:
    """Bytes that this process's container may still take; nothing where it has no limit. What the kernel keeps of files
    counts as used there, though it gives it up when asked."""
    for place, limit, used, cached in CONTAINERS:
        with suppress(OSError, ValueError, StopIteration):  # "max" is no number
            bound, taken = (int((Path(place) / name).read_text()) for name in (limit, used))
            lines = (Path(place) / "memory.stat").read_text().splitlines()
            kept = next(int(line.split()[1]) for line in lines if line.split()[0] == cached)
            yield max(0, bound - taken + kept)
