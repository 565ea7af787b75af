"""Walks the grid round by round: who may lease what now, attach, work, release, and again until nothing is left.

A round is what the schedule wants leased at the same time. Its leases are released on every way out; a device that is
lost takes no further part, a pass that fails leaves the others theirs, and what was left undone is in the next round.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import RLock

from torch import nn

from engine.errors import InterlockError, Stopped, UnavailableError
from engine.gpu.device import Device
from engine.gpu.lease import Lease, Lessor
from engine.gpu.memory import Calibration, Law
from engine.gpu.shortage import Trouble, classify
from engine.models.card import ModelCard
from engine.models.masters import Masters
from engine.models.trace import law_for
from engine.models.weights import Attached, Master, Replica, attach_to_host
from engine.passes.controls import Controls
from engine.passes.encoder import Encoder, encoder_for
from engine.passes.grid import Cells
from engine.passes.ladder import Rung
from engine.passes.schedule import Need, Place, Round, Schedule, Turn, next_round
from engine.passes.seat import Seat, first_calibration
from engine.passes.worker import Post, Queue, Worker, run_all
from engine.record.durable import human_bytes
from engine.record.events import (
    AnyEvent,
    DeviceLost,
    EnsemblePassCompleted,
    LeaseGranted,
    LeaseReleased,
    Mitigated,
    ModelAttached,
    PassFailed,
    ResidueFound,
    Warned,
)

TRIES = 2
"""How often a model is attached to a device before the device is left out."""


@dataclass(frozen=True)
class Crew:
    """What every round works with. `host` is the CPU, which is among `devices` only where there is no GPU."""

    devices: Sequence[Device]
    host: Device
    lessor: Lessor
    masters: Masters
    controls: Controls
    emit: Callable[[AnyEvent], object]
    sync: Callable[[], None]
    laws: Callable[[ModelCard, str], Law] = law_for
    encoders: Callable[[ModelCard, nn.Module, Device], Encoder] = encoder_for


class Rounds:
    """The passes of a run over their grid; `run` may be called once."""

    def __init__(
        self, grid: Sequence[Cells], left: Sequence[Sequence[int]], weights: Sequence[float], crew: Crew
    ) -> None:
        """`left[k]` are the batches that pass k still has to do, in order."""
        self._grid = grid
        self._left = [list(batches) for batches in left]
        self._weights = weights
        self._crew = crew
        self._seconds = [0.0] * len(grid)
        self._lost: set[str] = set()
        self._lock = RLock()
        self._last: int | None = None
        self._calibrations: dict[tuple[int, str], Calibration] = {}

    def run(self) -> None:
        """Compute everything that is left. Raises Stopped between two batches when asked to."""
        while any(self._left):
            self._crew.controls.heed(self._crew.emit)
            if self._crew.controls():
                raise Stopped("stopped by the operator between two batches; --resume continues")
            now = self.next()
            for model_pass, reason in now.refused.items():
                self._fail(model_pass, reason)
            if now.turns:
                self._take(now)

    def check(self) -> None:
        """Raises UnavailableError for the first pass that would fit nowhere, even with every device to itself."""
        needs, controls = [self.need_of(cells) for cells in self._grid], self._crew.controls
        for model_pass, batches in enumerate(self._left):
            alone = [batches if number == model_pass else [] for number in range(len(self._left))]
            found = next_round(Schedule.EXCLUSIVE, alone, needs, self._places(), 0, None, controls.cpu_fallback)
            if found and found.refused:
                raise UnavailableError(next(iter(found.refused.values())))

    def next(self) -> Round:
        """What would be leased now."""
        controls = self._crew.controls
        needs = [self.need_of(cells) for cells in self._grid]
        found = next_round(
            controls.schedule, self._left, needs, self._places(), controls.window, self._last, controls.cpu_fallback
        )
        assert found is not None, "there are batches left"
        return found

    def _places(self) -> list[Place]:
        """Every healthy device, and the host last."""
        gpus = [device for device in self._crew.devices if device is not self._crew.host]
        healthy = [device for device in gpus if device.name not in self._lost]
        with_host = not gpus or self._crew.controls.cpu_fallback
        usable = [*healthy, self._crew.host] if with_host else healthy
        return [Place(each.name, each.kind, self._crew.lessor.budget(each)) for each in usable]

    def need_of(self, cells: Cells) -> Need:
        """The bytes that a pass cannot do without: on a GPU, on one with its layers streamed, on the host."""
        crew, layout = self._crew, cells.layout
        host = layout.least_bytes(self.law_of(cells, crew.host), first_calibration(crew.host))
        if crew.devices[0] is crew.host:
            return Need(cells.card.key, whole=host, streamed=0, host=host)
        law, first = self.law_of(cells, crew.devices[0]), first_calibration(crew.devices[0])
        streamed = layout.least_bytes(law, first, streamed=True) if law.slots else 0
        return Need(cells.card.key, whole=layout.least_bytes(law, first), streamed=streamed, host=host)

    def law_of(self, cells: Cells, device: Device) -> Law:
        """The memory law of a pass's model on a device."""
        return self._crew.laws(self.card_on(cells, device), device.kind)

    def calibration_of(self, cells: Cells, device: Device) -> Calibration:
        """What earlier turns of the pass have learnt on this device."""
        return self._calibrations.get((cells.model_pass, device.name), first_calibration(device))

    def card_on(self, cells: Cells, device: Device) -> ModelCard:
        """On the host beside GPUs a model computes in float32."""
        beside = device is self._crew.host and device is not self._crew.devices[0]
        return replace(cells.card, dtype="float32") if beside else cells.card

    def _take(self, now: Round) -> None:
        """One round, from the leases to the receipts."""
        began = time.monotonic()
        with ExitStack() as stack:
            queues = self._work(now, stack)
        for turn, queue in zip(now.turns, queues, strict=True):
            self._close(turn, queue, time.monotonic() - began)

    def _work(self, now: Round, stack: ExitStack) -> list[Queue]:
        """Attach and compute. The models live in this frame only: when it returns, nothing refers to them any more."""
        crew = self._crew
        sittings: list[_Sitting] = []
        for turn, most in zip(now.turns, self._split(now), strict=True):
            sittings.append(self._sit(turn, stack, most, may_wait=any(sitting.seats for sitting in sittings)))
        self._prefetch(now)
        posts: dict[str, list[Post]] = {}
        for sitting in sittings:
            for seat in sitting.seats:
                posts.setdefault(seat.device.name, []).append(Post(sitting.queue, seat, sitting, crew.emit))
        workers = [Worker(mine[0].seat.device, mine, crew.emit, crew.sync, crew.controls) for mine in posts.values()]
        run_all(workers)
        for sitting in sittings:
            self._calibrations |= sitting.rise()
        for worker in workers:
            if worker.lost:
                self.lose(worker.device, worker.lost)
                for sitting in sittings:
                    sitting.tell_lost(worker.device, worker.lost)
        if errors := [worker.error for worker in workers if worker.error]:
            raise errors[0]
        return [sitting.queue for sitting in sittings]

    def _split(self, now: Round) -> list[Mapping[str, int] | None]:
        """The most bytes of each turn by device where turns are side by side: its need, and a fair part of the rest."""
        if len(now.turns) == 1:
            return [None]
        room = {place.name: place.room for place in self._places()}
        needs = [{name: self.least(turn, name) for name in turn.devices} for turn in now.turns]
        taken: Counter[str] = Counter()
        for need in needs:
            taken.update(need)
        users = Counter(name for need in needs for name in need)
        return [
            {name: size + (room[name] - taken[name]) // users[name] for name, size in need.items()} for need in needs
        ]

    def least(self, turn: Turn, name: str) -> int:
        """The bytes that a turn cannot do without on a device."""
        need = self.need_of(self._grid[turn.model_pass])
        if name == self._crew.host.name:
            return need.host
        return need.streamed if turn.streamed else need.whole

    def _sit(self, turn: Turn, stack: ExitStack, most: Mapping[str, int] | None, *, may_wait: bool) -> "_Sitting":
        """Lease the devices of a turn and attach its model to each; what finds no room beside others may wait."""
        cells = self._grid[turn.model_pass]
        sitting = _Sitting(self, cells, turn, stack, most)
        try:
            sitting.begin()
        except UnavailableError as error:
            sitting.queue.failed = None if may_wait else error.with_traceback(None)
        return sitting

    def _prefetch(self, now: Round) -> None:
        """Read the next model's weights while this round computes; only GPUs are attached from host masters."""
        following = [number for number, left in enumerate(self._left) if left]
        after = [number for number in following if number not in {turn.model_pass for turn in now.turns}]
        if after and self._crew.devices[0] is not self._crew.host:
            cells = self._grid[after[0]]
            self._crew.masters.prefetch(cells.card, self.law_of(cells, self._crew.devices[0]).weights)

    def lose(self, device: Device, reason: str) -> None:
        """A lost device is in no further round, and no receipt can speak of it; called from any worker."""
        with self._lock:
            known = device.name in self._lost
            self._lost.add(device.name)
        self._crew.lessor.lose(device)
        if not known:
            self._crew.emit(DeviceLost(device=device.name, reason=reason))

    def _close(self, turn: Turn, queue: Queue, seconds: float) -> None:
        done, self._last = set(queue.committed), turn.model_pass
        self._left[turn.model_pass] = [index for index in self._left[turn.model_pass] if index not in done]
        self._seconds[turn.model_pass] += seconds
        if queue.failed:
            error = queue.failed
            known = isinstance(error, InterlockError)
            self._fail(turn.model_pass, str(error) if known else f"{type(error).__name__}: {error}")
        elif not self._left[turn.model_pass]:
            cells, device = self._grid[turn.model_pass], ",".join(turn.devices)
            event = completed(cells, self._weights[turn.model_pass], device, self._seconds[turn.model_pass])
            self._crew.emit(event)

    def _fail(self, model_pass: int, reason: str) -> None:
        """This pass will not be complete; the others go on."""
        self._left[model_pass] = []
        self._crew.emit(PassFailed(model_pass=model_pass, model=self._grid[model_pass].card.key, reason=reason))


def completed(cells: Cells, weight: float, device: str, seconds: float) -> EnsemblePassCompleted:
    """The end of a pass: its rows in all sessions, and the seconds of its turns in this one."""
    return EnsemblePassCompleted(
        model_pass=cells.model_pass,
        model=cells.card.key,
        device=device,
        dtype=cells.card.dtype,
        weight=weight,
        rows=sum(len(batch.rows) for batch in cells.batches),
        seconds=round(seconds, 3),
    )


class _Sitting:
    """One model's turn in a round: its lease, its seats on devices, and where a piece of its work can go from them."""

    lease: Lease

    def __init__(
        self, rounds: Rounds, cells: Cells, turn: Turn, stack: ExitStack, most: Mapping[str, int] | None
    ) -> None:
        self.queue = Queue(cells, turn.batches)
        self.seats: list[Seat] = []
        self._rounds = rounds
        self._crew = rounds._crew
        self._cells = cells
        self._turn = turn
        self._stack = stack
        self._most = most
        self._host: Seat | None = None
        self._lock = RLock()

    def begin(self) -> None:
        """Lease and attach; on the host where no GPU takes it. Raises UnavailableError where nothing does."""
        crew, cells = self._crew, self._cells
        devices = [device for device in (*crew.devices, crew.host) if device.name in self._turn.devices]
        devices = list({device.name: device for device in devices}.values())
        devices = self._still_roomy(devices)
        if not devices:
            self._sit_on_host(f"no room is left on {', '.join(self._turn.devices)}")
            return
        self.lease = self._leased(devices, streamed=self._turn.streamed)
        if devices[0] is crew.host:
            self.seats = [self._seat_on_host(self.lease)]
            return
        master, warm = crew.masters.take(cells.card)
        self._stack.callback(crew.masters.give_back, cells.card, master)
        self.seats = [seat for device in devices if (seat := self._seat(device, master, warm))]
        if not self.seats:
            self._sit_on_host(f"it could not be attached to {', '.join(self._turn.devices)}")

    def rise(self) -> Mapping[tuple[int, str], Calibration]:
        """Let go of the seats; what they have learnt of the memory law."""
        learnt = {(self._cells.model_pass, seat.device.name): seat.calibration for seat in self.seats}
        self.seats, self._host = [], None
        return learnt

    def tell_lost(self, device: Device, reason: str) -> None:
        """A device of this turn was lost in the middle of it."""
        if device.name in self._turn.devices:
            action = "what it had not committed is computed on what is left"
            self._told(Rung.RELOCATE, f"{device.name} was lost: {reason}", action, device, None)

    def lose(self, seat: Seat, reason: str) -> None:
        """A device was lost under a piece that had come there from another one."""
        self._rounds.lose(seat.device, reason)

    def other(self, seat: Seat) -> Seat | None:
        """The same model on another healthy device of its lease."""
        usable = [each for each in self.seats if each is not seat and each.device.name not in self.lease.lost]
        return usable[0] if usable else None

    def host_possible(self) -> bool:
        """Whether the fallback is allowed, and host memory suffices."""
        crew, cells = self._crew, self._cells
        if crew.devices[0] is crew.host or not crew.controls.cpu_fallback:
            return False
        return self._host is not None or self._rounds.need_of(cells).host <= crew.lessor.budget(crew.host)

    def host(self) -> Seat | None:
        """The same model on the CPU in float32, attached when it is first asked for."""
        with self._lock:
            if self._host is None and self.host_possible():
                self._host = self._seat_on_host(self._leased([self._crew.host], streamed=False))
            return self._host

    def _still_roomy(self, devices: Sequence[Device]) -> list[Device]:
        """Those that still have what the turn was promised: others may have taken it since, and it is told."""
        room = {device.name: self._crew.lessor.budget(device) for device in devices}
        needed = {device.name: self._rounds.least(self._turn, device.name) for device in devices}
        short = [device for device in devices if needed[device.name] > room[device.name]]
        if short == [self._crew.host]:
            return list(devices)  # the lease says what it lacks
        for device in short:
            of = f"{human_bytes(max(0, room[device.name]))} of {human_bytes(needed[device.name])}"
            action = f"{device.name} is left out of this lease"
            self._told(Rung.RELOCATE, f"{of} are left on {device.name}", action, device, None)
        return [device for device in devices if device not in short]

    def _sit_on_host(self, cause: str) -> None:
        """No GPU takes it. Raises UnavailableError where the host may not either."""
        seat = self.host() if self.host_possible() else None
        if seat is None:
            key = self._cells.card.key
            raise UnavailableError(f"{key}: {cause}, and not on the CPU: free memory, or leave it out of --roster")
        self._told(Rung.CPU, cause, "computed on the CPU in float32", seat.device, None)
        self.seats = [seat]

    def _leased(self, devices: Sequence[Device], *, streamed: bool) -> Lease:
        crew, cells = self._crew, self._cells
        needs = {device.name: self._rounds.least(self._turn, device.name) for device in devices}
        shared = bool(self._most) or (devices[0] is crew.host and devices[0] is not crew.devices[0])
        lease = self._stack.enter_context(
            crew.lessor.lease(cells.card.key, needs, self._released, shared=shared, most=self._most)
        )
        law = self._rounds.law_of(cells, devices[0])
        predicted = cells.layout.predicted_bytes(law, first_calibration(devices[0]))
        crew.emit(
            LeaseGranted(
                lease=lease.id,
                model_pass=cells.model_pass,
                model=cells.card.key,
                devices=[device.name for device in devices],
                device_kind=devices[0].kind,
                budget_bytes=lease.budget,
                predicted_bytes=min(predicted, lease.budget),
                batches=len(self._turn.batches),
                rows=sum(len(cells.batches[index].rows) for index in self._turn.batches),
                budgets=dict(lease.budgets),
                schedule=crew.controls.schedule,
                streamed=streamed,
            )
        )
        return lease

    def _released(self, lease: Lease) -> None:
        crew, cells = self._crew, self._cells
        crew.emit(
            LeaseReleased(
                lease=lease.id,
                model_pass=cells.model_pass,
                model=cells.card.key,
                held_seconds=round(lease.held_seconds, 3),
                receipts=lease.receipts,
            )
        )
        for found in lease.residues:
            crew.emit(
                ResidueFound(
                    lease=lease.id, device=found.device, bytes=found.bytes, action=found.action, left_bytes=found.left
                )
            )
        for overrun in lease.overruns():
            crew.emit(Warned(message=f"lease {lease.id}: {overrun}"))

    def _seat_on_host(self, lease: Lease) -> Seat:
        host, card = self._crew.host, self._rounds.card_on(self._cells, self._crew.host)
        began = time.monotonic()
        attached = attach_to_host(card, host)
        return self._seated(host, attached, lease, time.monotonic() - began, warm=False)

    def _seat(self, device: Device, master: Master, warm: bool) -> Seat | None:
        """Attach to a GPU, streamed where the whole does not go; None, and told, where nothing goes."""
        began, message = time.monotonic(), ""
        streams = bool(self._rounds.law_of(self._cells, device).slots)
        for streamed in [self._turn.streamed] * TRIES + [True] * streams:
            attached, failure = self._attached(device, master, streamed)
            if attached:
                if message:
                    rung = Rung.REPLAN if streamed == self._turn.streamed else Rung.STREAM
                    action = "attached at the next try" if rung is Rung.REPLAN else "its layers are streamed instead"
                    self._told(rung, message, action, device, began)
                return self._seated(device, attached, self.lease, time.monotonic() - began, warm)
            message = failure
        self._told(Rung.RELOCATE, message, f"{device.name} is left out of this lease", device, began)
        return None

    def _attached(self, device: Device, master: Master, streamed: bool) -> tuple[Replica | None, str]:
        try:
            return Replica(master, device, streamed=streamed), ""
        except Exception as error:
            message = f"attaching to {device.name} failed: {str(error).partition(chr(10))[0]}"
            lost = classify(error) is Trouble.LOST
        if lost:
            self._rounds.lose(device, message)
        else:
            device.reclaim()
        return None, message

    def _seated(self, device: Device, attached: Attached, lease: Lease, seconds: float, warm: bool) -> Seat:
        crew, cells = self._crew, self._cells
        streamed = isinstance(attached, Replica) and attached.streamed
        law = self._rounds.law_of(cells, device)
        crew.emit(
            ModelAttached(
                lease=lease.id,
                model=cells.card.key,
                bytes=0 if streamed else law.weights if device.metered else attached.bytes,
                seconds=round(seconds, 3),
                device=device.name,
                warm=warm,
                streamed=streamed,
            )
        )
        encoder = crew.encoders(cells.card, attached.network, device)
        calibration = self._rounds.calibration_of(cells, device)
        return Seat(device, attached, encoder, law, calibration, lease, crew.lessor)

    def _told(self, rung: Rung, cause: str, action: str, device: Device, began: float | None) -> None:
        self._crew.emit(
            Mitigated(
                model_pass=self._cells.model_pass,
                batch_index=None,
                cause=cause,
                action=action,
                rows=sum(len(self._cells.batches[index].rows) for index in self._turn.batches),
                cost_seconds=round(time.monotonic() - began, 6) if began else 0.0,
                rung=rung,
                device=device.name,
            )
        )
