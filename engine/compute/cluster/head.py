"""The head's side: opens phases on all nodes, hands their batches out by pull, and takes in what they give.

It alone writes and tells. What a node holds when it is lost goes back to the others and is computed once more; near
the end of a pass, what a slow node holds is given to another one too, and the first result counts.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from interlock.engine.compute.cluster.members import ClusterMember, ClusterMembers
from interlock.engine.compute.cluster.messages import (
    Assigned,
    GridPlan,
    NodeEvent,
    Orders,
    PassPlan,
    Phase,
    Report,
    Texts,
    TokenFacts,
)
from interlock.engine.compute.cluster.pool import BatchPool
from interlock.engine.compute.context import Deadline
from interlock.engine.compute.controls import NO, YES, Controls
from interlock.engine.compute.grid import Cells
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.schedule import Assignment, Placement, Schedule, due
from interlock.engine.compute.source import BatchSource
from interlock.engine.errors import Stopped, reason
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record import events as ev

TICK = 0.1
"""Seconds between two looks at operator, deadline and members where no node reports."""
SYNC_SECONDS = 1.0
ENDING = 600.0
"""Seconds for nodes to give their leases back once a phase has ended."""
RECEIPTS = 10.0
"""The same for nodes of which nothing more is needed, at the end of a run."""
_FADES = 0.7


@dataclass(eq=False)
class _Peer:
    """A node at work: what it was asked last, what it reported, and its pace."""

    member: ClusterMember
    report: Report = field(default_factory=Report)
    asked: float = 0.0
    answer: Future[Report] | None = None
    """What it is to answer; None while it waits for orders."""
    version: int = 0
    told: int = 0
    """The phase whose batches it knows."""
    pace: float = 0.0
    """Seconds for each unit of a batch's cost, on one device."""
    progress: float = 0.0
    """When it gave a batch last, or was handed the first."""
    dropped: dict[int, list[int]] = field(default_factory=dict)
    superseded: bool = False
    """Whether another node was first with a batch that this one may be computing still."""
    reached: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def devices(self) -> int:
        return len(self.member.devices)


