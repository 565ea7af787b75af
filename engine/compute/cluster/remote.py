"""A node's source of batches, which the head fills; the queues that its executor takes from; ids that came along."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np

from interlock.engine.compute.cluster.messages import GridPlan, Handed, NodeEvent, Orders, PassPlan, Report
from interlock.engine.compute.context import Deadline
from interlock.engine.compute.controls import YES, Controls
from interlock.engine.compute.job import Job
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.compute.schedule import Assignment, Schedule
from interlock.engine.compute.source import BatchSource, Queue
from interlock.engine.corpus.tokens import Ids, Tokenised
from interlock.engine.errors import ExitCode, Stopped
from interlock.engine.models.card import ModelCard
from interlock.engine.record import events as ev

MOST_BYTES = 64 << 20
"""Of outputs that wait for the head: beyond it, whoever commits waits too."""
MOST_AHEAD = 64
"""Batches that a queue holds at most."""
GLANCE = 0.05
"""Seconds that a worker without work waits before it looks again what an operator wants."""
_FADES = 0.8


class RemoteSource(BatchSource):
    """What waits at the head, what was handed of it, and what it is to hear. For any thread."""

    def __init__(self, plan: GridPlan, cards: Mapping[int, ModelCard], node: str = "") -> None:
        self.controls = Controls()
        self.deadline = Deadline(None, self.controls)
        self._changed = threading.Condition(threading.RLock())
        self._node = node
        self._asked_for = dict(plan.controls)
        self._held: dict[int, dict[int, None]] = defaultdict(dict)
        self._queues: dict[int, RemoteQueue] = {}
        self._ids: dict[int, dict[int, Ids]] = defaultdict(dict)
        self._asks: dict[int, set[int]] = defaultdict(set)
        self._dry: set[int] = set()
        self._parked: dict[tuple[int, int | None], list[ev.AnyEvent]] = defaultdict(list)
        self._refused: dict[int, str] = {}
        self._news: list[NodeEvent] = []
        self._bytes = 0
        self._idle = self._over = self._ended = False
        self._trouble = ""
        self._pressing = False
        """Whether there is something that the head should hear at once."""
        self._round_trip = self._batch = self._reported = 0.0
        """Seconds from a report to the orders that follow it, and of a batch on a device, as they were lately; when the
        last report went."""
        grid = [
            Job(
                each.model_pass,
                replace(each.layout, card=cards[each.model_pass]),
                RemoteTokens(each, self),
                PassFiles(),
            )
            for each in plan.passes
        ]
        super().__init__(grid, [() for _ in grid], [0.0] * plan.roster, self.emit)
        schedule, fallback = Schedule(plan.controls["schedule"]), plan.controls["cpu_fallback"] == YES
        self.controls.begin(schedule, plan.window, cpu_fallback=fallback)

    # What the head says and hears.

    def follow(self, orders: Orders) -> None:
        """Take in what the head answers."""
        with self._changed:
            if self._reported:
                self._round_trip = _lately(self._round_trip, time.monotonic() - self._reported)
            self.deadline.end_in(orders.seconds)
            for handed in orders.handed:
                self._take(handed)
            self._dry |= orders.dry
            for number, batches in orders.dropped.items():
                for batch in batches:
                    self._drop(number, batch)
            if self._idle and orders.left:
                self.left = [list(orders.left.get(number, ())) for number in range(len(self.left))]
                self._idle = not any(self.left)
            self._over |= orders.over or orders.stop
            if orders.stop:
                self.controls.stop(ExitCode.STOPPED)
            self._changed.notify_all()
        for control, value in orders.controls.items():
            if self._asked_for.get(control) != value:
                self._asked_for[control] = value
                self.controls.ask(control, value, "head")
        self.controls.settle(self.emit)

    def report(self, wait: float) -> Report:
        """Say what is new, at once where anything is pressing, else after `wait` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._pressing or self._ended, wait)
            self._pressing = False
            news, self._news, self._bytes = self._news, [], 0
            self._reported = time.monotonic()
            self._changed.notify_all()
            asks = {number: sorted(texts) for number, texts in self._asks.items() if texts}
            wants = {number: wants for number, queue in self._queues.items() if (wants := self._wants(queue))[0] > 0}
            refused, late = dict(self._refused), self.deadline.near
            return Report(news, wants, asks, refused, self._idle, late, self._ended, self._trouble)

    def nudge(self) -> None:
        """Have a report that waits, or else the next one, go now."""
        with self._changed:
            self._pressing = True
            self._changed.notify_all()

    def end(self, trouble: str = "") -> None:
        """Nothing more is computed; `trouble` says why, where the head does not know."""
        with self._changed:
            self._over = self._idle = self._ended = True
            self._trouble = trouble or self._trouble
            self.nudge()

    # What the executor and its workers ask and tell.

    def more(self) -> bool:
        """Have given back what was leased; wait until batches wait at the head, or nothing more will."""
        with self._changed:
            self._held.clear()
            self._ids.clear()
            self._queues.clear()
            self.left, self._idle = [[] for _ in self.left], True
            self.nudge()
            self._changed.wait_for(lambda: any(self.left) or self._over)
            self._dry = set()
            return not self._over

    def queue(self, job: Job, assignment: Assignment) -> Queue:
        return RemoteQueue(job, assignment, self)

    def attach(self, queue: "RemoteQueue") -> None:
        """Let what is handed of a pass from now on go into a queue."""
        with self._changed:
            self._queues[queue.job.model_pass] = queue
            self.nudge()

    def open(self, model_pass: int) -> bool:
        """Whether batches of a pass may come."""
        return not self._over and model_pass not in self._dry

    def glance(self) -> None:
        """Wait a moment, or until anything has changed."""
        with self._changed:
            self._changed.wait(GLANCE)

    def take_in(self, model_pass: int, committed: Sequence[ev.BatchCommitted]) -> None:
        """The head counts."""

    def close(self, model_pass: int) -> None:
        """The head knows when a pass has ended."""

    def fail(self, model_pass: int, reason: str) -> None:
        """Have no more of a pass."""
        with self._changed:
            self.left[model_pass] = []
            self._refused[model_pass] = reason
            self.nudge()

    def emit(self, event: ev.AnyEvent) -> None:
        """Tell the head of an event. That a row was parked counts only with its batch, and goes with it; a control that
        is applied is one that has reached this node."""
        with self._changed:
            if isinstance(event, ev.RowParked) and event.batch_index is not None:
                self._parked[event.model_pass, event.batch_index].append(event)
                return
            if isinstance(event, ev.ControlApplied):
                event = ev.ControlReached(node=self._node, control=event.control, value=event.value)
            self._news.append(NodeEvent(event))
            if not isinstance(event, ev.Heartbeat):
                self.nudge()

    def commit(self, event: ev.BatchCommitted, outputs: Outputs) -> bool:
        """Tell the head of a batch with its outputs; waits while too much is on its way. False where it counts no more,
        since another node was first."""
        number, batch = event.model_pass, event.batch_index
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < MOST_BYTES or self._ended)
            before = self._parked.pop((number, batch), [])
            self._batch = _lately(self._batch, event.seconds)
            if batch not in self._held[number]:
                return False
            self._forget(number, batch)
            self._news.append(NodeEvent(event, outputs, before))
            self._bytes += outputs.bytes
            self.nudge()
            return True

    def ids_of(self, model_pass: int, text: int) -> Ids:
        """Return the stored ids of a text; those that came with no batch are asked for and waited for."""
        with self._changed:
            while text not in self._ids[model_pass]:
                if self._ended:
                    raise Stopped("the head of the run is gone: --resume continues there")
                self._asks[model_pass].add(text)
                self.nudge()
                self._changed.wait()
            return self._ids[model_pass][text]

    # All below hold the lock.

    def _wants(self, queue: "RemoteQueue") -> tuple[int, int]:
        """As many batches as hide the way to the head and back, and one more for each device; and the last of them."""
        if not queue.open or not self.open(queue.job.model_pass):
            return 0, 0
        hidden = math.ceil(self._round_trip / self._batch) if self._batch else 1
        return min(MOST_AHEAD, queue.devices * (1 + hidden)) + queue.devices - len(queue.left()), queue.last

    def _take(self, handed: Handed) -> None:
        known = self._ids[handed.model_pass]
        for text, ids in zip(handed.texts.tolist(), np.split(handed.ids, handed.ends[:-1]), strict=True):
            known[text] = ids
        self._asks[handed.model_pass] -= known.keys()
        self._held[handed.model_pass].update(dict.fromkeys(handed.batches))
        if (queue := self._queues.get(handed.model_pass)) is not None:
            queue.fill(handed.batches)

    def _drop(self, model_pass: int, batch: int) -> None:
        """Leave out a batch that nobody has begun; of one that somebody has the head compares the result."""
        queue = self._queues.get(model_pass)
        if batch in self._held[model_pass] and (queue is None or queue.drop(batch)):
            self._forget(model_pass, batch)

    def _forget(self, model_pass: int, batch: int) -> None:
        del self._held[model_pass][batch]
        for text in self.grid[model_pass].batches[batch].rows.tolist():
            self._ids[model_pass].pop(text, None)


