"""A node's side of the exchange: what it was handed and has to tell, between the thread that exchanges with the head
and those that compute.

The passes code pulls from here as it does from a source of its own: one that has what the head has opened, queues
that fill while they are worked off, and ids that came with the batches.
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from msgspec.structs import replace

from interlock.engine.compute.cluster.messages import Assigned, NodeEvent, Orders, Phase, Report, Texts, TokenFacts
from interlock.engine.compute.controls import NO, YES, Controls
from interlock.engine.compute.grid import Cells
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.schedule import Assignment, Schedule
from interlock.engine.compute.source import BatchSource, Queue
from interlock.engine.corpus.tokens import Ids, Tokenised
from interlock.engine.errors import Stopped
from interlock.engine.record.events import AnyEvent, BatchCommitted, Emit, Heartbeat, RowParked

MOST_BYTES = 64 << 20
"""Of outputs that wait for the head: beyond it, whoever commits waits too."""
MOST_AHEAD = 64
"""Batches that a queue holds at most."""
GLANCE = 0.05
"""Seconds that a worker without work waits before it looks again what an operator wants."""
_FADES = 0.8


class NodeFeed:
    """What lies between the two sides; for any thread."""

    def __init__(self, controls: Controls) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.phase = Phase()
        self.over = False
        self._controls = controls
        self._closed: frozenset[int] = frozenset()
        self._refused: dict[int, str] = {}
        self._held: dict[int, dict[int, None]] = defaultdict(dict)
        self._queues: dict[int, RemoteQueue] = {}
        self._news: list[NodeEvent] = []
        self._bytes = 0
        self._parked: dict[tuple[int, int | None], list[AnyEvent]] = defaultdict(list)
        self._ids: dict[int, dict[int, Ids]] = defaultdict(dict)
        self._asked: dict[int, set[int]] = defaultdict(set)
        self._working = self._ended = 0
        self._trouble = ""
        self._pressing = False
        """Whether there is something that the head should hear at once."""
        self._round_trip = self._batch = 0.0
        """Seconds from a report to the orders that follow it, and of a batch on a device, as they were lately."""
        self._reported = 0.0

    # What the head says and hears.

    def follow(self, orders: Orders) -> None:
        """Take in what the head wants from now on."""
        with self.changed:
            if self._reported:
                self._round_trip = _lately(self._round_trip, time.monotonic() - self._reported)
            if orders.phase.number != self.phase.number:
                self.phase, self._closed, self._refused = orders.phase, frozenset(), {}
                self._controls.rearrange()
            self._closed |= orders.closed
            for handed in orders.handed:
                self._take(handed)
            for model_pass, batches in orders.dropped.items():
                for batch in batches:
                    self._drop(model_pass, batch)
            for texts in orders.texts:
                self._keep(texts)
            self._steer(orders)
            self.changed.notify_all()

    def report(self, wait: float) -> Report:
        """Say what is new, at once where anything is pressing, else after `wait` seconds."""
        with self.changed:
            self.changed.wait_for(lambda: self._pressing or self.over, wait)
            self._pressing = False
            news, self._news, self._bytes = self._news, [], 0
            self._reported = time.monotonic()
            self.changed.notify_all()
            return Report(
                news,
                {number: wants for number, queue in self._queues.items() if (wants := self._wants(queue)) > 0},
                {number: sorted(texts) for number, texts in self._asked.items() if texts},
                dict(self._refused),
                self.phase.number,
                self._working,
                self._ended,
                {
                    "pause": YES if self._controls.paused else NO,
                    "cpu_fallback": YES if self._controls.cpu_fallback else NO,
                    "schedule": self.phase.schedule,
                },
                self._trouble,
            )

    def nudge(self) -> None:
        """Have a report that waits go now."""
        with self.changed:
            self._pressing = True
            self.changed.notify_all()

    def end(self, trouble: str = "") -> None:
        """Nothing more is computed; `trouble` says why, where the head does not know."""
        with self.changed:
            self.over, self._trouble = True, trouble or self._trouble
            self.nudge()

    # What those who compute ask and tell.

    def emit(self, event: AnyEvent) -> None:
        """Tell the head of an event. That a row was parked counts only with its batch, and goes with it."""
        with self.changed:
            if isinstance(event, RowParked) and event.batch_index is not None:
                self._parked[event.model_pass, event.batch_index].append(event)
                return
            self._news.append(NodeEvent(event))
            if not isinstance(event, Heartbeat):
                self.nudge()

    def commit(self, event: BatchCommitted, outputs: Outputs) -> bool:
        """Tell the head of a batch with its outputs; waits while too much is on its way. False where it counts no more,
        since another node was first."""
        with self.changed:
            self.changed.wait_for(lambda: self._bytes < MOST_BYTES or self.over)
            before = self._parked.pop((event.model_pass, event.batch_index), [])
            self._batch = _lately(self._batch, event.seconds)
            if event.batch_index not in self._held[event.model_pass]:
                return False
            self._forget(event.model_pass, event.batch_index)
            self._news.append(NodeEvent(event, outputs, before))
            self._bytes += outputs.bytes
            self.nudge()
            return True

    def next_phase(self, done: int) -> Phase | None:
        """Wait until a phase is open that has work for this node, and say which; None: the run is over. Of the phase
        `done` everything has been given back where another is open."""
        with self.changed:
            while not self.over:
                if self.phase.number != done:
                    for number in [*self._held]:
                        self._clear(number)
                if any(self.open(number) for number in self.phase.batches):
                    self._working = self.phase.number
                    return self.phase
                for number in [*self._held]:
                    self._clear(number)
                if self._ended != self.phase.number:
                    self._working, self._ended = 0, self.phase.number
                    self.nudge()
                done = self.phase.number
                self.changed.wait()
            return None

    def open(self, model_pass: int) -> bool:
        """Whether batches of a pass may come."""
        return (
            not self.over
            and model_pass in self.phase.batches
            and model_pass not in self._closed
            and model_pass not in self._refused
        )

    def attach(self, queue: "RemoteQueue") -> list[int]:
        """Let what comes for a pass go into a queue; returns what is there for it already."""
        with self.changed:
            self._queues[queue.cells.model_pass] = queue
            self.nudge()
            return list(self._held[queue.cells.model_pass])

    def detach(self, model_pass: int) -> None:
        """The queue of a pass is worked off or given up."""
        with self.changed:
            self._queues.pop(model_pass, None)

    def refuse(self, model_pass: int, reason: str) -> None:
        """Have no more of a pass in this phase."""
        with self.changed:
            self._refused[model_pass] = reason
            self._clear(model_pass)
            self.nudge()

    def ids_of(self, model_pass: int, text: int) -> Ids:
        """Return the stored ids of a text; those that came with no batch are asked for and waited for."""
        with self.changed:
            while text not in self._ids[model_pass]:
                if self.over:
                    raise Stopped("the head of the run is gone: --resume continues there")
                self._asked[model_pass].add(text)
                self.nudge()
                self.changed.wait()
            return self._ids[model_pass][text]

    # All below hold the lock.

    def _steer(self, orders: Orders) -> None:
        before = self._controls.paused, self._controls.cpu_fallback
        self._controls.paused, self._controls.cpu_fallback = orders.paused, orders.cpu_fallback
        self._pressing |= before != (orders.paused, orders.cpu_fallback)

    def _wants(self, queue: "RemoteQueue") -> int:
        """As many batches as hide the way to the head and back, and one more for each device."""
        if not self.open(queue.cells.model_pass):
            return 0
        hidden = math.ceil(self._round_trip / self._batch) if self._batch else 1
        return min(MOST_AHEAD, queue.devices * (1 + hidden)) + queue.devices - len(queue.left())

    def _take(self, handed: Assigned) -> None:
        number = handed.texts.model_pass
        self._keep(handed.texts)
        for batch in handed.batches:
            self._held[number][batch] = None
        if (queue := self._queues.get(number)) is not None:
            queue.fill(handed.batches)

    def _keep(self, texts: Texts) -> None:
        known = self._ids[texts.model_pass]
        for text, ids in zip(texts.texts.tolist(), np.split(texts.ids, texts.ends[:-1]), strict=True):
            known[text] = ids
        self._asked[texts.model_pass] -= {*texts.texts.tolist()}

    def _drop(self, model_pass: int, batch: int) -> None:
        if batch in self._held[model_pass]:
            self._forget(model_pass, batch)
            if (queue := self._queues.get(model_pass)) is not None:
                queue.drop(batch)

    def _clear(self, model_pass: int) -> None:
        self._held.pop(model_pass, None)
        self._ids.pop(model_pass, None)

    def _forget(self, model_pass: int, batch: int) -> None:
        self._held[model_pass].pop(batch)
        if (queue := self._queues.get(model_pass)) is not None:
            for text in queue.cells.batches[batch].rows.tolist():
                self._ids[model_pass].pop(text, None)


class RemoteQueue(Queue):
    """A queue that fills while it is worked off; batches that it commits go to the head with their outputs."""

    def __init__(self, cells: Cells, feed: NodeFeed, phase: int, devices: int) -> None:
        """`devices` compute it side by side, in the phase of this number."""
        super().__init__(cells, ())
        self._phase = phase
        self.devices = devices
        self._feed = feed

    def begin(self) -> None:
        with self._feed.changed:
            self._left.extend(self._feed.attach(self))

    @property
    def open(self) -> bool:
        now = self._feed.phase.number == self._phase
        return now and super().open and self._feed.open(self.cells.model_pass)

    def more(self) -> bool:
        with self._feed.changed:
            if self.open and not self._left:
                self._feed.changed.wait(GLANCE)
            return self.open

    def commit(self, event: BatchCommitted, outputs: Outputs, emit: Emit) -> None:
        event = replace(event, crc=outputs.crc())
        if self._feed.commit(event, outputs):
            self.committed.append(event)

    def sync(self) -> None:
        """Nothing is written here."""

    def fill(self, batches: Sequence[int]) -> None:
        """Add batches."""
        self._left.extend(batches)

    def drop(self, batch: int) -> None:
        """Leave a batch out that nobody has begun."""
        with suppress(ValueError):  # somebody has begun it
            self._left.remove(batch)


class RemoteSource(BatchSource):
    """What the head has opened of the grid; what comes of it is the head's to say."""

    def __init__(self, grid: Sequence[Cells], roster: int, feed: NodeFeed, controls: Controls) -> None:
        self._phase = Phase()
        super().__init__(grid, [() for _ in grid], [0.0] * roster, feed.emit)
        self._feed = feed
        self._controls = controls

    def more(self) -> bool:
        phase = self._feed.next_phase(self._phase.number)
        if phase is None:
            return False
        self._phase = phase
        self._controls.schedule = Schedule(phase.schedule)
        self.left = [
            list(phase.batches.get(number, ())) if self._feed.open(number) else [] for number in range(len(self.left))
        ]
        return any(self.left) or self.more()

    def queue(self, cells: Cells, assignment: Assignment) -> Queue:
        return RemoteQueue(cells, self._feed, self._phase.number, len(assignment.devices))

    def without(self, done: Mapping[int, Iterable[int]]) -> list[list[int]]:
        """With what comes later, so that it can be read ahead."""
        later = self._phase.later
        return [left or list(later.get(number, ())) for number, left in enumerate(super().without(done))]

    def take_in(self, model_pass: int, committed: Sequence[BatchCommitted]) -> None:
        self._feed.detach(model_pass)

    def close(self, model_pass: int) -> None:
        """The head knows when a pass has ended."""

    def fail(self, model_pass: int, reason: str) -> None:
        self.left[model_pass] = []
        self._feed.refuse(model_pass, reason)


class RemoteTokens(Tokenised):
    """The ids of texts as they came with the batches of a pass."""

    def __init__(self, facts: TokenFacts, model_pass: int, feed: NodeFeed) -> None:
        super().__init__(facts.lengths, facts.specials)
        self._model_pass = model_pass
        self._feed = feed

    def stored(self, text: int) -> Ids:
        return self._feed.ids_of(self._model_pass, text)


def _lately(before: float, seconds: float) -> float:
    return seconds if not before else _FADES * before + (1 - _FADES) * seconds
