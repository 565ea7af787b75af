"""What counts of what nodes gave: committed, compared and proved, or taken back where a node computes wrongly."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from interlock.engine.compute.cluster.member import ClusterMember
from interlock.engine.compute.cluster.members import ClusterMembers
from interlock.engine.compute.cluster.messages import NodeEvent, Report
from interlock.engine.compute.cluster.pool import BatchPool
from interlock.engine.compute.cluster.proofs import SHARE, Proofs
from interlock.engine.compute.context import Deadline, RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.schedule import Schedule, due
from interlock.engine.compute.source import BatchSource, indices
from interlock.engine.record import events as ev


@dataclass(eq=False)
class Peer:
    """A node at work: what it reported last, and what it is to hear of."""

    member: ClusterMember
    progress: float
    """When it gave a batch last, or was handed the first."""
    report: Report = field(default_factory=Report)
    dropped: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    gave: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The batches that count of what it gave, by pass."""
    superseded: bool = False
    """Whether another node was first with a batch that this one may be computing still."""

    def joined(self) -> ev.NodeJoined:
        """Tell that it has joined."""
        member = self.member
        return ev.NodeJoined(
            node=member.name,
            label=member.machine.label,
            devices=[each.facts for each in member.devices],
            sent_bytes=member.sent_bytes,
            seconds=round(member.seconds, 3),
        )

    def without(self, model: str, why: str) -> ev.Warned:
        """Tell that it does not compute a model."""
        left = f"{self.member.name} does not compute {model}, which is left to other nodes"
        return ev.Warned(message=f"{left}: {why.removeprefix(f'{model} ')}")


class Counting:
    """The passes of a run, who has what of them, and what of it counts; its lock guards all that threads share."""

    def __init__(
        self,
        source: BatchSource,
        members: ClusterMembers,
        controls: Controls,
        emit: ev.Emit,
        sync: Callable[[], None],
        deadline: Deadline,
        context: RunContext | None = None,
        *,
        twice: bool = False,
    ) -> None:
        """`context` is what the head itself computes with, to prove what nodes give; `twice` has each batch computed by
        two nodes."""
        self._every = twice
        self._source, self._members, self._controls, self._deadline = source, members, controls, deadline
        self._emit, self._sync_journal, self._clock = emit, sync, deadline.clock
        self._changed = threading.Condition(threading.RLock())
        """Guards all below; the thread of the run waits for it."""
        self._pools = {number: BatchPool(source.left[number]) for number in source.grid}
        self._peers: dict[str, Peer] = {}
        self._committed: dict[int, list[ev.BatchCommitted]] = defaultdict(list)
        self._proofs = Proofs(context, self._distrust, self._proved) if context else None
        self._twice: dict[tuple[int, int], tuple[str, Outputs]] = {}
        """Who gave a batch first that another node computes too, and what."""
        self._warned, self._dice = set[str](), random.Random()  # noqa: S311  # nobody is to be fooled by it
        self._synced = self._clock()

    def _take_in(self, *passes: int) -> None:
        """Count what was committed of passes, or of all, and end those that have nothing left."""
        self._sync()
        for number in passes or [*self._committed]:
            if number not in self._committed:
                continue
            self._source.take_in(number, self._committed.pop(number))
            self._source.close(number)

    def _due(self, schedule: Schedule) -> Mapping[int, Sequence[int]]:
        done = {number: indices(each) for number, each in [*self._committed.items()]}
        return due(schedule, self._source.without(done), self._controls.window, None)

    def _sync(self) -> None:
        """Vectors first: what the journal says is there must be there."""
        for number in self._committed:
            self._source.grid[number].files.sync()
        self._sync_journal()
        self._synced = self._clock()

    def _complete(self, number: int) -> None:
        """End a pass of which everything is computed and proved."""
        if not self._pools[number] and not self._proving(number):
            self._take_in(number)
            self._changed.notify_all()

    def _proving(self, number: int | None = None) -> int:
        return self._proofs.pending(number) if self._proofs else 0

    def _nudge(self) -> None:
        """Have every node hear soon of what has changed, and the thread of the run."""
        for peer in self._peers.values():
            if peer.member.link:
                peer.member.link.nudge()
        self._changed.notify_all()

    # In the thread of a node.

    def _chosen(self, number: int, pool: BatchPool) -> bool:
        """Whether a batch is one of the few that another node is to compute too, while it has the model."""
        able = self._able(number)
        ahead = 2 * sum(len(peer.member.devices) for peer in able)
        return len(able) > 1 and (self._every or (pool.unheld > ahead and self._dice.random() * SHARE < 1))

    def _able(self, number: int) -> list[Peer]:
        return [peer for peer in self._peers.values() if number not in peer.member.refused]

    def _tell_alone(self, number: int) -> None:
        """Tell once that batches of a pass are computed by one node alone, where each was to be by two."""
        if not self._every or len(self._able(number)) > 1:
            return
        model = self._source.grid[number].card.key
        self._warn(f"{model}: only one node computes it, so not every batch is computed twice: add a node")

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._emit(ev.Warned(message=message))

    def _compared(self, peer: Peer, news: NodeEvent) -> bool:
        """Whether an event is that of a batch that another node gave first: it is compared, and told no more."""
        place = getattr(news.event, "model_pass", -1), getattr(news.event, "batch_index", -1)
        first, outputs = self._twice.get(place, ("", None))
        if not first or first == peer.member.name or not isinstance(news.event, ev.BatchCommitted):
            return bool(first) and first != peer.member.name
        del self._twice[place]
        assert outputs and news.outputs and self._proofs
        self._proofs.see(self._source.grid[place[0]], place[1], {first: outputs, peer.member.name: news.outputs})
        self._pools[place[0]].checked(place[1])
        return True

    # In the thread that proves.

    def _proved(self, number: int, trouble: str) -> None:
        with self._changed:
            if trouble:
                model = self._source.grid[number].card.key
                self._warn(f"what nodes give of {model} is not compared with the head's: {trouble}")
            self._complete(number)

    def _distrust(self, node: str, why: str) -> None:
        """Use a node no more, and have all that it gave in this session computed again."""
        with self._changed:
            member, peer = self._members.members[node], self._peers.get(node)
            if member.out:
                return
            member.out = f"{why}: what it gave is computed again; check its memory, its card and its packages"
            for number, batches in peer.gave.items() if peer else ():
                kept = [each for each in self._committed[number] if each.batch_index not in {*batches}]
                self._emit(ev.BatchesLost(model_pass=number, batches=sorted(batches), node=node))
                self._committed[number] = kept
                self._source.take_back(number, batches)
                self._pools[number].again(batches)
            self._twice = {place: given for place, given in self._twice.items() if given[0] != node}
            self._nudge()
