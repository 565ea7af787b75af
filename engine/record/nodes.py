"""What is known of a node of a cluster: a fold of the events that name it. A run on one machine has no node."""

from msgspec import Struct
from msgspec.structs import replace

from interlock.engine.record import events as ev

NodeEvent = ev.NodeJoined | ev.NodeLost | ev.NodeRefused | ev.ControlReached | ev.BatchesDoubled


class NodeState(Struct, frozen=True, kw_only=True):
    """A node; what was lost, computed again and sent counts over all sessions."""

    node: str
    label: str = ""
    devices: tuple[str, ...] = ()
    since: float | None = None
    """When it joined in this session, in seconds since the epoch; None before that."""
    lost: str = ""
    """Why it is gone; empty while it is there."""
    refused: str = ""
    losses: tuple[str, ...] = ()
    """Why it was lost, each time."""
    batches_again: int = 0
    """Batches that it alone held when it was lost, and that were computed again; so many `rows_again`."""
    rows_again: int = 0
    batches_doubled: int = 0
    """Batches that another node was given too, because this one was slow."""
    sent_bytes: int = 0
    reached: dict[str, str] = {}
    """What is in force on it, by control."""

    @property
    def here(self) -> bool:
        """Whether it computes now."""
        return self.since is not None and not self.lost

    def after(self, event: NodeEvent, at: float, in_force: dict[str, str]) -> "NodeState":
        """Return it as it is after an event of `at`, in seconds since the epoch; one that joins has all controls as
        they are `in_force` then."""
        match event:
            case ev.NodeJoined():
                sent, names = self.sent_bytes + event.sent_bytes, tuple(each.name for each in event.devices)
                anew = replace(self.before_joining(), label=event.label, devices=names)
                return replace(anew, since=at, sent_bytes=sent, reached=in_force)
            case ev.NodeLost():
                batches, rows = self.batches_again + event.batches, self.rows_again + event.rows
                again = replace(self, batches_again=batches, rows_again=rows)
                return replace(again, lost=event.reason, losses=(*self.losses, event.reason))
            case ev.NodeRefused():
                return replace(self, refused=event.reason)
            case ev.ControlReached():
                return replace(self, reached=self.reached | {event.control: event.value})
            case ev.BatchesDoubled():
                return replace(self, batches_doubled=self.batches_doubled + len(event.batches))

    def before_joining(self) -> "NodeState":
        """Return what of it outlasts a session."""
        return replace(self, since=None, lost="", refused="", reached={})
