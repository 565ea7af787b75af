"""The middle of a scripted run: rounds, leases, workers and mishaps, in virtual time.

Whoever drives it is given every wait in seconds by a generator, and lets it pass. The order of the cells is the
schedule's, what is done about a shortage is the ladder's; only the computing is left out.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from interlock.console import scripted_cast as cast
from interlock.console.scripted_cards import Card, host_receipt
from interlock.console.scripted_cast import HOST, MIB, REFUSAL, Cell, Mishap, Part
from interlock.engine.errors import Stopped
from interlock.engine.passes.controls import PAUSE_SECONDS, Controls
from interlock.engine.passes.ladder import Means, Rung
from interlock.engine.passes.schedule import Assignment, Placement, Schedule, next_placement
from interlock.engine.record import events as ev

Waits = Generator[float, None, None]
PROBES, CALM = 3, 3
COLD, WARM = 900 * MIB, 6 << 30
"""Bytes of weights that are attached in a second, from the disk and from the host's memory."""
FOUND, LEFT = 46 * MIB, 2 * MIB
"""What the second model leaves behind, and what is left of it at last."""
HOST_SECONDS = 2.4
LOSS = "CUDA error: unspecified launch failure"
STOPPED = "stopped by the operator between two batches; --resume continues"


@dataclass
class ResidentModel:
    """One model's turn."""

    assignment: Assignment
    part: Part
    cells: Sequence[Cell]
    queue: deque[Cell]
    lease: str
    granted_at: float
    shared: bool
    host: str = ""
    committed: list[int] = field(default_factory=list)


