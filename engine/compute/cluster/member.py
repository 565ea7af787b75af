"""A machine as a node of a run, how far its process has come, and how long what is waited for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from interlock.engine.compute.cluster.messages import NodeLink, NodeMachine, RemoteFacts
from interlock.engine.compute.cluster.pricing import IDLE


@dataclass(frozen=True)
class ClusterTimeouts:
    """How long the head waits for what, in seconds."""

    look: float = 2.0
    """Between two looks at which machines there are."""
    start: float = 180.0
    """For a node's process to start and to look at its devices: torch is imported meanwhile."""
    prepare: float = 1800.0
    """For it to be ready: weights are hashed where they never were, and sent where they are lacking."""
    idle: float = IDLE
    """For a plan, while texts are read: a node then gives its devices back, and comes again with it."""
    again: float = 2.0
    """Before a machine whose node was lost or busy is tried again: twice as long each time."""
    tries: int = 5
    """Times that a machine is tried again in a row."""
    poll: float = 1.0
    """That a node without news waits before it answers."""
    silent: float = 60.0
    """For an answer of a node that computes."""
    held: float = 30.0
    """For devices that are still held, perhaps by a process whose run was killed."""
    empty: float = 60.0
    """For a node to come, where none is left."""
    lead: float = 1.0
    """What has to be gained for a batch to be given to another node too."""


class NodeGone(Exception):
    """A node's process can be used no more, for this reason; its machine is tried again."""


@dataclass(eq=False)
class ClusterMember:
    """A machine as a node of the run: its process, and how far that has come."""

    name: str
    machine: NodeMachine
    link: NodeLink | None = None
    starting: bool = True
    """Whether its first words are waited for."""
    welcomed: bool = False
    ready: bool = False
    devices: Sequence[RemoteFacts] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    out: str = ""
    """Why it cannot take part, whatever is tried."""
    told: bool = False
    """Whether that was told."""
    failures: int = 0
    trouble: str = ""
    waits: str = ""
    """Who has what its process waits for; `warned` where that was told."""
    warned: bool = False
    refused: dict[int, str] = field(default_factory=dict)
    granted: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    """That its process took to be ready."""