class ClusterExecutor:
    """Computes what a run has left on the nodes of a cluster; `run` may be called once."""

    def __init__(
        self,
        source: BatchSource,
        members: ClusterMembers,
        controls: Controls,
        emit: ev.Emit,
        sync: Callable[[], None],
        deadline: Deadline,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._members = members
        self._controls = controls
        self._emit = emit
        self._sync_journal = sync
        self._deadline = deadline
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._inbox: SimpleQueue[tuple[_Peer, Future[Report]]] = SimpleQueue()
        self._phase = Phase()
        self._pools: dict[int, BatchPool] = {}
        self._closed: set[int] = set()
        self._committed: dict[int, list[ev.BatchCommitted]] = {}
        self._version = 0
        self._last: int | None = None
        self._looked, self._synced = -math.inf, clock()
        self._idle_since = clock()
        self._steered: set[str] = set()
        self._reorders = controls.reorders

    def unplaceable(self) -> dict[int, str]:
        """Tell which passes would fit on no node, and why on the first of them."""
        ready = self._members.ready
        everywhere = set.intersection(*({*member.refused} for member in ready)) if ready else set()
        return {number: ready[0].refused[number] for number in sorted(everywhere)}

    def preview(self, schedule: Schedule) -> Placement | None:
        """Find what another schedule would lease next on every node; None: nothing is left."""
        open_now = due(schedule, self._left(), self._controls.window, self._last)
        names = tuple(each.facts.name for peer in [*self._peers.values()] for each in peer.member.devices)
        if not open_now:
            return None
        return Placement(tuple(Assignment(number, tuple(batches), names) for number, batches in open_now.items()))

    def unaffected_by(self, schedule: Schedule) -> bool:
        """Whether another schedule would have the same passes open on all nodes as there are now."""
        then = due(schedule, self._left(), self._controls.window, self._last)
        now = {number for number, pool in [*self._pools.items()] if len(pool)}
        alone = len(then) == 1 and Schedule.SHARED not in (schedule, Schedule(self._phase.schedule))
        return alone and now == {*then} and all({*self._phase.batches[k]} >= {*then[k]} for k in then)

    def run(self) -> None:
        """Compute everything that is left. Raises Stopped between two batches when asked to."""
        self._controls.attend(self, self._emit)
        try:
            while self._source.more():
                self._stop_if_asked()
                self._look_around()
                self._open()
                while self._goes_on():
                    self._step()
                self._end_phase()
        finally:
            self._members.close()
        self._controls.end(self._emit)

    # Phases.

    def _open(self) -> None:
        """Open what is due on all nodes."""
        schedule, left = self._controls.schedule, self._source.left
        batches = due(schedule, left, self._controls.window, self._last)
        rest = [[] if number in batches else each for number, each in enumerate(left)]
        later = due(Schedule.EXCLUSIVE, rest, 0, None)
        self._phase = Phase(
            self._phase.number + 1, schedule, batches, {number: each[:1] for number, each in later.items()}
        )
        self._pools = {number: BatchPool(each) for number, each in batches.items()}
        self._closed, self._last, self._reorders = set(), max(batches), self._controls.reorders
        self._changed()

    def _goes_on(self) -> bool:
        """Whether nodes should go on with the phase."""
        for number, pool in self._pools.items():
            if not pool and number not in self._closed:
                self._close_pass(number)
        over = self._closed == {*self._pools}
        return not over and not self._controls.stop_requested and self._controls.reorders == self._reorders

    def _end_phase(self) -> None:
        """Have every node give its leases back, and take back what it has not computed. Who still computes what another
        node has already given is waited for only where no phase follows, a moment, for its receipts."""
        self._closed = {*self._pools}
        self._changed()
        began = self._clock()
        while any(self._awaited(peer, self._clock() - began) for peer in self._peers.values()):
            self._step()
        self._take_in()
        self._sync()

    def _awaited(self, peer: _Peer, seconds: float) -> bool:
        """Whether a node that has not given its leases back is waited for after so many seconds."""
        if peer.report.ended >= self._phase.number:
            return False
        if not peer.superseded:
            return seconds < ENDING
        follows = any(self._left()) and not self._controls.stop_requested
        return not follows and seconds < RECEIPTS

    def _close_pass(self, number: int) -> None:
        """Tell that a pass has nothing left in this phase."""
        self._closed.add(number)
        self._changed()

    def _take_in(self) -> None:
        for number, committed in self._committed.items():
            self._source.take_in(number, committed)
            self._source.close(number)
        self._committed = {}

    def _give_up(self, number: int, why: str) -> None:
        self._closed.add(number)
        self._committed.pop(number, None)
        self._pools[number] = BatchPool(())
        self._source.fail(number, why)
        self._changed()

    def _left(self) -> list[list[int]]:
        done = {number: [event.batch_index for event in each] for number, each in [*self._committed.items()]}
        return self._source.without(done)

    def _stop_if_asked(self) -> None:
        self._settle()
        if self._controls.stop_requested:
            whose = "the deadline" if self._deadline.near else "the operator"
            raise Stopped(f"stopped by {whose} between batches: --resume continues")

    # One step: hear a node, or look around.

    def _step(self) -> None:
        try:
            peer, answer = self._inbox.get(timeout=TICK)
        except Empty:
            pass
        else:
            self._hear(peer, answer)
        self._look_around()
        for peer in [*self._peers.values()]:
            if peer.answer is None:
                self._order(peer)
            elif peer.version < self._version and peer.member.link:
                peer.version = self._version
                peer.member.link.nudge()

    def _look_around(self) -> None:
        now = self._clock()
        if now - self._looked < TICK:
            return
        self._looked = now
        self._settle()
        if self._controls.paused:
            self._controls.due()
            for peer in self._peers.values():
                peer.progress = now  # a node that was paused is not slow
        self._watch_deadline()
        if now - self._synced > SYNC_SECONDS:
            self._sync()
        for peer in [*self._peers.values()]:
            silent = peer.answer is not None and not peer.answer.done()  # what has come may wait to be heard
            if silent and now - peer.asked > self._members.timeouts.silent:
                self._lose(peer, f"did not answer for {self._members.timeouts.silent:.0f} s")
        changes = self._members.look()
        for member in changes.joined:
            self._join(member)
        for member in changes.refused:
            self._emit(ev.NodeRefused(node=member.name, reason=member.out))
        self._check_members(now)

    def _settle(self) -> None:
        """Apply what an operator asked for, here and then on every node."""
        before = self._in_force
        self._controls.settle(self._emit)
        if changed := {control for control, value in self._in_force.items() if value != before[control]}:
            self._steered |= changed
            self._changed()

    def _check_members(self, now: float) -> None:
        """See whether anybody is left who computes what is open; another node may come of those that were lost."""
        unclosed = {*self._pools} - self._closed
        if not unclosed or any(unclosed - {*peer.member.refused} for peer in self._peers.values()):
            self._idle_since = now
        elif now - self._idle_since > self._members.timeouts.empty or not self._members.hopes:
            if not self._peers:
                self._take_in()
                self._sync()
                raise Stopped("no node is left: --resume continues, on any number of nodes or without --cluster")
            first = next(iter(self._peers.values()))
            for number in unclosed:
                self._give_up(number, first.member.refused[number])

    def _hear(self, peer: _Peer, answer: "Future[Report]") -> None:
        if self._peers.get(peer.name) is not peer:
            return  # what an older process says counts no more
        try:
            report = answer.result()
        except Exception as error:
            self._lose(peer, reason(error))
            return
        peer.report, peer.answer = replace(report, news=()), None  # vectors are held no longer than they are written
        for news in report.news:
            self._take(peer, news)
            if self._peers.get(peer.name) is not peer:
                return
        for number, why in report.refused.items():
            if report.phase == self._phase.number and number not in peer.member.refused:
                self._refuse(peer, number, why)
        for control, value in report.reached.items():
            if control in self._steered and peer.reached.get(control) != value == self._in_force[control]:
                self._emit(ev.ControlReached(node=peer.name, control=control, value=value))
            peer.reached[control] = value
        if report.ended >= self._phase.number:
            peer.superseded = False
            for number in self._pools:
                self._return(peer, number)
        if report.trouble:
            self._lose(peer, report.trouble)

    @property
    def _in_force(self) -> dict[str, str]:
        controls = self._controls
        return {
            "pause": YES if controls.paused else NO,
            "cpu_fallback": YES if controls.cpu_fallback else NO,
            "schedule": controls.schedule.value,
        }

    # What nodes tell.

    def _take(self, peer: _Peer, news: NodeEvent) -> None:
        """Take in an event; of a batch that counts no more only what is not about it."""
        event = news.event
        number, batch = getattr(event, "model_pass", None), getattr(event, "batch_index", None)
        pool = self._pools.get(number) if number is not None else None
        if batch is not None and (pool is None or batch not in pool.held(peer.name)):
            return
        if isinstance(event, ev.LeaseGranted):
            peer.member.granted += 1
        if not isinstance(event, ev.BatchCommitted):
            self._emit(event)
            return
        assert pool is not None and news.outputs is not None
        self._commit(peer, pool, event, news.outputs, news.before)

    def _commit(
        self, peer: _Peer, pool: BatchPool, event: ev.BatchCommitted, outputs: Outputs, before: Sequence[ev.AnyEvent]
    ) -> None:
        cells = self._source.grid[event.model_pass]
        if cells.files.put(cells.batches[event.batch_index].rows, outputs) != event.crc:
            self._lose(peer, f"batch {event.batch_index + 1} of {cells.card.key} arrived with other bytes than it sent")
            return
        for other in pool.finish(event.batch_index, peer.name) or ():
            self._peers[other].dropped.setdefault(event.model_pass, []).append(event.batch_index)
            self._peers[other].superseded = True
        for parked in before:
            self._emit(parked)
        self._emit(event)
        self._committed.setdefault(event.model_pass, []).append(event)
        self._deadline.learn(cells, event.batch_index, event.seconds)
        peer.member.failures, peer.progress = 0, self._clock()
        pace = event.seconds / max(cells.layout.cost(event.batch_index), 1e-12)
        peer.pace = pace if not peer.pace else _FADES * peer.pace + (1 - _FADES) * pace

    def _refuse(self, peer: _Peer, number: int, why: str) -> None:
        """A node cannot compute a pass: the others do, or the pass has failed."""
        peer.member.refused[number] = why
        self._return(peer, number)
        if number not in self._closed:
            self._tell_refused(peer, number, why)

    def _tell_refused(self, peer: _Peer, number: int, why: str) -> None:
        model = self._source.grid[number].card.key
        message = f"{peer.name} does not compute {model}, which is left to other nodes: {why.removeprefix(f'{model} ')}"
        self._emit(ev.Warned(message=message))

    def _return(self, peer: _Peer, number: int) -> None:
        if self._pools[number].take_back(peer.name):
            self._changed()

    # Who is there.

    def _join(self, member: ClusterMember) -> None:
        self._peers[member.name] = peer = _Peer(member)
        peer.progress = self._clock()
        self._emit(
            ev.NodeJoined(
                node=member.name,
                label=member.machine.label,
                devices=[each.facts for each in member.devices],
                sent_bytes=member.sent_bytes,
                seconds=round(member.seconds, 3),
            )
        )
        for number, why in member.refused.items():
            if number in self._source.grid:
                self._tell_refused(peer, number, why)

    def _lose(self, peer: _Peer, why: str) -> None:
        del self._peers[peer.name]
        self._members.lose(peer.member, why)
        back = {number: pool.take_back(peer.name) for number, pool in self._pools.items()}
        rows = sum(len(self._source.grid[k].batches[index].rows) for k, each in back.items() for index in each)
        self._emit(ev.NodeLost(node=peer.name, reason=why, batches=sum(map(len, back.values())), rows=rows))
        self._changed()

    # Orders.

    def _changed(self) -> None:
        """Have every node hear of it soon."""
        self._version += 1

    def _order(self, peer: _Peer) -> None:
        link = peer.member.link
        assert link
        report, asks = peer.report, peer.report.asks
        orders = Orders(
            self._phase_for(peer),
            frozenset(self._closed),
            [] if self._halts else self._handed(peer, report),
            peer.dropped,
            [self._texts(number, np.array(texts, np.int64)) for number, texts in asks.items()],
            self._controls.paused and not self._controls.stop_requested,
            self._controls.cpu_fallback,
            self._members.timeouts.poll,
        )
        peer.dropped, peer.version, peer.asked = {}, self._version, self._clock()
        peer.answer = link.exchange(orders)
        peer.answer.add_done_callback(lambda done: self._inbox.put((peer, done)))

    def _phase_for(self, peer: _Peer) -> Phase:
        """The phase as a node is told it: with its batches once, since they are as many as the run has."""
        phase, refused = self._phase, peer.member.refused
        if peer.told == phase.number:
            return Phase(phase.number, phase.schedule)
        peer.told = phase.number
        return replace(phase, batches={k: each for k, each in phase.batches.items() if k not in refused})

    @property
    def _halts(self) -> bool:
        return self._controls.stop_requested or self._controls.reorders != self._reorders

    def _handed(self, peer: _Peer, report: Report) -> list[Assigned]:
        found = []
        for number, wanted in report.wants.items() if report.working == self._phase.number else ():
            pool = self._pools.get(number)
            if pool is None or number in self._closed or number in peer.member.refused:
                continue
            if not pool.held(peer.name):
                peer.progress = self._clock()
            batches = list[int]()
            everyone = sum(each.devices for each in self._peers.values())
            most = min(wanted, math.ceil(pool.waiting * peer.devices / everyone))  # the last ones are for all
            while len(batches) < most and self._in_time(peer, number, pool.next):
                batches.append(pool.hand(peer.name))
            if not pool.waiting and not batches:
                batches = self._doubled(peer, number, wanted)
            if batches:
                rows = np.concatenate([self._source.grid[number].batches[index].rows for index in batches])
                found.append(Assigned(batches, self._texts(number, rows)))
        return found

    def _in_time(self, peer: _Peer, number: int, batch: int) -> bool:
        """Whether a batch would be done before the deadline; where not even the next one is, the run is to stop."""
        deadline, ahead = self._deadline, sum(len(pool.held(peer.name)) for pool in self._pools.values())
        if deadline.left == math.inf:
            return True
        seconds = deadline.seconds_of(self._source.grid[number], batch)
        if ahead < peer.devices:
            return deadline.allows(seconds)
        if not seconds:
            return False  # nothing is known of it: the first ones will tell
        return deadline.fits(seconds * math.ceil((ahead + 1) / peer.devices) + deadline.reserve())

    def _watch_deadline(self) -> None:
        """Have the run stop where what a node begins next, behind what it computes, would not be done in time."""
        for number, pool in self._pools.items() if self._deadline.left < math.inf else ():
            cells = self._source.grid[number]
            for peer in self._peers.values():
                if later := pool.held(peer.name)[peer.devices :]:
                    self._deadline.allows(2 * self._deadline.seconds_of(cells, later[0]))

    def _doubled(self, peer: _Peer, number: int, wanted: int) -> list[int]:
        """Give a node what a slower one holds too, as far as it would be done much earlier here."""
        pool, layout = self._pools[number], self._source.grid[number].layout
        own = peer.pace or self._usual()
        slow = max(
            (each for each in self._peers.values() if each is not peer and pool.alone(each.name)),
            key=lambda each: self._takes(each, number),
            default=None,
        )
        if slow is None or not own:
            return []
        doubled: list[int] = []
        ahead = sum(layout.cost(index) for index in pool.held(peer.name))
        for batch in reversed(pool.alone(slow.name)):
            ahead += layout.cost(batch)
            here = own * ahead / peer.devices
            if len(doubled) == wanted or self._takes(slow, number) < 2 * here + self._members.timeouts.lead:
                break
            pool.double(batch, peer.name)
            doubled.append(batch)
        if doubled:
            rows = sum(len(self._source.grid[number].batches[index].rows) for index in doubled)
            self._emit(
                ev.BatchesDoubled(model_pass=number, node=slow.name, other=peer.name, batches=doubled, rows=rows)
            )
        return doubled

    def _usual(self) -> float:
        paces = [each.pace for each in self._peers.values() if each.pace]
        return float(np.median(paces)) if paces else 0.0

    def _takes(self, peer: _Peer, number: int) -> float:
        """Predict the seconds until a node is done with what it alone holds; one that gives nothing is ever slower."""
        layout = self._source.grid[number].layout
        cost = sum(layout.cost(index) for index in self._pools[number].alone(peer.name))
        return max((peer.pace or self._usual()) * cost / peer.devices, self._clock() - peer.progress)

    def _texts(self, number: int, texts: Any) -> Texts:
        tokens = self._source.grid[number].tokens
        stored = [tokens.stored(text) for text in texts.tolist()]
        ends = np.cumsum([len(each) for each in stored], dtype=np.int64)
        return Texts(number, texts, ends, np.concatenate(stored))

    def _sync(self) -> None:
        """Vectors first: what the journal says is there must be there."""
        for number in self._pools:
            self._source.grid[number].files.sync()
        self._sync_journal()
        self._synced = self._clock()


def plan_of(grid: Sequence[Cells], specs: Sequence[ModelSpec], policy: Policy, granted: int = 0) -> GridPlan:
    """Make of a grid what nodes get of it; `specs` are those of the roster, and `granted` the leases so far."""
    tokens = {id(cells.tokens): cells.tokens for cells in grid}
    return GridPlan(
        [
            PassPlan(
                cells.model_pass,
                specs[cells.model_pass],
                cells.layout,
                str(id(cells.tokens)),
                cells.card.snapshot.fingerprint,
            )
            for cells in grid
        ],
        {str(key): TokenFacts(each.full_lengths, each.specials) for key, each in tokens.items()},
        len(specs),
        granted,
        policy.pickles,
    )
