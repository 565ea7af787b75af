"""Carries a plan out on two GPUs that are not there, by the engine's own rounds.

Vectors and token ids are in memory; nothing else of a run is left out but files and front ends.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bench.scenarios.hearing import Hearing
from bench.scenarios.plan import KIB, Plan, ids_of
from bench.scenarios.workshop import Workshop
from interlock.engine.compute.context import Backend, RunContext
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.instance import first_calibration
from interlock.engine.compute.job import Job
from interlock.engine.compute.source import BatchSource
from interlock.engine.errors import Stopped
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.faults import DeviceFaults, parse
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.sim import Card, SimDevice
from interlock.engine.models.masters import Masters
from interlock.engine.record import events as ev
from interlock.engine.record.summary import Summary, summarise
from tests.harness import grid_of


class WatchedGpu(SimDevice):
    """A card on whose clock nobody waits, and which knows its highest peak and how often it was cleared."""

    highest = 0
    reclaims = 0
    lasting = False
    aside = False
    """Whether a canary is computed."""

    def __init__(self, number: int, plan: Plan) -> None:
        self.faults = parse(",".join(plan.faults))
        card = Card("GPU of a plan", plan.totals[number], min(KIB, plan.ceiling))
        super().__init__(f"cuda:{number}", card, self.faults, sleep=lambda _: None)

    def start_peak(self) -> None:
        self.highest = max(self.highest, self.peak().occupied)
        super().start_peak()

    def reclaim(self) -> None:
        self.reclaims += 1
        super().reclaim()

    @contextmanager
    def trying(self) -> Iterator[None]:
        self.aside = True
        with super().trying():
            yield
        self.aside = False

    @property
    def leaks(self) -> bool:
        """Whether a fault leaves something on it for good."""
        return bool(DeviceFaults(self.faults, self.name).leaked)

    @property
    def struck(self) -> set[str]:
        """The faults whose moment has come."""
        own = [fault for fault in self.faults if fault.device in (None, self.name)]
        return {
            fault.kind
            for fault in own
            if (self.canaries if fault.kind == "skew" else self.allocations >= max(1, fault.first))
        }


@dataclass
class Outcome:
    """What came of a plan; lists by pass, but for `devices`."""

    plan: Plan
    events: list[ev.AnyEvent] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    """What should not be, and no event tells."""
    puts: list[Counter[int]] = field(default_factory=list)
    """How often each row was written."""
    vectors: list[np.ndarray] = field(default_factory=list)
    wanted: list[np.ndarray] = field(default_factory=list)
    """What they are when nothing disturbs them."""
    predicted: list[int] = field(default_factory=list)
    """Bytes of the model with its widest batch on a GPU."""
    hosts: list[int] = field(default_factory=list)
    """Bytes that it cannot do without on the CPU, where the ceiling counts too."""
    devices: list[WatchedGpu] = field(default_factory=list)
    sessions: int = 1
    error: BaseException | None = None
    summary: Summary | None = None

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def carry_out(plan: Plan, shop: Workshop) -> Outcome:
    """Compute a plan on its devices."""
    dtype = "float16" if plan.halves else "float32"  # in name alone: tiny models are computed in float32
    own = {"batch_tokens": plan.batch_tokens, "dtype": dtype, "max_tokens": plan.limit}
    cards = [replace(shop.cards[key], **own) for key in plan.models]
    longest = min(plan.limit, max(plan.lengths))
    host, heard = CpuDevice(), Hearing(plan.asked, plan.stop, longest if plan.overflows else 0)
    grid = grid_of(cards, plan.lengths, ids_of, plan.split)
    outcome = Outcome(plan, wanted=[shop.vectors(key, plan) for key in plan.models])
    outcome.hosts = [cells.layout.least_bytes(shop.law(cells.card, "cpu"), first_calibration(host)) for cells in grid]
    outcome.devices = [WatchedGpu(number, plan) for number in range(2)]
    first = first_calibration(outcome.devices[0])
    outcome.predicted = [cells.layout.predicted_bytes(shop.law(cells.card, "sim"), first) for cells in grid]
    heard.begin(grid, outcome.devices, plan.ceiling, plan.schedule, f"plan-{plan.seed}")
    try:
        outcome.sessions = _run(grid, outcome.devices, host, plan, shop, heard)
    except Exception as error:
        outcome.error = error
    outcome.events, outcome.unheard = heard.events, [*heard.untold, *heard.kept]
    outcome.summary = summarise(heard.state)
    outcome.vectors = [cells.files.array for cells in grid]
    outcome.puts = [cells.files.puts for cells in grid]
    return outcome


class PlanLessor(Lessor):
    """Promises more of a device than the engine would: all but the plan's reserve."""

    def __init__(self, devices: Sequence[Device], plan: Plan, granted: int, whose: str = "") -> None:
        super().__init__(devices, plan.ceiling, granted=granted, whose=whose)
        self._reserve = plan.reserve

    def budget(self, device: Device) -> int:
        return min(self.ceiling, device.room(self.ceiling) - self._reserve)


def _run(
    grid: Sequence[Job], devices: Sequence[Device], host: CpuDevice, plan: Plan, shop: Workshop, heard: Hearing
) -> int:
    """To the end, in another session where the plan stops in between, and on the CPU once both GPUs are lost; how many
    sessions it took."""
    sessions = 1
    while True:
        try:
            _rounds(grid, devices, host, plan, shop, heard).run()
            return sessions
        except Stopped:
            sessions += 1
            heard.controls.code = None
            if all(device.lost for device in devices):
                devices = [host]
                for cells in grid:  # as a run is planned where there is no GPU
                    cells.layout.card = replace(cells.card, dtype="float32")


def _rounds(
    grid: Sequence[Job], devices: Sequence[Device], host: CpuDevice, plan: Plan, shop: Workshop, heard: Hearing
) -> PassExecutor:
    heard.controls.begin(plan.schedule, plan.window, cpu_fallback=plan.cpu_fallback)
    granted = sum(isinstance(event, ev.LeaseGranted) for event in heard.events)
    context = RunContext(
        devices=devices,
        host=host,
        lessor=PlanLessor([*(device for device in devices if device is not host), host], plan, granted),
        masters=Masters(1 << 30, shop.master),
        controls=heard.controls,
        emit=heard,
        sync=lambda: None,
        backend=Backend(laws=shop.law, encoders=heard.encoders, load=shop.network),
    )
    batches = [event for event in heard.events if isinstance(event, ev.BatchCommitted)]
    done = [[batch for batch in batches if batch.model_pass == cells.model_pass] for cells in grid]
    return PassExecutor(BatchSource(grid, done, [1.0] * len(grid), context.emit), context)