class RemoteQueue(Queue):
    """A queue that fills while it is worked off; batches that it commits go to the head with their outputs."""

    def __init__(self, job: Job, assignment: Assignment, source: RemoteSource) -> None:
        super().__init__(job, ())
        self.devices, self.last = len(assignment.devices), assignment.batches[-1]
        self._source = source

    def begin(self) -> None:
        self._source.attach(self)

    def more(self) -> bool:
        if self.open and not self._left and self._source.open(self.job.model_pass):
            self._source.glance()
            return True
        return bool(self)

    def commit(self, event: ev.BatchCommitted, outputs: Outputs, emit: ev.Emit) -> None:
        event = msgspec.structs.replace(event, crc=outputs.crc())
        if self._source.commit(event, outputs):
            self.committed.append(event)

    def sync(self) -> None:
        """Nothing is written here."""

    def fill(self, batches: Sequence[int]) -> None:
        """Add batches."""
        self._left.extend(batches)

    def drop(self, batch: int) -> bool:
        """Leave a batch out; whether nobody has begun it."""
        with suppress(ValueError):
            self._left.remove(batch)
            return True
        return False


class RemoteTokens(Tokenised):
    """The ids of texts as they came with the batches of a pass."""

    def __init__(self, plan: PassPlan, source: RemoteSource) -> None:
        super().__init__(plan.lengths, plan.specials)
        self._model_pass, self._source = plan.model_pass, source

    def stored(self, text: int) -> Ids:
        return self._source.ids_of(self._model_pass, text)


def _lately(before: float, seconds: float) -> float:
    return seconds if not before else _FADES * before + (1 - _FADES) * seconds
