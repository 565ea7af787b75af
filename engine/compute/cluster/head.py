"""The head's side: nodes take batches from its pools, and it takes in what they give.

It alone writes and tells. What a node holds when it is lost goes back to the others and is computed once more; where
nothing else waits, what a node holds that gives nothing waits again too, and the first result counts. Each node is
talked with in the thread of its member; one lock guards what they share, and is not held while a node is waited for.
"""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np

from interlock.engine.compute.cluster.counting import Counting, Peer
from interlock.engine.compute.cluster.member import ClusterMember, NodeGone
from interlock.engine.compute.cluster.messages import ClusterEnded, Handed, NodeEvent, Orders, Report
from interlock.engine.compute.cluster.pool import BatchPool
from interlock.engine.compute.schedule import Assignment, Placement, Schedule
from interlock.engine.errors import Stopped
from interlock.engine.record import events as ev

TICK = 0.1
"""Seconds between two looks at operator, deadline and members."""
SYNC_SECONDS = 1.0
ENDING, RECEIPTS = 600.0, 10.0
"""Seconds for nodes to give their leases back at the end; for those that may still compute what another one gave."""
_FADES = 0.9


class ClusterExecutor(Counting):
    """Computes what a run has left on the nodes of a cluster; `run` may be called once."""

    _devices = 0  # of all peers
    _error: Exception | None = None
    """What ends the run, of a thread that talks with a node."""
    _usual = 0.0
    """Seconds for each unit of a batch's cost, lately."""
    _over = False
    _looked = _idle_since = -math.inf  # the latter from the moment of the start on

    def unplaceable(self) -> dict[int, str]:
        """Tell which passes would fit on no node, and why on the first of them."""
        ready = self._members.ready
        everywhere = set.intersection(*({*member.refused} for member in ready)) if ready else set()
        return {number: ready[0].refused[number] for number in sorted(everywhere)}

    def preview(self, schedule: Schedule) -> Placement | None:
        """Find what another schedule would lease next on every node; None: nothing is left. For any thread."""
        names = tuple(each.facts.name for peer in [*self._peers.values()] for each in peer.member.devices)
        found = tuple(Assignment(number, tuple(batches), names) for number, batches in self._due(schedule).items())
        return Placement(found) if found else None

    def unaffected_by(self, schedule: Schedule) -> bool:
        """Whether another schedule would have the same passes computed next."""
        now = self._controls.schedule
        return Schedule.SHARED not in (schedule, now) and self._due(schedule) == self._due(now)

    def run(self) -> None:
        """Compute everything that is left. Raises Stopped between two batches when asked to."""
        self._controls.attend(self, self._emit)
        try:
            if self._source.more():
                self._members.serve(self._serve)
                with self._changed:
                    self._conduct()
        finally:
            if self._proofs:
                self._proofs.close()
            self._members.close()
        self._controls.end(self._emit)

    # In the thread of the run, which holds the lock but while it waits.

    def _conduct(self) -> None:
        self._idle_since = self._clock()
        while (any(self._pools.values()) or self._proving()) and not self._controls.stop_requested:
            self._watch()
        self._over, began = True, self._clock()
        self._nudge()
        while any(
            not peer.report.ended and self._clock() - began < (RECEIPTS if peer.superseded else ENDING)
            for peer in self._peers.values()
        ) or (self._proving() and self._clock() - began < RECEIPTS):
            self._watch()
        self._members.look(self._emit)
        self._take_in()
        if any(self._pools.values()):
            whose = "the deadline" if self._deadline.near else self._controls.stopped_by
            if not self._controls.stop_requested:  # a node was found out by the last that was computed
                whose = "what a node computed wrongly"
            raise Stopped(f"stopped by {whose} between batches: --resume continues")

    def _watch(self) -> None:
        """Wait until something has changed, and from time to time look at operator, deadline and members."""
        self._changed.wait(TICK)
        if self._error:
            raise self._error
        now = self._clock()
        if now - self._looked < TICK:
            return
        self._looked, before, controls = now, self._controls.in_force, self._controls
        controls.settle(self._emit)
        if controls.in_force != before:
            self._nudge()
        if controls.paused:
            controls.due()
            for peer in self._peers.values():
                peer.progress = now  # a node that was paused is not slow
        if now - self._synced > SYNC_SECONDS:
            self._sync()
        try:
            self._members.look(self._emit)
        except ClusterEnded:
            self._take_in()
            raise
        if not self._over:
            self._double(now)
            self._check_members(now)
            for number, pool in self._pools.items():  # nobody else is there to compare with
                checks = pool.checks if len(self._able(number)) < 2 else []
                if checks:
                    self._tell_alone(number)
                for batch in checks:
                    pool.checked(batch)
                    self._twice.pop((number, batch), None)
                    self._complete(number)

    def _double(self, now: float) -> None:
        """Where nodes are idle and nothing waits for them, let them take from the end of what others hold for long."""
        idle, pools = [peer.member for peer in self._peers.values() if peer.report.idle], self._pools.items()
        waits = (pool.next(each.name) is not None for each in idle for k, pool in pools if k not in each.refused)
        if not self._usual or not idle or any(waits):
            return
        for number, pool in pools:
            cost, lead = self._source.grid[number].layout.cost, self._members.timeouts.lead
            for peer in self._peers.values():
                seconds = {batch: self._usual * cost(batch) for batch in pool.held(peer.member.name)}
                if pool.double(peer.member.name, seconds, len(peer.member.devices), now - peer.progress, lead):
                    self._nudge()

    def _check_members(self, now: float) -> None:
        """See whether for each pass anybody is left who computes it; another node may come of those that were lost."""
        refused = [peer.member.refused for peer in self._peers.values()]
        stuck = [k for k, pool in self._pools.items() if pool and all(k in each for each in refused)]
        if not stuck:
            self._idle_since = now
        elif now - self._idle_since > self._members.timeouts.empty or not self._members.hopes(self._peers):
            if not refused:
                self._take_in()
                raise Stopped("no node is left: --resume continues, on any number of nodes or without --cluster")
            for number in stuck:
                self._committed.pop(number, None)
                self._pools[number] = BatchPool(())
                self._source.fail(number, refused[0][number])

    # In the thread of a node.

    def _serve(self, member: ClusterMember) -> None:
        """Talk with a node until it has ended. Raises NodeGone where it is lost."""
        peer = Peer(member, self._clock())
        try:
            with self._changed:
                self._join(peer)
            while not peer.report.ended:
                self._exchange(peer)
        except NodeGone as lost:
            with self._changed:
                self._lose(peer, str(lost))
            raise
        except Exception as error:  # the head's own: a disk that is full
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            raise

    def _exchange(self, peer: Peer) -> None:
        """Tell a node what is new, and take in what it reports; what that holds lives no longer than this."""
        assert peer.member.link
        with self._changed:
            orders = self._orders(peer)
        report = self._members.answer(peer.member.link.exchange(orders))
        with self._changed:
            self._hear(peer, report)
            if peer.member.out:
                raise NodeGone(peer.member.out)

    def _join(self, peer: Peer) -> None:
        member = peer.member
        self._peers[member.name] = peer
        self._devices += len(member.devices)
        self._emit(peer.joined())
        for number, why in member.refused.items():
            if number in self._source.grid:
                self._tell_refused(peer, number, why)

    def _lose(self, peer: Peer, why: str) -> None:
        del self._peers[peer.member.name]
        self._devices -= len(peer.member.devices)
        back = {number: pool.give_back(peer.member.name) for number, pool in self._pools.items()}
        rows = sum(len(self._source.grid[k].batches[index].rows) for k, each in back.items() for index in each)
        self._emit(ev.NodeLost(node=peer.member.name, reason=why, batches=sum(map(len, back.values())), rows=rows))
        self._nudge()

    def _hear(self, peer: Peer, report: Report) -> None:
        peer.report = replace(report, news=())
        for news in report.news:
            self._take(peer, news)
        for number, why in report.refused.items():
            if number not in peer.member.refused:
                peer.member.refused[number] = why
                if self._pools[number]:
                    self._tell_refused(peer, number, why)
        if report.idle:
            peer.superseded = False
            if sum(len(pool.give_back(peer.member.name)) for pool in self._pools.values()):
                self._nudge()
        if report.late:
            self._deadline.allows(math.inf)
        if report.ended:
            self._changed.notify_all()
        if report.trouble:
            raise NodeGone(report.trouble)

    def _tell_refused(self, peer: Peer, number: int, why: str) -> None:
        self._emit(peer.without(self._source.grid[number].card.key, why))

    def _take(self, peer: Peer, news: NodeEvent) -> None:
        """Take in an event; of a batch that counts no more only what is not about it."""
        event = news.event
        batch, pool = getattr(event, "batch_index", None), self._pools.get(getattr(event, "model_pass", -1))
        if peer.member.out or self._compared(peer, news):
            return
        if batch is not None and (pool is None or batch not in pool.held(peer.member.name)):
            return
        if isinstance(event, ev.LeaseGranted):
            peer.member.granted += 1
        if not isinstance(event, ev.BatchCommitted):
            self._emit(event)
            return
        assert pool is not None and news.outputs is not None
        number, job = event.model_pass, self._source.grid[event.model_pass]
        if job.files.put(job.batches[event.batch_index].rows, news.outputs) != event.crc:
            raise NodeGone(f"batch {event.batch_index + 1} of {job.card.key} arrived with other bytes than it sent")
        others, outputs = pool.commit(event.batch_index, peer.member.name), news.outputs
        for other in others:
            self._peers[other].dropped[number].append(event.batch_index)
            self._peers[other].superseded = True
        if self._proofs:
            self._tell_alone(number)
            if others or self._chosen(number, pool):
                self._twice[number, event.batch_index] = peer.member.name, outputs
                if not others:
                    pool.check(event.batch_index, peer.member.name)
            if not peer.gave[number]:
                self._proofs.see(job, event.batch_index, {peer.member.name: outputs})
        peer.gave[number].append(event.batch_index)
        for each in (*news.before, event):
            self._emit(each)
        self._committed[number].append(event)
        self._deadline.learn(job, event.batch_index, event.seconds)
        peer.member.failures, peer.progress = 0, self._clock()
        pace = event.seconds / max(job.layout.cost(event.batch_index), 1e-12)
        self._usual = _FADES * self._usual + (1 - _FADES) * pace if self._usual else pace
        self._complete(number)

    def _orders(self, peer: Peer) -> Orders:
        report, stop = peer.report, self._controls.stop_requested
        handed, dry = [Handed.of(self._source.grid[k], texts) for k, texts in report.asks.items()], set[int]()
        for number, (wanted, last) in report.wants.items():
            if not stop and (batches := self._handed(peer, number, wanted, last)):
                job = self._source.grid[number]
                rows = np.concatenate([job.batches[index].rows for index in batches])
                handed.append(Handed.of(job, rows.tolist(), batches))
            if self._pools[number].next(peer.member.name, last) is None:
                dry.add(number)
        able = {k: pool for k, pool in self._pools.items() if report.idle and k not in peer.member.refused}
        waiting = {number: pool.waiting(peer.member.name) for number, pool in able.items()}
        dropped, peer.dropped = peer.dropped, defaultdict(list)
        return Orders(
            waiting,
            handed,
            frozenset(dry),
            dropped,
            self._controls.in_force,
            stop,
            self._over,
            self._deadline.left - self._deadline.reserve() if self._deadline.left < math.inf else math.inf,
            self._members.timeouts.poll,
        )

    def _handed(self, peer: Peer, number: int, wanted: int, last: int) -> list[int]:
        """Give a node batches of a pass: of the last ones no more than its share."""
        pool, job, batches = self._pools[number], self._source.grid[number], list[int]()
        if not pool.held(peer.member.name):
            peer.progress = self._clock()
        most = min(wanted, math.ceil(pool.unheld * len(peer.member.devices) / self._devices))
        while len(batches) < most and (batch := pool.next(peer.member.name, last)) is not None:
            if not self._deadline.allows_batch(job, batch):
                break
            for other in pool.take(batch, peer.member.name):
                rows, nodes = len(job.batches[batch].rows), {"node": other, "other": peer.member.name}
                self._emit(ev.BatchesDoubled(model_pass=number, batches=[batch], rows=rows, **nodes))
            batches.append(batch)
        return batches
