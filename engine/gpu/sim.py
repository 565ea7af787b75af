"""GPUs that are not there: real computation on the host, charged to the allocator of the card that it stands for.

`sim:2xT4` proves logic (leases, memory law, ladder, recovery) and nothing about speed, nor that a model really fits
such a card. Memory runs out as it would there, with `torch.OutOfMemoryError`; the host's own never does.
"""

import gc
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from interlock.engine.errors import UsageError
from interlock.engine.gpu.allocator import Allocator
from interlock.engine.gpu.chip import Chip, ChipMeter
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.faults import DeviceFaults, Fault
from interlock.engine.record.facts import Memory, Readings
from interlock.engine.record.words import human_bytes, parse_bytes

CONTEXT = 300 << 20
"""Bytes that a process takes on a card before its first tensor."""
MOST_CARDS = 16
MOST_WAIT = 2.0
"""Seconds that `reclaim` waits for the driver to see what was given back."""


@dataclass(frozen=True)
class Card:
    """A make of GPU: all its memory as torch reports it, and what a process takes of that at once."""

    label: str
    total: int
    context: int = CONTEXT


CARDS = {
    "T4": Card("Tesla T4", 15095 << 20),
    "P100": Card("Tesla P100-PCIE-16GB", 16276 << 20),
    "L4": Card("NVIDIA L4", 22563 << 20),
    "A100": Card("NVIDIA A100-SXM4-40GB", 40326 << 20),
    "H100": Card("NVIDIA H100 80GB HBM3", 81004 << 20),
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
    """One card. With `narrow`, float32 counts half: the card would hold in float16 what the host has in float32."""

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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.name = name
        self.key = key
        self.label = f"{card.label} (simulated)"
        self.total = card.total
        self.torch = torch.device("cpu")
        index = int(name.rpartition(":")[2])
        self._chip = Chip(index, card.total, card.context, DeviceFaults(faults, name), clock)
        self._meter = ChipMeter(self._chip, narrow=narrow)
        self._clock, self._sleep = clock, sleep
        self.lasting = type(self).lasting and not self._chip.faulty

    @property
    def lost(self) -> bool:
        """Whether it is gone for good: computing on it raises, and its figures are the last ones."""
        return self._chip.lost

    @property
    def allocations(self) -> int:
        """How many were tried so far: the number that faults count by."""
        return self._chip.allocations

    @property
    def canaries(self) -> int:
        """How many were begun so far."""
        return self._chip.canaries

    @property
    def allocator(self) -> Allocator:
        """The card's memory, for those who want to look closer."""
        return self._chip.allocator

    def memory(self) -> Memory:
        return self._chip.memory()

    def room(self, ceiling: int) -> int:
        memory = self.memory()
        if self.lost:
            return 0
        fresh = min(ceiling - memory.occupied, self.allocator.driver_free)
        return max(0, fresh + memory.reserved - memory.allocated)

    def wall(self, ceiling: int | None) -> None:
        self.allocator.limit = ceiling

    @contextmanager
    def computing(self) -> Iterator[None]:
        self._chip.answer()
        with self._meter.within():
            yield

    @contextmanager
    def trying(self) -> Iterator[None]:
        self._chip.canaries += 1
        self._chip.trying = True
        try:
            yield
        finally:
            self._chip.trying = False

    def start_peak(self) -> None:
        self.allocator.start_peak()

    def peak(self) -> Memory:
        return self._chip.peak()

    def retries(self) -> int:
        return self.allocator.counters().retries

    def trim(self) -> None:
        self.allocator.empty_cache()

    def reclaim(self) -> None:
        gc.collect()
        self._chip.clear()
        until = self._clock() + MOST_WAIT
        while self.allocator.unseen and self._clock() < until:
            self._sleep(0.01)

    def readings(self) -> Readings | None:
        if self.lost:
            return None
        used = self.total - self.allocator.driver_free
        return Readings(used=used, total=self.total, others=self.allocator.others)


def _cards(part: str, text: str) -> list[Card]:
    match = re.fullmatch(r"(?:(\d+)x)?(\w+|\d+\.\d+\w+)", part)
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
