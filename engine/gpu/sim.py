"""GPUs that are not there: real computation on the host, counted against the memory of the card that it stands for.

`sim:2xT4` proves logic (leases, memory law, ladder, recovery) and nothing about speed, nor that a model really fits
such a card: a counter knows no fragments and no workspaces. It runs out with `torch.OutOfMemoryError`; what goes wrong
beside that, `faults` says.
"""

import gc
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interlock.engine.errors import UsageError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.faults import DeviceFaults, Fault
from interlock.engine.gpu.meter import ROUND, Meter
from interlock.engine.record.facts import Memory, Readings, Tenant
from interlock.engine.record.words import human_bytes, parse_bytes

CONTEXT = 300 << 20
"""Bytes that a process takes on a card before its first tensor."""
MOST_CARDS = 16
MOST_WAIT = 2.0
"""Seconds that `reclaim` waits for the driver to see what was given back."""
SKEW = 1.5
"""What every second number that a device makes wrongly is multiplied with."""
_LOST = """CUDA error: {}
Search for `{}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for \
more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""
_LOSSES = {
    "lose": _LOST.format("unspecified launch failure", "cudaErrorLaunchFailure"),
    "assert": _LOST.format("device-side assert triggered", "cudaErrorAssert"),
}
_REFUSALS = {
    "cublas": "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
    "nvml": "NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
    '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131, please report a bug to PyTorch. ',
}
"""What torch says where memory is short, beside its own words."""


@dataclass(frozen=True)
class Card:
    """A make of GPU: all its memory as torch reports it, what a process takes of that at once, and its
    multiprocessors (0: unknown)."""

    label: str
    total: int
    context: int = CONTEXT
    processors: int = 0


CARDS = {
    "T4": Card("Tesla T4", 15095 << 20, processors=40),
    "P100": Card("Tesla P100-PCIE-16GB", 16276 << 20, processors=56),
    "L4": Card("NVIDIA L4", 22563 << 20, processors=58),
    "A100": Card("NVIDIA A100-SXM4-40GB", 40326 << 20, processors=108),
    "H100": Card("NVIDIA H100 80GB HBM3", 81004 << 20, processors=132),
}


def simulated(
    text: str, faults: Sequence[Fault] = (), make: "Callable[[str, Card, Sequence[Fault]], SimDevice] | None" = None
) -> "list[SimDevice]":
    """Make the devices that `sim:2xT4`, `sim:1xT4+1xL4` or `sim:2x16GiB` names: `cuda:0` and up, of the class `make`.

    Raises UsageError for anything else, and for a fault of a device that is not among them.
    """
    if not text.startswith("sim:"):
        raise _unknown(text)
    cards = [card for part in text.removeprefix("sim:").split("+") for card in _cards(part.strip(), text)]
    names = [f"cuda:{number}" for number in range(len(cards))]
    for fault in faults:
        if fault.device not in (None, *names):
            raise UsageError(f"the fault is for {fault.device}, but {text} has only {', '.join(names)}")
    return [(make or SimDevice)(name, card, faults) for name, card in zip(names, cards, strict=True)]


class SimDevice(Device):
    """One card: `charge` counts what computing takes, `free` what is dropped; what is free stays reserved until `trim`.

    With `narrow`, float32 counts half: the card would hold in float16 what the host has in float32.
    """

    kind = "sim"
    metered = True

    def __init__(
        self,
        name: str,
        card: Card,
        faults: Sequence[Fault] = (),
        *,
        narrow: bool = True,
        key: str | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.name = name
        self.key = key
        self.label = f"{card.label} (simulated)"
        self.total, self.processors = card.total, card.processors
        self.torch = torch.device("cpu")
        self.others = 0
        """Bytes that other processes hold."""
        self.allocations = self.canaries = 0
        """How many were tried, the number that faults count by; how many were begun."""
        self.ooms = 0
        """How often memory fell short."""
        self._context, self._limit = card.context, card.total
        self._faults = DeviceFaults(faults, name)
        self.lasting = type(self).lasting and not self._faults.any
        self._allocated = self._reserved = self._peak_allocated = self._peak_reserved = self._leaked = 0
        self._trying = False
        self._loss = ""
        self._lock = threading.RLock()  # a collection of garbage may free a tensor of the thread that holds it
        self._meter = _SimMeter(self, narrow=narrow)
        self._sleep = sleep

    @property
    def lost(self) -> bool:
        """Whether it is gone for good: computing on it raises, and its figures are the last ones."""
        return bool(self._loss)

    def answer(self) -> None:
        """Raise as CUDA does on every call once the device is lost."""
        if self._loss:
            raise getattr(torch, "AcceleratorError", RuntimeError)(self._loss)  # older versions have none

    def charge(self, tensor: Tensor, size: int) -> int:
        with self._lock:
            self.answer()
            if self._trying:  # the allocations of a canary are not counted
                taken = self._take(size)
            else:
                self.allocations += 1
                self._strike(size)
                taken = self._take(size)
                if self._faults.spoils(self.allocations) and tensor.is_floating_point():
                    tensor.fill_(math.nan)
        if self._skewed and tensor.is_floating_point() and tensor.dim():
            tensor[..., ::2].mul_(SKEW)
        return taken

    def free(self, taken: int) -> None:
        """Give back what `charge` took, from any thread and in the middle of anything."""
        with self._lock:
            if not self._loss:
                self._allocated -= taken

    def memory(self) -> Memory:
        return self._told(self._allocated, self._reserved)

    def room(self, ceiling: int) -> int:
        if self.lost:
            return 0
        with self._lock:
            fresh = min(ceiling - self._context - self._reserved, self._free())
            return max(0, fresh + self._reserved - self._allocated)

    def wall(self, ceiling: int | None) -> None:
        self._limit = self.total if ceiling is None else ceiling

    @contextmanager
    def computing(self) -> Iterator[None]:
        self.answer()
        with self._meter.within():
            yield

    @contextmanager
    def trying(self) -> Iterator[None]:
        self.canaries += 1
        self._trying = True
        try:
            yield
        finally:
            self._trying = False

    def start_peak(self) -> None:
        if not self.lost:
            self._peak_allocated, self._peak_reserved = self._allocated, self._reserved

    def peak(self) -> Memory:
        return self._told(self._peak_allocated, self._peak_reserved)

    def retries(self) -> int:
        return self.ooms

    def trim(self) -> None:
        with self._lock:
            if not self.lost:
                self._reserved = self._wanted(self._allocated)

    def reclaim(self) -> None:
        gc.collect()
        with self._lock:
            if self.allocations and not (self.lost or self._leaked):  # a leak begins here
                self._leaked = self._faults.leaked
                self._allocated += self._leaked
        self.trim()
        if self._faults.lag:
            self._sleep(min(self._faults.lag, MOST_WAIT))

    def readings(self) -> Readings | None:
        if self.lost:
            return None
        return Readings(used=self.total - self._free(), total=self.total, others=self.others, holders=self._holders())

    def _holders(self) -> tuple[Tenant, ...]:
        return self._faults.holders(self.allocations, self.others) if self.others else ()

    @property
    def _skewed(self) -> bool:
        """Whether it computes wrongly now."""
        return self._trying and self._faults.skews(self.canaries)

    def _strike(self, size: int) -> None:
        """Do what the faults of this allocation say."""
        if loss := self._faults.loses(self.allocations):
            self._loss = _LOSSES[loss]
            self.answer()
        if self._faults.crowded:  # other processes get what they want only of what is free
            self.others = min(self._faults.others(self.allocations), self.others + self._free())
        if words := self._faults.short(self.allocations, size):
            raise RuntimeError(_REFUSALS[words]) if words in _REFUSALS else self._short_of(size)

    def _take(self, size: int) -> int:
        taken = -(-size // ROUND) * ROUND
        wanted = self._wanted(self._allocated + taken)
        if wanted > self._reserved:
            if self._context + wanted > min(self._limit, self.total - self.others):
                raise self._short_of(size)
            self._reserved = wanted
        self._allocated += taken
        self._peak_allocated = max(self._peak_allocated, self._allocated)
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return taken

    def _wanted(self, allocated: int) -> int:
        """What is reserved for so many bytes; of fragments no use is made."""
        return allocated + (self._faults.scattered if allocated else 0)

    def _free(self) -> int:
        """What the driver has for every process."""
        return max(0, self.total - self._context - self._reserved - self.others)

    def _told(self, allocated: int, reserved: int) -> Memory:
        return Memory(allocated=allocated, reserved=reserved, occupied=self._context + reserved)

    def _short_of(self, size: int) -> torch.OutOfMemoryError:
        self.ooms += 1
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {human_bytes(size)}. {self.name} has a total capacity of "
            f"{human_bytes(self.total)} of which {human_bytes(self._free())} is free; "
            f"{human_bytes(self._limit)} allowed, {human_bytes(self._context + self._reserved)} in use."
        )


class _SimMeter(Meter):  # type: ignore[no-untyped-call]
    """Charges a device with what a thread computes, and fails every operation once it is lost."""

    def __init__(self, device: SimDevice, *, narrow: bool) -> None:
        super().__init__(device, narrow=narrow)
        self._device = device

    @contextmanager
    def within(self) -> Iterator[None]:
        """Charge what this thread computes in the block to the device, and to none around it."""
        around = getattr(_here, "device", None)
        if around is self._device:
            yield
            return
        _here.device = self._device
        try:
            with self:
                yield
        finally:
            _here.device = around

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if _here.device is not self._device:
            return func(*args, **(kwargs or {}))
        self._device.answer()
        return super().__torch_dispatch__(func, types, args, kwargs)


_here = threading.local()


def _cards(part: str, text: str) -> list[Card]:
    match = re.fullmatch(r"(?:(\d+)x)?(\w+|\d+\.\d+\w+)", part, re.ASCII)
    if not match or not 1 <= (count := int(match[1] or 1)) <= MOST_CARDS:
        raise _unknown(text)
    if card := CARDS.get(match[2].upper()):
        return [card] * count
    try:
        size = parse_bytes(match[2])
    except ValueError:
        raise _unknown(text) from None
    if size <= 2 * CONTEXT:
        raise UsageError(f"{text!r}: a simulated GPU needs more than {human_bytes(2 * CONTEXT)}")
    return [Card(f"GPU of {human_bytes(size)}", size)] * count


def _unknown(text: str) -> UsageError:
    table = ", ".join(f"{name} ({human_bytes(card.total)})" for name, card in CARDS.items())
    return UsageError(
        f"unknown simulated devices {text!r}: use sim:2xT4, sim:1xT4+1xL4 or sim:2x16GiB; available: {table}"
    )
