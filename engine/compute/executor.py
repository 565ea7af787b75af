"""Computes the grid placement by placement: lease, load, compute, release, and again until no batch is left.

The models of a placement live in one frame (`_compute`), so that nothing refers to them when their leases end. Leases
end on every way out. A lost device is in no further placement, a failed pass costs the others nothing, and what was
left undone is in the next placement.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from threading import RLock

from interlock.engine.compute.batch_runner import BatchRunner
from interlock.engine.compute.checks.canary import Canaries, in_wider
from interlock.engine.compute.context import MemoryPlanner, RunContext, rooms
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.resident import ResidentModel
from interlock.engine.compute.schedule import Assignment, DeviceRoom, Placement, Schedule, budgets, next_placement
from interlock.engine.compute.source import BatchSource, Queue, indices
from interlock.engine.compute.worker import Worker, run_all, without_frames
from interlock.engine.errors import InterlockError, NoDeviceError, Stopped, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import TooSmall, too_small
from interlock.engine.record.events import DeviceLost, Mitigated
from interlock.engine.record.facts import joined
from interlock.engine.record.words import several


class PassExecutor:
    """Computes the passes of a run over their grid; `run` may be called once."""

    def __init__(self, source: BatchSource, context: RunContext) -> None:
        self._source = source
        self._grid = source.grid
        self._context = context
        self._lost: set[str] = set()
        self._waited: set[int] = set()
        """Passes that found no room when they were due, and have not computed since."""
        self._on_host: set[int] = set()
        """Passes of which it was told that no GPU has room for them."""
        self._paused: dict[int, set[int]] = {}
        """Companions that wait until a pass that was short of memory beside them has ended."""
        self._lock = RLock()
        self._last: int | None = None
        self._assignments: Sequence[Assignment] = ()
        self._queues: list[Queue] = []
        self._free: Sequence[DeviceRoom] = ()
        self._planner = MemoryPlanner(context.devices, context.host, context.backend.laws)
        self._canaries = Canaries(context, self._planner)

    def run(self) -> None:
        """Compute everything that is left. Raises Stopped between two batches when asked to."""
        emit, controls = self._context.emit, self._context.controls
        controls.attend(self, emit)
        try:
            while self._source.more():
                controls.apply_pending(emit)
                if controls.stop_requested:
                    whose = "the deadline" if self._context.deadline.near else controls.stopped_by
                    raise Stopped(f"stopped by {whose} between batches: --resume continues")
                self._free = self._rooms()
                self._stop_without_gpus()
                now = self._next(controls.schedule, self._source.left)
                if now is None:
                    assert not self._source.last, "there are batches left"
                    continue  # they have just become another source's
                for model_pass, reason in now.refused.items():
                    self._source.fail(model_pass, reason)
                if now.assignments and self._in_time(now):
                    self._place(now)
        finally:
            if self._source.last:
                self._context.masters.close()
        if self._source.last:
            controls.end(emit)

    def preview(self, schedule: Schedule) -> Placement | None:
        """Find what another schedule would lease next; None: nothing is left. For a front end's thread."""
        committed = {queue.job.model_pass: indices(queue.committed) for queue in self._queues}
        return self._next(schedule, self._source.without(committed))

    def unaffected_by(self, schedule: Schedule) -> bool:
        """Whether another schedule would have the same models go on with the same batches where they are."""
        then = self.preview(schedule)
        return (
            then is not None
            and not then.refused
            and len(then.assignments) == len(self._assignments)
            and all(
                (assignment.model_pass, assignment.devices, assignment.streamed)
                == (now.model_pass, now.devices, now.streamed)
                and set(queue.left()) <= set(assignment.batches) <= set(now.batches)
                for assignment, now, queue in zip(then.assignments, self._assignments, self._queues, strict=True)
            )
        )

    def unplaceable(self) -> dict[int, str]:
        """Tell which passes would fit nowhere, even with every device to themselves, and why."""
        fallback, refused = self._context.controls.cpu_fallback, {}
        for number, job in self._grid.items():
            batches, need = self._source.left[number], self._planner.of(job.layout)
            alone = next_placement(Schedule.EXCLUSIVE, [batches], [need], self._rooms(), 0, None, cpu_fallback=fallback)
            if alone and alone.refused:
                refused[number] = alone.refused[0]
        return refused

    def _next(self, schedule: Schedule, left: Sequence[Sequence[int]]) -> Placement | None:
        window, fallback = self._context.controls.window, self._context.controls.cpu_fallback
        needs = {number: self._planner.of(job.layout) for number, job in self._grid.items()}
        wait = set().union(*(others for first, others in [*self._paused.items()] if left[first]))
        left = [[] if number in wait else batches for number, batches in enumerate(left)]
        return next_placement(schedule, left, needs, self._free, window, self._last, cpu_fallback=fallback)

    def _rooms(self) -> list[DeviceRoom]:
        context = self._context
        healthy = [device for device in context.devices if device.name not in self._lost]
        found = rooms(healthy, context.host, context.lessor, cpu_fallback=context.controls.cpu_fallback)
        for device in healthy:
            if device.lost:
                self.lose(device, "does not respond")
        return [free for free in found if free.name not in self._lost]

    def _stop_without_gpus(self) -> None:
        """Raise Stopped once the last GPU is lost: to this process only, and the CPU may take days for the rest."""
        names = [device.name for device in self._context.devices if device is not self._context.host]
        if names and self._lost.issuperset(names):
            raise Stopped(
                f"no GPU is left: {', '.join(names)} lost to this process; --resume continues in a new one, which can "
                "use them again, and --resume --devices cpu on the CPU"
            )

    def _in_time(self, now: Placement) -> bool:
        """Whether a placement can be opened, and do a batch, before the deadline."""
        first, weights = now.assignments[0], self._weights_of(now)
        return self._context.deadline.allows_lease(weights, self._grid[first.model_pass], first.batches[0])

    def _weights_of(self, now: Placement) -> int:
        """The bytes of the models of a placement."""
        device, cards = self._context.devices[0], [self._grid[each.model_pass].card for each in now.assignments]
        return sum(self._planner.law(self._planner.card_on(card, device), device).weights for card in cards)

    def _place(self, now: Placement) -> None:
        """Go through one placement, from the leases to the receipts."""
        self._last = now.assignments[-1].model_pass
        for assignment in now.assignments:
            self._tell_of_host(assignment, [each.model_pass for each in now.assignments if each is not assignment])
        with ExitStack() as stack:
            queues, errors = self._compute(now, stack)
        if errors:  # raised in the other frame, it would keep that and the models in it alive while their leases end
            raise errors[0]
        for assignment, queue in zip(now.assignments, queues, strict=True):
            self._close(assignment.model_pass, queue)

    def _tell_of_host(self, assignment: Assignment, beside_it: Sequence[int]) -> None:
        """Say that a pass is computed on the CPU although there are GPUs, once; other passes are `beside_it`."""
        context, model_pass = self._context, assignment.model_pass
        gpus = [device for device in context.devices if device is not context.host]
        if assignment.devices != (context.host.name,) or not gpus or model_pass in self._on_host:
            return
        self._on_host.add(model_pass)
        need = self._planner.of(self._grid[model_pass].layout)
        found = too_small(need.whole, need.streamed, gpus, context.lessor)
        if found:
            why, action = found.why, f"computing all of it on the CPU; {found.remedy}"
        else:
            beside = joined(self._grid[other].card.key for other in beside_it)
            why = f"finds no room beside {beside}" if beside else "finds no room on a GPU now"
            action = "computing it on the CPU until a GPU has room"
        cause = f"{self._grid[model_pass].card.key} {why}"
        self._mitigated(model_pass, Rung.CPU, cause, action, joined(gpu.name for gpu in gpus), found)

    def _compute(self, now: Placement, stack: ExitStack) -> tuple[list[Queue], list[Exception]]:
        """Load and compute; returns the queues, and errors that end the run.

        The models live in this frame only: when it returns, nothing refers to them any more.
        """
        context = self._context
        began = context.deadline.clock()
        residents: list[ResidentModel] = []
        for assignment, limits in zip(now.assignments, self._limits(now), strict=True):
            job = self._grid[assignment.model_pass]
            queue = self._source.queue(job, assignment)
            resident = ResidentModel(
                context, self._planner, self._canaries, queue, assignment, stack, limits, self.lose, self.make_room
            )
            residents.append(resident)
            try:
                resident.load()
            except (UnavailableError, NoDeviceError) as error:
                resident.queue.failed = without_frames(error)
        self._put_off(residents)
        self._assignments, self._queues = now.assignments, [resident.queue for resident in residents]
        self._prefetch(now)
        runners: dict[str, deque[BatchRunner]] = {}
        for resident in residents:
            if resident.instances:
                resident.queue.begin()
            for runner in resident.runners():
                runners.setdefault(runner.instance.device.name, deque()).append(runner)
        workers = [
            Worker(device, mine, context.emit, context.sync, context.controls, context.deadline, self._back)
            for mine in runners.values()
            for device in [mine[0].instance.device]
        ]
        context.deadline.learn_lease(self._weights_of(now), context.deadline.clock() - began)
        run_all(workers)
        for resident in residents:
            resident.unload()
        for worker in workers:
            if worker.lost_because:
                self.lose(worker.device, worker.lost_because)
                for resident in residents:
                    resident.report_lost(worker.device, worker.lost_because)
        return self._queues, [worker.error for worker in workers if worker.error]

    def _limits(self, now: Placement) -> Sequence[Mapping[str, int] | None]:
        """The bytes that each assignment may take by device, so that all fit side by side; None where it is alone."""
        if len(now.assignments) == 1:
            return [None]
        needs = [
            {name: self._planner.least(self._grid[each.model_pass].layout, each, name) for name in each.devices}
            for each in now.assignments
        ]
        return budgets(needs, self._free)

    def _put_off(self, residents: Sequence[ResidentModel]) -> None:
        """Let models that found no room wait while others compute, or once where there is a GPU that was not tried.

        Every other one has failed: it would wait for ever.
        """
        others_compute = any(resident.instances for resident in residents)
        for resident in residents:
            model_pass, devices = resident.assignment.model_pass, resident.assignment.devices
            elsewhere = any(free.is_gpu and free.name not in devices for free in self._free)
            if resident.instances:
                self._waited.discard(model_pass)
            elif others_compute or (elsewhere and model_pass not in self._waited):
                self._waited.add(model_pass)
                resident.queue.failed = None

    def _prefetch(self, now: Placement) -> None:
        """Read the weights of the model that comes next while this placement computes, if it goes to a GPU."""
        done = {assignment.model_pass: assignment.batches for assignment in now.assignments}
        then = self._next(self._context.controls.schedule, self._source.without(done))
        for assignment in then.assignments if then else ():
            if assignment.model_pass not in done and assignment.devices != (self._context.host.name,):
                device = self._context.devices[0]
                card = self._planner.card_on(self._grid[assignment.model_pass].card, device)
                self._context.masters.prefetch(card, self._planner.law(card, device).weights)
                return

    def lose(self, device: Device, reason: str) -> None:
        """Leave a lost device out of all further placements, and out of the receipts; called from any worker."""
        with self._lock:
            known = device.name in self._lost
            self._lost.add(device.name)
            self._free = [free for free in self._free if free.name not in self._lost]
        self._context.lessor.lose(device, reason)
        if not known:
            self._context.emit(DeviceLost(device=device.name, reason=reason))
            self._move_stranded()

    def make_room(self, model_pass: int, device: Device) -> bool:
        """Have the companions on a device pause until the first pass there has ended, because memory is short for a
        text of `model_pass`; tell whether there are any. Called from any worker."""
        with self._lock:
            beside = [each.model_pass for each in self._assignments if device.name in each.devices]
            others = {*beside[1:]} - self._paused.setdefault(beside[0], set()) if beside else set()
            if not others:
                return False
            self._paused[beside[0]] = self._paused[beside[0]] | others  # a front end may walk the old set
        primary, pressed = self._grid[beside[0]].card.key, self._grid[model_pass].card.key
        for companion in sorted(others):
            cause = f"memory is short for a text of {pressed} on {device.name}, which both use"
            action = f"pausing {self._grid[companion].card.key} until {primary} has ended"
            self._mitigated(companion, Rung.REPLAN, cause, action, device.name)
        self._context.controls.rearrange()
        return True

    def _move_stranded(self) -> None:
        """Have a model whose GPU was lost placed beside the others now, and not when they have ended."""
        stranded = {each.model_pass for each in self._assignments if self._lost.issuperset(each.devices)}
        if stranded and len(stranded) < len(self._assignments):
            then = self.preview(self._context.controls.schedule)
            if then and stranded.intersection(each.model_pass for each in then.assignments):
                self._context.controls.rearrange()

    def _back(self) -> None:
        """Have what is left placed anew where a companion leaves the CPU by it; called from any worker that has nothing
        left, whose models are released then."""
        host = (self._context.host.name,)
        there = {each.model_pass for each in self._assignments if each.devices == host}
        then = self.preview(self._context.controls.schedule) if there and len(self._assignments) > 1 else None
        if then and any(each.model_pass in there and each.devices != host for each in then.assignments):
            self._context.controls.rearrange()

    def _close(self, model_pass: int, queue: Queue) -> None:
        self._source.take_in(model_pass, queue.committed)
        if queue.narrow:
            self._widen(model_pass, queue)
        elif queue.failed:
            error = queue.failed
            known = isinstance(error, InterlockError)
            self._source.fail(model_pass, str(error) if known else f"{type(error).__name__}: {error}")
        else:
            self._source.close(model_pass)

    def _widen(self, model_pass: int, queue: Queue) -> None:
        """Have the rest of a pass computed in the next wider precision."""
        job, device = self._grid[model_pass], self._context.devices[0]
        now = self._planner.card_on(job.card, device)
        then = in_wider(now, job.card)
        assert then is not None, "a pass in float32 has no wider precision"
        self._planner.settle(then)
        self._planner.forget(model_pass)
        cause = f"{several(queue.refused, 'text')} in a row without a valid vector in {now.dtype}"
        rung = Rung.FLOAT32 if then.dtype == "float32" else Rung.REPLAN
        on = next(each.devices for each in self._assignments if each.model_pass == model_pass)
        self._mitigated(model_pass, rung, cause, f"computing the rest in {then.dtype}", joined(on))

    def _mitigated(
        self, model_pass: int, rung: Rung, cause: str, action: str, device: str, found: TooSmall | None = None
    ) -> None:
        """Emit a step that concerns all that a pass has left; its model stays there where no GPU holds it."""
        self._context.emit(
            Mitigated(
                model_pass=model_pass,
                cause=cause,
                action=action,
                rows=self._source.rows_left(model_pass),
                rung=rung,
                device=device,
                stays=bool(found),
                flags=found.flags if found else (),
            )
        )
