"""What a run computes with: devices and models of this machine, or others in their place; and what it shares."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.deadline import Deadline
from interlock.engine.compute.encoder import Encoder, encoder_for
from interlock.engine.compute.memory_needs import Laws
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Hydrate, Masters, hydrated_for
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import cards_of
from interlock.engine.models.trace import law_for
from interlock.engine.models.weights import load
from interlock.engine.record.events import Emit


@dataclass(frozen=True)
class Backend:
    """Where devices, models and their vectors come from; the defaults are those of this machine."""

    devices: Callable[[str, Sequence[str]], list[Device]] = choose
    """By `--devices` and `--faults`."""
    host: Callable[[], Device] = CpuDevice
    cards: Callable[[Sequence[ModelSpec], Policy, Sequence[Device], Emit], list[ModelCard]] = cards_of
    """Of the roster's models for these devices; emits how each was resolved."""
    laws: Laws = law_for
    load: Callable[[ModelCard], nn.Module] = load
    """A model for the host's own processor."""
    hydrate: Callable[[Device], Hydrate] = hydrated_for
    """A model's host master, for devices like this one."""
    encoders: Callable[[ModelCard, nn.Module, Device], Encoder] = encoder_for
    clock: Callable[[], float] = time.monotonic
    """What batches, the run and its deadline are timed by, in seconds."""


REAL = Backend()


@dataclass(frozen=True)
class RunContext:
    """What every placement of a run shares. `host` is the CPU, which is among `devices` only where there is no GPU."""

    devices: Sequence[Device]
    host: Device
    lessor: Lessor
    masters: Masters
    controls: Controls
    emit: Emit
    sync: Callable[[], None]
    """Makes the journal durable."""
    backend: Backend = REAL
    deadline: Deadline = field(default_factory=Deadline)
