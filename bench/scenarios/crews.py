"""Random plans on several nodes: the same rows, memory, faults and controls, and nodes that come, go, stall and lie.

Nodes are threads of this process, each with two GPUs that are not there; head, feeds, passes and messages are the
product's own. What must hold is what must hold on one machine.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.scenarios.checks import TOLERANCE
from bench.scenarios.plan import Plan, draw, ids_of
from bench.scenarios.stage import PlanLessor, WatchedGpu
from bench.scenarios.workshop import Workshop
from interlock.engine.compute.cluster.head import ClusterExecutor
from interlock.engine.compute.cluster.member import ClusterTimeouts
from interlock.engine.compute.cluster.members import ClusterMembers
from interlock.engine.compute.cluster.messages import GridPlan, Hello, ModelFiles
from interlock.engine.compute.cluster.node import ClusterNode, versions
from interlock.engine.compute.context import Backend, Deadline
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.errors import ExitCode, Stopped
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record import events as ev
from tests.harness import Told, grid_of
from tests.threads import Threads

MENU = ("kill", "leave", "join", "stall", "slow", "damage")
"""What befalls a node: its process dies, its machine too, another machine comes, it answers no more, each answer and
each forward takes longer, or what it sends arrives with another bit."""
IMPATIENT = ClusterTimeouts(
    look=0.02, start=20.0, again=0.02, tries=50, poll=0.1, silent=1.5, held=1.0, empty=3.0, lead=0.02
)


@dataclass(frozen=True)
class CrewPlan:
    """A plan, the machines that it begins on, and what befalls which of them after so many batches."""

    plan: Plan
    machines: int
    happenings: tuple[tuple[int, str, int], ...]


def draw_crew(seed: int, shop: Workshop) -> CrewPlan:
    """The plan of a seed with its nodes."""
    dice, plan = random.Random(f"crew {seed}"), draw(seed, shop.on_gpu)
    machines = dice.choice((1, 2, 2, 3, 4))
    happenings = [
        (dice.randrange(0, 10), dice.choice(MENU), dice.randrange(machines))
        for _ in range(dice.choice((0, 1, 1, 2, 3)))
    ]
    return CrewPlan(plan, machines, tuple(sorted(happenings)))


class _Node(ClusterNode):
    """A node that promises as much of a device as the plan wants, and may send other bytes than it computed."""

    def __init__(self, backend: Backend, plan: Plan) -> None:
        super().__init__(backend)
        self._of = plan
        self.damages = False

    def _lends(self, devices: Sequence[Device], granted: int) -> Lessor:
        return PlanLessor(devices, self._of, granted, f"{self._hello.node}/")

    def exchange(self, orders: Any) -> Any:
        report = super().exchange(orders)
        for news in report.news if self.damages else ():
            if news.outputs is not None and news.outputs.dense is not None:
                self.damages = False
                dense = news.outputs.dense.copy()
                dense.view(np.uint32)[0, 0] ^= 1
                object.__setattr__(news, "outputs", replace(news.outputs, dense=dense))
                break
        return report


class _Slow:
    """An encoder that takes its time, and computes what the other would."""

    def __init__(self, inner: Any, seconds: Callable[[], float]) -> None:
        self._inner, self._seconds = inner, seconds
        self.padded = inner.padded

    def encode(self, rows: Any) -> Any:
        time.sleep(self._seconds())
        return self._inner.encode(rows)


class _Heard(Told):
    """Told of every event: what is asked for, and what befalls the nodes, comes after so many batches."""

    def __init__(self, crew: CrewPlan, threads: Threads) -> None:
        super().__init__()
        self.controls = Controls()
        self.befell: Counter[str] = Counter()
        self._threads = threads
        self._asked, self._due = sorted(crew.plan.asked), [*crew.happenings]
        self._stop = crew.plan.stop
        self._committed = 0

    def told(self, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.LeaseGranted):
            self._befall()
        if not isinstance(event, ev.BatchCommitted):
            return
        self._committed += 1
        while self._asked and self._asked[0][0] <= self._committed:
            self.controls.ask(*self._asked.pop(0)[1:], who="plan")
        if self._committed == self._stop:
            self.controls.stop(ExitCode.STOPPED)
        self._befall()

    def _befall(self) -> None:
        threads = self._threads
        while self._due and self._due[0][0] <= self._committed:
            _, what, number = self._due.pop(0)
            name = f"m{number}"
            if what == "join":
                threads.there.append(f"m{len({*threads.there, *(each for each, _ in threads.links)})}")
            elif name not in threads.there or not any(each == name for each, _ in threads.links):
                continue
            elif what == "kill":
                threads.kill(name)
            elif what == "leave" and len(threads.there) > 1:
                threads.kill(name, gone=True)
            elif what == "stall":
                threads.latest(name).silent = True
            elif what == "slow":
                threads.latest(name).delay = 0.1
            elif what == "damage":
                threads.latest(name).node.damages = True  # type: ignore[attr-defined]
            else:
                continue
            self.befell[what] += 1


@dataclass
class CrewOutcome:
    """What came of a plan on nodes; lists by pass."""

    crew: CrewPlan
    heard: _Heard
    puts: list[Counter[int]]
    vectors: list[np.ndarray]
    wanted: list[np.ndarray]
    error: BaseException | None = None

    def of(self, kind: type[Any]) -> list[Any]:
        return self.heard.of(kind)


def carry_out_on(crew: CrewPlan, shop: Workshop) -> CrewOutcome:
    """Compute a plan on its nodes, in another session where it stops in between."""
    plan = crew.plan
    dtype = "float16" if plan.halves else "float32"
    own = {"batch_tokens": plan.batch_tokens, "dtype": dtype, "max_tokens": plan.limit}
    cards = {key: replace(shop.cards[key], **own) for key in plan.models}
    grid = grid_of([*cards.values()], plan.lengths, ids_of, plan.split)
    begun: Counter[str] = Counter()

    def made(machine: str) -> ClusterNode:
        calm = replace(plan, faults=() if begun[machine] else plan.faults)  # a new process has whole cards
        begun[machine] += 1
        backend = Backend(
            devices=lambda *_: [WatchedGpu(number, calm) for number in range(2)],
            host=CpuDevice,
            cards=lambda specs, *_: [cards[spec.key] for spec in specs],
            laws=shop.law,
            load=shop.network,
            hydrate=lambda _: shop.master,
            encoders=lambda *it: _Slow(encoder_for(*it), lambda: 4 * threads.latest(machine).delay),
        )
        return _Node(backend, plan)

    threads = Threads(made, [f"m{number}" for number in range(crew.machines)])
    heard = _Heard(crew, threads)
    heard.begin(grid, [], plan.ceiling, plan.schedule, f"crew-{plan.seed}")
    outcome = CrewOutcome(
        crew,
        heard,
        [cells.files.puts for cells in grid],
        [cells.files.array for cells in grid],
        [shop.vectors(key, plan) for key in plan.models],
    )
    try:
        while not _session(crew, grid, threads, heard):
            heard.controls.code = None
    except Exception as error:
        outcome.error = error
    finally:
        threads.join()
    return outcome


def _session(crew: CrewPlan, grid: Sequence[Any], threads: Threads, heard: _Heard) -> bool:
    """One session; whether it came to the end."""
    plan, controls = crew.plan, heard.controls
    controls.begin(plan.schedule, plan.window, cpu_fallback=plan.cpu_fallback)
    batches = heard.of(ev.BatchCommitted)
    done = [[batch for batch in batches if batch.model_pass == cells.model_pass] for cells in grid]
    backlog = BatchSource(grid, done, [1.0] * len(grid), heard)
    hello = Hello("crew", "", "sim", (), plan.ceiling, 0, 1 << 30, 0)
    members = ClusterMembers(threads, hello, versions(), IMPATIENT)
    members.gather()
    specs, granted = [ModelSpec(cells.card.key, ("none",)) for cells in grid], len(heard.of(ev.LeaseGranted))
    members.begin(GridPlan.of(grid, specs, Policy(offline=True), controls, granted), lambda key: ModelFiles(key, {}))
    try:
        ClusterExecutor(backlog, members, controls, heard, lambda: None, Deadline()).run()
    except Stopped:
        return False
    return True


def crew_wrongs(outcome: CrewOutcome) -> list[str]:
    """Everything that should not be; empty for a plan that went well."""
    if outcome.error:
        return [f"the head raised {type(outcome.error).__name__}: {outcome.error}"]
    return [wrong for check in (_rows, _vectors, _leases, _told) for wrong in check(outcome)]


def _rows(outcome: CrewOutcome) -> Iterator[str]:
    """Every row of a pass is committed once, and written once but where it arrived damaged."""
    failed = {event.model_pass for event in outcome.of(ev.PassFailed)}
    cells = Counter((event.model_pass, event.batch_index) for event in outcome.of(ev.BatchCommitted))
    if twice := [cell for cell, times in cells.items() if times > 1]:
        yield f"cells committed twice: {twice}"
    rows: Counter[int] = Counter()
    for event in outcome.of(ev.BatchCommitted):
        rows[event.model_pass] += event.rows
    again = outcome.heard.befell["damage"]
    for number, puts in enumerate(outcome.puts):
        times = [puts[row] for row in range(len(outcome.crew.plan.lengths))]
        if max(times) > 1 + again:
            yield f"pass {number}: rows written {max(times)} times"
        if number not in failed and rows[number] != len(times):
            yield f"pass {number}: {rows[number]} of {len(times)} rows committed"
        if 0 in times and number not in failed:
            yield f"pass {number}: {times.count(0)} rows lost"
    ended = {event.model_pass for event in (*outcome.of(ev.EnsemblePassCompleted), *outcome.of(ev.PassFailed))}
    if len(ended) != len(outcome.crew.plan.models):
        yield f"only the passes {sorted(ended)} ended"


def _vectors(outcome: CrewOutcome) -> Iterator[str]:
    """What is written is what an undisturbed run writes; only parked rows are NaN, and each is told once."""
    parked = Counter((event.model_pass, event.row) for event in outcome.of(ev.RowParked))
    if any(times > 1 for times in parked.values()):
        yield "a row is parked twice"
    done = {(event.model_pass, event.batch_index) for event in outcome.of(ev.BatchCommitted)}
    for event in outcome.of(ev.RowParked):
        if (event.model_pass, event.batch_index) not in done:
            yield f"row {event.row} of pass {event.model_pass} is parked without its batch"
    for number, (got, wanted) in enumerate(zip(outcome.vectors, outcome.wanted, strict=True)):
        for row in outcome.puts[number]:
            bad = bool(np.isnan(got[row]).any())
            if bad != ((number, row) in parked):
                yield f"pass {number}, row {row}: NaN is {bad}, parked is {not bad}"
            if not bad and (off := float(np.abs(got[row] - wanted[row]).max())) > TOLERANCE:
                yield f"pass {number}, row {row}: off by {off:.2e}"


def _leases(outcome: CrewOutcome) -> Iterator[str]:
    """A GPU has one lease at a time but on the shared schedule; every lease of a node that stays has its receipt."""
    held: dict[str, Any] = {}
    for event in outcome.heard.events:
        match event:
            case ev.LeaseReleased():
                held.pop(event.lease, None)
            case ev.NodeLost():
                held = {name: lease for name, lease in held.items() if not name.startswith(f"{event.node}/")}
            case ev.LeaseGranted():
                if event.lease in held:
                    yield f"lease {event.lease} is granted twice"
                held[event.lease] = event
                for name in event.budgets:
                    at_once = [lease for lease in held.values() if name in lease.budgets and not name.endswith("cpu")]
                    if len(at_once) > 1 and event.schedule != Schedule.SHARED:
                        yield f"{name} is leased {len(at_once)} times at once"


def _told(outcome: CrewOutcome) -> Iterator[str]:
    """A process that died or fell silent is told as lost, and no trouble of the product's own is a reason."""
    for event in outcome.of(ev.NodeLost):
        if "Error" in event.reason and "gone" not in event.reason:
            yield f"{event.node} is lost for no reason that a person can use: {event.reason}"
    for event in outcome.of(ev.PassFailed):
        if "Error" in event.reason or not event.reason:
            yield f"given up for no reason that a person can use: {event.reason!r}"
