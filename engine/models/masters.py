"""Host masters that outlive a lease: a model that comes back is attached at the speed of a copy.

What is kept stays within a budget of host memory; the primary (the first that was ever asked for) is the last to go.
The next model can be read while the present one computes.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import psutil
from torch import nn

from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.weights import Master, load

Hydrate = Callable[[ModelCard], Master]
Name = tuple[str, str, str]


def hydrated_for(device: Device, read: Callable[[ModelCard], nn.Module] = load) -> Hydrate:
    """Return a reader of masters whose copies to devices like this one run at full speed."""

    def hydrate(card: ModelCard) -> Master:
        master = Master(read(card))
        master.pin(device)
        return master

    return hydrate


class Masters:
    """The host masters of a run; used from the thread that grants leases."""

    def __init__(self, budget: int, hydrate: Hydrate) -> None:
        """Keep at most `budget` bytes between leases, and never more than half of what the host has free."""
        self._budget = budget
        self._hydrate = hydrate
        self._kept: dict[Name, Master] = {}  # in the order in which they were last used
        self._primary: Name | None = None
        self._reader = ThreadPoolExecutor(1, "prefetch")  # no daemon: torch aborts a process that ends while it reads
        self._ahead: dict[Name, tuple[Future[Master], int]] = {}
        """What is read ahead, and its bytes, about."""
        self._told = False

    def take(self, card: ModelCard) -> tuple[Master, bool]:
        """Return the master, and whether the host had it already. Raises UnavailableError when it does not load."""
        name = _name(card)
        self._primary = self._primary or name
        if master := self._kept.pop(name, None):
            return master, True
        if ahead := self._ahead.pop(name, None):
            with suppress(Exception):  # it is read again, in earnest, and says why then
                return ahead[0].result(), True
        return self._hydrate(card), False

    def news(self, card: ModelCard, master: Master) -> str:
        """Say why a master that was taken is copied slower than it could be, of the first of the run; empty after."""
        if self._told or not master.unpinned:
            return ""
        self._told = True
        return (
            f"the host's copy of {card.key} cannot be page-locked ({master.unpinned}): copies to a GPU take longer, "
            "vectors are the same; interlock doctor --gpu times both"
        )

    def give_back(self, card: ModelCard, master: Master) -> None:
        """Keep it for the next time if the budget allows, at the cost of those not used for longest."""
        self._kept[_name(card)] = master
        for name in sorted(self._kept, key=lambda name: name == self._primary):
            if self.bytes <= self._allowed():
                return
            del self._kept[name]

    def prefetch(self, card: ModelCard, size: int) -> None:
        """Begin to read the master of `card`, of about `size` bytes, if it fits the budget beside what is kept."""
        name = _name(card)
        known = name in self._kept or name in self._ahead
        if not known and self.bytes + size <= self._allowed():
            self._ahead[name] = self._reader.submit(self._hydrate, card), size

    def close(self) -> None:
        """Wait for what is being read ahead: nobody must be at it when the run has ended and others read models."""
        self._reader.shutdown()

    @property
    def bytes(self) -> int:
        """Bytes of host memory that the kept ones take, and those that are read ahead."""
        kept = sum(master.bytes for master in self._kept.values())
        return kept + sum(size for _, size in self._ahead.values())

    def _allowed(self) -> int:
        return min(self._budget, self.bytes + int(psutil.virtual_memory().available) // 2)


def _name(card: ModelCard) -> Name:
    """Tell masters apart: by model, precision, and the attention that they are built with."""
    return card.key, card.dtype, card.attention
