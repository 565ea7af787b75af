"""A node at work as the head sees it, and what is told of it."""

from collections import defaultdict
from dataclasses import dataclass, field

from interlock.engine.compute.cluster.members import ClusterMember
from interlock.engine.compute.cluster.messages import Report
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
