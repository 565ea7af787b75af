"""The cards of a scripted run: what leases have attached to them, what forwards take, and what a driver would say."""

from random import Random

from interlock.console import scripted_cast as cast
from interlock.console.scripted_cast import MIB, Part
from interlock.engine.record import events as ev

GRAIN = 2 * MIB
"""An allocator asks a driver for no less."""


class Card:
    """How a device stands: what leases have attached, what a forward takes, what its allocator keeps."""

    def __init__(self, facts: ev.DeviceFacts, random: Random) -> None:
        self.facts = facts
        self.name = facts.name
        self.lost = False
        self.busy = False
        self._foreign = 0
        self._retries = 0
        self._random = random
        self._weights: dict[str, int] = {}
        self._before: dict[str, ev.Memory] = {}
        self._active = self._cached = self._left = 0
        self._heat = 38.0

    def grant(self, lease: str) -> None:
        """A lease begins."""
        self._before[lease] = self.memory()

    def attach(self, lease: str, size: int) -> None:
        """Weights come to stay as long as the lease."""
        self._weights[lease] = size

    def release(self, lease: str, left: int) -> ev.Receipt:
        """Everything of a lease goes but for `left` bytes; what the allocator kept goes with the last of them."""
        before, peak, retries = self._before.pop(lease), self.memory(self._cached), self._retries
        self._weights.pop(lease, None)
        self._left += left
        self._active = self._retries = 0
        if not self._weights:
            self._cached = 0
        return ev.Receipt(
            device=self.name,
            before=before,
            peak=peak,
            after=self.memory(),
            residue_bytes=left,
            retries=retries,
            lost=self.lost,
        )

    def compute(self, size: int) -> None:
        """A forward takes `size` bytes; 0 ends it."""
        self._active, self.busy = size, size > 0
        self._cached = max(self._cached, size)

    def press(self, room: int) -> None:
        """Somebody else takes all but `room` bytes."""
        self._foreign = cast.CARD_BYTES - self.memory(0).occupied - room
        self._retries += 1

    def ease(self) -> None:
        """They have gone."""
        self._foreign = 0

    def memory(self, active: int | None = None) -> ev.Memory:
        """What it holds, with the present forward or `active` bytes of one."""
        held = self._left + sum(self._weights.values())
        reserved = -(-(held + self._cached) // GRAIN) * GRAIN
        allocated = held + (self._active if active is None else active)
        return ev.Memory(allocated=allocated, occupied=cast.CONTEXT + reserved, reserved=reserved)

    def sample(self) -> ev.DeviceSampled:
        """As the driver would tell of it now."""
        level = self._random.random()
        self._heat += ((76.0 if self.busy else 44.0) - self._heat) * 0.06
        memory = self.memory(round(self._active * (0.55 + 0.45 * level)))
        readings = ev.Readings(
            used=memory.occupied + self._foreign,
            total=self.facts.total_bytes,
            others=self._foreign,
            utilisation=round(88 + 12 * level) if self.busy else 0,
            temperature=round(self._heat),
            power=round(58 + 12 * level, 1) if self.busy else 28.5,
        )
        return ev.DeviceSampled(device=self.name, memory=memory, readings=readings)


def host_receipt(part: Part) -> ev.Receipt:
    """Of a lease on the CPU, where a model stands in float32."""
    rest = 1400 * MIB
    before = ev.Memory(allocated=rest, occupied=rest)
    peak = ev.Memory(allocated=rest + 2 * part.weights, occupied=rest + 2 * part.weights + 96 * MIB)
    return ev.Receipt(device=cast.HOST, before=before, peak=peak, after=before, residue_bytes=0)
