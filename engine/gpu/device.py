"""What a device is to those who lease it: named, measured, walled, and the place where a thread's tensors live.

Three rooms implement it: `cpu` (the host itself), `cuda` (a real GPU) and `sim` (a GPU that is not there: real
computation on the host, charged to the allocator of the card that it stands for).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from interlock.engine.record.facts import DeviceFacts, Memory, Readings

RESERVE = 64 << 20
"""Bytes of a device that no lease is promised unless `--margin` says otherwise: allocator slack, and what a driver
takes without telling."""


@dataclass(frozen=True)
class Pinning:
    """What came of page-locking a host tensor."""

    release: Callable[[], None] = lambda: None
    """Call it when no copy is under way; the tensor's memory is kept until then."""
    refused: str = ""
    """Why copies take longer, where it was wanted and could not be."""


class Device(Protocol):
    """Something that models are attached to and computed on. Sizes are bytes.

    What a device does not override here is done when it returns, and needs no preparation: so it is on the host.
    """

    name: str
    """`cuda:0`, `cpu`: what people call it."""
    kind: str
    """`cuda`, `cpu` or `sim`."""
    label: str
    """The make, for people: `Tesla T4`."""
    total: int
    """All the memory that it has."""
    torch: torch.device
    """Where its tensors live; a simulated device's live on the host."""
    key: str | None
    """Names the physical device among all processes of the machine; None where nothing is to be held."""
    capability: tuple[int, int] | None = None
    """The compute capability of a GPU; None of a host and of a simulated one, which computes on the host."""
    processors: int = 0
    """The multiprocessors of a GPU, simulated or not; 0 of a host, and where they are not known."""
    lasting: bool = True
    """Whether what was found out about it holds for the next process."""
    next_need: tuple[int, int] = (0, 0)
    """Bytes that the next batch needs there, beside so many of weights; 0 before it is known."""
    metered: bool
    """Whether `peak` is exact for a single batch (an allocator's counters) or only a resident set."""

    @property
    def lost(self) -> bool:
        """Whether this process can compute nothing on it any more, as far as its `room` has told."""
        return False

    def memory(self) -> Memory:
        """Measure what it holds now."""

    def room(self, ceiling: int) -> int:
        """Measure what can be allocated now beside what is allocated, this process under `ceiling` at driver level.

        Other processes' memory is not room; what our allocator has cached is.
        """

    def wall(self, ceiling: int | None) -> None:
        """Make every allocation that would take this process over `ceiling` fail here and not in the driver."""
        return

    def computing(self) -> AbstractContextManager[object]:
        """Let what this thread allocates in the block belong to this device."""

    def trying(self) -> AbstractContextManager[object]:
        """Let what is computed in the block try the device out: a simulated one counts it apart."""
        return nullcontext()

    def copying(self) -> AbstractContextManager[object]:
        """Let copies in the block run beside the computation, and after what `hold_copies` has them wait for."""
        return self.computing()

    def hold_copies(self) -> None:
        """Let copies from now on wait for all that is being computed so far."""
        return

    def join_copies(self) -> None:
        """Let what is computed from now on wait for the copies issued so far."""
        return

    def hold(self, model: object, size: int) -> None:
        """Count `size` bytes as allocated for as long as `model` lives, where no allocator counts them."""
        return

    def pin(self, tensor: Tensor) -> Pinning:
        """Let copies of a host tensor to devices of this kind run at full speed, until what is returned is released."""
        return Pinning()

    def start_peak(self) -> None:
        """Begin a new measurement of the peak."""

    def peak(self) -> Memory:
        """Measure the most it held since `start_peak`."""

    def retries(self) -> int:
        """Count how often the allocator gave back its cache before an allocation succeeded, since the start."""

    def trim(self) -> None:
        """Give back memory that is cached and free."""

    def reclaim(self) -> None:
        """Give back everything that is no longer used, after looking for it; waits for the driver to see it."""

    def readings(self) -> Readings | None:
        """Ask the driver for its figures of the device now; None where there is no driver."""


def facts_of(device: Device, ceiling: int) -> DeviceFacts:
    """Tell what a device is, of which a run may occupy so many bytes."""
    return DeviceFacts(
        name=device.name,
        kind=device.kind,
        label=device.label,
        total_bytes=device.total,
        ceiling_bytes=min(device.total, ceiling),
    )
