"""Devices of nodes as the head sees them: named and described for planning, never computed on here."""

from contextlib import AbstractContextManager

import torch

from interlock.engine.compute.cluster.messages import RemoteFacts
from interlock.engine.gpu.device import Device
from interlock.engine.record.facts import Memory, Readings


class RemoteDevice(Device):
    """A device of a node; what it holds, its node tells."""

    key = None
    metered = False
    torch = torch.device("cpu")

    def __init__(self, told: RemoteFacts) -> None:
        self.name, self.kind, self.label = told.facts.name, told.facts.kind, told.facts.label
        self.total = told.facts.total_bytes
        self.capability, self.processors = told.capability, told.processors

    def memory(self) -> Memory:
        return Memory(allocated=0, occupied=0)

    def peak(self) -> Memory:
        return self.memory()

    def room(self, ceiling: int) -> int:
        return 0

    def retries(self) -> int:
        return 0

    def readings(self) -> Readings | None:
        return None

    def computing(self) -> AbstractContextManager[object]:
        raise NotImplementedError("a node computes on its devices, not its head")

    def start_peak(self) -> None:
        return

    def trim(self) -> None:
        return

    def reclaim(self) -> None:
        return