@dataclass
class Work:
    """The passes of a scripted run; `left` holds the cells that each still has to do."""

    parts: Sequence[Part]
    weights: Sequence[float]
    left: list[list[Cell]]
    mishaps: dict[tuple[int, int], Mishap]
    cards: Sequence[Card]
    controls: Controls
    emit: Callable[[ev.AnyEvent], object]
    now: Callable[[], float]
    random: Random
    leased: int = 0
    last: int | None = None
    residents: Sequence[ResidentModel] = ()
    warm: set[str] = field(default_factory=set)
    pressed: Counter[str] = field(default_factory=Counter)
    measured: Counter[tuple[int, str]] = field(default_factory=Counter)
    committed: Counter[tuple[int, str]] = field(default_factory=Counter)
    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def run(self) -> Waits:
        """Walk everything that is left. Raises Stopped between two batches when asked to."""
        self.controls.preview, self.controls.unaffected_by = self._preview, self._stays
        while any(self.left):
            yield from self._heed()
            if self.controls.stop_requested:
                raise Stopped(STOPPED)
            if now := self._next(self.controls.schedule):
                yield from self._placement(now)
        self.controls.end(self.emit)

    def _preview(self, schedule: Schedule) -> Placement | None:
        """What another schedule would lease next."""
        return self._next(schedule, {resident.assignment.model_pass: resident.committed for resident in self.residents})

    def _stays(self, schedule: Schedule) -> bool:
        """Whether another schedule would have the same models go on where they are."""
        then = self._preview(schedule)
        now = [(resident.assignment.model_pass, resident.assignment.devices) for resident in self.residents]
        return (
            then is not None and [(assignment.model_pass, assignment.devices) for assignment in then.assignments] == now
        )

    def _next(self, schedule: Schedule, done: Mapping[int, Sequence[int]] = {}) -> Placement | None:
        """What would be leased now, under a schedule; `done` are cells of the present round, by pass."""
        left = [
            [cell.index for cell in cells if cell.index not in done.get(number, ())]
            for number, cells in enumerate(self.left)
        ]
        places = cast.places_of([card.name for card in self.cards if not card.lost], cast.BUDGET)
        needs = [part.need() for part in self.parts]
        controls = self.controls
        return next_placement(schedule, left, needs, places, controls.window, self.last, controls.cpu_fallback)

    def _heed(self) -> Waits:
        """What was asked for counts from now on; time goes by here while the run is paused."""
        self.controls.settle(self.emit)
        while self.controls.paused and not self.controls.stop_requested:
            yield PAUSE_SECONDS
            self.controls.settle(self.emit)

    def _placement(self, now: Placement) -> Waits:
        """From the leases to the receipts."""
        began, residents = (
            self.now(),
            [self._granted(assignment, len(now.assignments) > 1) for assignment in now.assignments],
        )
        self.residents = residents
        for resident in residents:
            yield from self._attach(resident)
        reorders = self.controls.reorders
        workers = [
            self._worker(card, mine, reorders)
            for card in self.cards
            if (mine := [resident for resident in residents if card.name in resident.assignment.devices])
        ]
        yield from self._together(workers)
        for resident in reversed(residents):
            yield 0.4
            self._release(resident)
        for resident in residents:
            self._close(resident, self.now() - began)

    def _together(self, workers: Sequence[Waits]) -> Waits:
        """Let workers wait side by side."""
        due = [(self.now(), number) for number in range(len(workers))]
        while due:
            at, number = heapq.heappop(due)
            if at > self.now():
                yield at - self.now()
            if (wait := next(workers[number], None)) is not None:
                heapq.heappush(due, (self.now() + wait, number))

    def _granted(self, assignment: Assignment, shared: bool) -> ResidentModel:
        part, number = self.parts[assignment.model_pass], assignment.model_pass
        cells = [cell for cell in self.left[number] if cell.index in set(assignment.batches)]
        lease = self._lease(number, part, assignment.devices, cells)
        for card in self.cards:
            if card.name in assignment.devices:
                card.grant(lease)
        return ResidentModel(assignment, part, cells, deque(cells), lease, self.now(), shared)

    def _lease(self, model_pass: int, part: Part, devices: Sequence[str], cells: Sequence[Cell]) -> str:
        self.leased += 1
        budget = cast.HOST_ROOM if HOST in devices else cast.BUDGET
        self.emit(
            ev.LeaseGranted(
                lease=f"L{self.leased:03d}",
                model_pass=model_pass,
                model=part.key,
                devices=list(devices),
                device_kind=cast.KIND,
                budget_bytes=budget,
                predicted_bytes=part.weights + part.per_token * max((cell.tokens for cell in cells), default=0),
                batches=len(cells),
                rows=sum(len(cell.lengths) for cell in cells),
                budgets=dict.fromkeys(devices, budget),
                schedule=self.controls.schedule,
            )
        )
        return f"L{self.leased:03d}"

    def _attach(self, resident: ResidentModel) -> Waits:
        part = resident.part
        for card in self.cards:
            if card.name not in resident.assignment.devices:
                continue
            warm = part.key in self.warm
            seconds = part.weights / (WARM if warm else COLD)
            yield seconds
            card.attach(resident.lease, part.weights)
            self.warm.add(part.key)
            self._attached(resident.lease, part, part.weights, seconds, card.name, warm=warm)

    def _attached(self, lease: str, part: Part, size: int, seconds: float, device: str, *, warm: bool) -> None:
        self.emit(
            ev.ModelAttached(
                lease=lease, model=part.key, bytes=size, seconds=round(seconds, 3), device=device, warm=warm
            )
        )

    def _worker(self, card: Card, residents: Sequence[ResidentModel], reorders: int) -> Waits:
        """Takes from each queue in its turn, until they are empty or something else is wanted."""
        posts = deque(residents)
        while any(resident.queue for resident in posts):
            yield from self._heed()
            if self.controls.stop_requested or self.controls.reorders != reorders or self._loses(card, residents):
                break
            posts.rotate(-1)
            if resident := next((each for each in reversed(posts) if each.queue), None):
                yield from self._one(card, resident)
        for resident in residents:
            self._calibrated(card, resident.assignment.model_pass)

    def _one(self, card: Card, resident: ResidentModel) -> Waits:
        cell, part = resident.queue.popleft(), resident.part
        began, forwards = self.now(), 1
        if mishap := self.mishaps.get((cell.model_pass, cell.index)):
            forwards = yield from self._climb(card, resident, cell, mishap)
        card.compute(round(part.per_token * (cell.tokens + cell.padding)))
        yield cell.tokens / part.pace * (0.85 + 0.3 * self.random.random())
        card.compute(0)
        resident.committed.append(cell.index)
        self._committed(card, cell, self.now() - began, forwards)

    def _committed(self, card: Card, cell: Cell, seconds: float, forwards: int) -> None:
        key = cell.model_pass, card.name
        self.emit(
            ev.BatchCommitted(
                model_pass=cell.model_pass,
                batch_index=cell.index,
                rows=len(cell.lengths),
                tokens=cell.tokens,
                padding=cell.padding,
                seconds=round(seconds, 6),
                device=card.name,
                crc=int(cast.digest(cell.model_pass, cell.index)[:8], 16),
                forwards=forwards,
            )
        )
        self.committed[key] += 1
        self.measured[key] += forwards == 1
        if self.measured[key] == PROBES:
            self._calibrated(card, cell.model_pass)
        if self.pressed[card.name] and forwards == 1:
            self._ease(card, cell)

    def _climb(self, card: Card, resident: ResidentModel, cell: Cell, mishap: Mishap) -> Generator[float, None, int]:
        """Rung by rung; how many forwards it took."""
        others = any(each is not card and each.name in resident.assignment.devices for each in self.cards)
        means = Means(streams=True, slices_mlp=True, others=others, cpu=self.controls.cpu_fallback)
        forwards = 1
        for step, evidence in cast.climb(resident.part, cell, mishap, means):
            if evidence.predicted:
                card.press(evidence.room)
                card.compute(evidence.room)
                self.pressed[card.name] = CALM
            cost = 0.15 + 0.3 * self.random.random()
            yield cost
            forwards += max(1, len(step.pieces(cell.lengths[: evidence.rows], padded=True)))
            if step.rung is Rung.PARK:
                self.emit(cast.parked(cell, resident.part, REFUSAL if mishap is Mishap.REFUSED else step.reason))
                break
            if step.rung is Rung.CPU and not resident.host:
                yield from self._take_host(resident, cell)
            self.emit(cast.mitigated(card.name, cell, mishap, step, evidence, cost))
        return forwards

    def _ease(self, card: Card, cell: Cell) -> None:
        """After some batches that went through whole, the pressure has passed."""
        self.pressed[card.name] -= 1
        if not self.pressed[card.name]:
            card.ease()
            self.emit(ev.PressurePassed(model_pass=cell.model_pass, batch_index=cell.index, device=card.name))

    def _take_host(self, resident: ResidentModel, cell: Cell) -> Waits:
        resident.host = self._lease(cell.model_pass, resident.part, [HOST], resident.cells)
        yield HOST_SECONDS
        self._attached(resident.host, resident.part, 2 * resident.part.weights, HOST_SECONDS, HOST, warm=False)

    def _calibrated(self, card: Card, model_pass: int) -> None:
        if batches := self.measured[model_pass, card.name]:
            scale = 0.97 + 0.04 * self.random.random()
            margin = max(0.01, 0.05 * 0.975**batches)
            self.emit(
                ev.MemoryCalibrated(
                    model_pass=model_pass,
                    device=card.name,
                    batches=batches,
                    scale=round(scale, 5),
                    margin=round(margin, 5),
                    worst=round(scale + margin / 2, 5),
                )
            )

    def _loses(self, card: Card, residents: Sequence[ResidentModel]) -> bool:
        """Of more than two cards, the last one is lost in the second pass."""
        second = min(1, len(self.parts) - 1)
        due = len(self.cards) > 2 and card is self.cards[-1] and self.committed[second, card.name] > 2
        if due and not card.lost:
            card.lost = True
            self.emit(ev.DeviceLost(device=card.name, reason=LOSS))
            for resident in residents:
                self.emit(
                    ev.Mitigated(
                        model_pass=resident.assignment.model_pass,
                        batch_index=None,
                        cause=f"{card.name} was lost: {LOSS}",
                        action="what it had not committed is computed on what is left",
                        rows=sum(len(cell.lengths) for cell in resident.queue),
                        cost_seconds=0.0,
                        rung=Rung.RELOCATE,
                        device=card.name,
                    )
                )
        return card.lost

    def _release(self, resident: ResidentModel) -> None:
        """Receipts, and what was left behind: the second model leaves something where it was alone."""
        if resident.host:
            self._released(resident, resident.host, [host_receipt(resident.part)])
        cards = [card for card in self.cards if card.name in resident.assignment.devices]
        leaves = resident.assignment.model_pass == 1 and not resident.shared
        receipts = [card.release(resident.lease, LEFT * (leaves and card is cards[0])) for card in cards]
        self._released(resident, resident.lease, receipts)
        if leaves:
            action = "collected again; still referred to by: dict; the next budget is what is measured then"
            residue = ev.ResidueFound(
                lease=resident.lease, device=cards[0].name, bytes=FOUND, action=action, left_bytes=LEFT
            )
            self.emit(residue)

    def _released(self, resident: ResidentModel, lease: str, receipts: list[ev.Receipt]) -> None:
        held = round(self.now() - resident.granted_at, 3)
        model_pass, model = resident.assignment.model_pass, resident.part.key
        self.emit(
            ev.LeaseReleased(lease=lease, model_pass=model_pass, model=model, held_seconds=held, receipts=receipts)
        )

    def _close(self, resident: ResidentModel, seconds: float) -> None:
        number, done = resident.assignment.model_pass, set(resident.committed)
        self.left[number] = [cell for cell in self.left[number] if cell.index not in done]
        self.last = number
        self.seconds[number] += seconds
        if not self.left[number]:
            self.emit(self.completed(number, ",".join(resident.assignment.devices)))

    def completed(self, number: int, devices: str) -> ev.EnsemblePassCompleted:
        """The end of a pass."""
        return ev.EnsemblePassCompleted(
            model_pass=number,
            model=self.parts[number].key,
            device=devices,
            dtype="float16",
            weight=self.weights[number],
            rows=sum(shelf.rows for shelf in cast.SHELVES),
            seconds=round(self.seconds[number], 3),
        )
