"""What the head of a run and its nodes tell each other, plain frozen data; and what carries it.

The head asks and a node answers, one exchange at a time. What is large (ids of texts, vectors) is arrays, which a
carrier may hand over without a copy; they are only read.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.job import Job, Layout
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.corpus.tokens import Ids, Lengths, Specials
from interlock.engine.errors import Stopped
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import RESERVE
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record.events import AnyEvent
from interlock.engine.record.facts import DeviceFacts


@dataclass(frozen=True)
class Hello:
    """What a node is told first: who it is, and what it is to lease. Sizes are bytes."""

    run: str
    node: str
    devices: str
    faults: tuple[str, ...]
    ceiling: int
    host_ceiling: int
    warm: int
    threads: int
    granted: int = 0
    """Leases that earlier processes of the node were granted in this session."""
    margin: int = RESERVE


@dataclass(frozen=True)
class RemoteFacts:
    """A device of a node as the head needs it for planning."""

    facts: DeviceFacts
    capability: tuple[int, int] | None
    processors: int


class RemoteDevice(CpuDevice):
    """A device of a node as the head sees it: named and described for planning, never computed on here."""

    def __init__(self, told: RemoteFacts) -> None:
        super().__init__()
        self.name, self.kind, self.label = told.facts.name, told.facts.kind, told.facts.label
        self.total = told.facts.total_bytes
        self.capability, self.processors = told.capability, told.processors


@dataclass(frozen=True)
class Welcome:
    """What a node says of itself; `trouble` is why it cannot compute."""

    devices: Sequence[RemoteFacts] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""

    def unlike(self, versions: Mapping[str, str]) -> str:
        """Name each version that is another one than the head's; empty: none is."""
        theirs = {name: self.versions.get(name, "missing") for name in versions}
        return ", ".join(
            f"{name} {theirs[name]}, the head has {own}" for name, own in versions.items() if theirs[name] != own
        )


@dataclass(frozen=True)
class PassPlan:
    """One pass as a node gets it, once; of all its texts their full lengths [texts] and what is put around their ids,
    which passes with the same tokenizer share."""

    model_pass: int
    spec: ModelSpec
    layout: Layout
    fingerprint: str
    lengths: Lengths
    specials: Specials


@dataclass(frozen=True)
class GridPlan:
    """The grid of a run, once for every node."""

    passes: Sequence[PassPlan]
    roster: int
    """The number of passes, those that the grid lacks included."""
    granted: int
    """Leases that were granted in earlier sessions."""
    window: int
    controls: Mapping[str, str]
    """What is in force when the run begins: what an operator changes is acknowledged."""
    pickles: tuple[str, ...]

    @classmethod
    def of(
        cls,
        grid: Sequence[Job],
        specs: Sequence[ModelSpec] | Mapping[int, ModelSpec],
        policy: Policy,
        controls: Controls,
        granted: int = 0,
    ) -> "GridPlan":
        """Make it of a grid; `specs` are those of the roster."""
        passes = [
            PassPlan(
                job.model_pass,
                specs[job.model_pass],
                job.layout,
                job.card.snapshot.fingerprint,
                job.tokens.full_lengths,
                job.tokens.specials,
            )
            for job in grid
        ]
        return cls(passes, len(specs), granted, controls.window, controls.in_force, policy.pickles)


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model that a node lacks, by their path in its snapshot, in parts that are gone through once."""

    key: str
    files: Mapping[str, Iterable[npt.NDArray[np.uint8]]]


@dataclass(frozen=True)
class Ready:
    """What became of the plan: models that are `lacking` have to be sent; `refused` passes fit nowhere on the node, for
    these reasons; `trouble` is why it cannot compute at all."""

    lacking: Sequence[str] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class Handed:
    """Batches of a pass for a node, and stored ids of texts, end to end: those of `texts[i]` end at `ends[i]`. They are
    the texts of the batches; where there are none, texts that were asked for."""

    model_pass: int
    batches: Sequence[int]
    texts: npt.NDArray[np.int64]
    ends: Lengths
    ids: Ids

    @classmethod
    def of(cls, job: Job, texts: Sequence[int], batches: Sequence[int] = ()) -> "Handed":
        """Make it of a pass."""
        stored = [job.tokens.stored(text) for text in texts]
        ends = np.cumsum([len(each) for each in stored], dtype=np.int64)
        return cls(job.model_pass, batches, np.asarray(texts, np.int64), ends, np.concatenate(stored))


@dataclass(frozen=True)
class Orders:
    """What the head answers a report, and wants of a node from now on."""

    left: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """For a node that is idle: the batches by pass that wait."""
    handed: Sequence[Handed] = ()
    dry: frozenset[int] = frozenset()
    """Passes of which it gets nothing more for now."""
    dropped: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Batches by pass that another node has computed first."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """What an operator wants, by control."""
    stop: bool = False
    over: bool = False
    """Whether nothing is left, so that an idle node ends."""
    seconds: float = float("inf")
    """Until the deadline, without what the head needs then."""
    wait: float = 1.0
    """Seconds that a node without news may wait before it answers."""


@dataclass(frozen=True)
class NodeEvent:
    """An event of a node, and the outputs of the batch that it commits; `before` are events that count only with it."""

    event: AnyEvent
    outputs: Outputs | None = None
    before: Sequence[AnyEvent] = ()


@dataclass(frozen=True)
class Report:
    """What a node has to tell, and how it stands."""

    news: Sequence[NodeEvent] = ()
    wants: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Batches by pass that it would take: how many, and up to which."""
    asks: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Texts by pass whose ids it lacks."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Passes that it cannot compute, and why."""
    idle: bool = False
    """Whether it holds no lease; what it was handed and did not commit is given back with that."""
    late: bool = False
    """Whether something did not fit before the deadline."""
    ended: bool = False
    """Whether it computes nothing more; `trouble` is why, where the head does not know."""
    trouble: str = ""


class ClusterEnded(Stopped):
    """The way to all nodes is gone; what says so adds what to do."""


@dataclass(frozen=True)
class NodeMachine:
    """A machine that could be a node; `id` stays its own for as long as it is there."""

    id: str
    label: str


class NodeLink(Protocol):
    """One node's process. A future fails, with whatever the carrier raises, where it cannot be reached any more."""

    def welcome(self) -> "Future[Welcome]":
        """Have the process look at its devices and hold them."""

    def begin(self, plan: Any) -> "Future[Ready]":
        """Give it the plan, as `Cluster.shared` made it of a `GridPlan`."""

    def take(self, files: Any) -> "Future[Ready]":
        """Give it a model that it lacks, as `Cluster.shared` made it of `ModelFiles`."""

    def exchange(self, orders: Orders) -> "Future[Report]":
        """Tell it what is new; it answers when it has news or has waited. One at a time."""

    def nudge(self) -> None:
        """Have an exchange that waits, or else the next one, answer now."""

    def close(self) -> None:
        """End the process, and do not wait for it."""


class Cluster(Protocol):
    """The machines that a run may use, while it lasts."""

    def machines(self) -> Sequence[NodeMachine]:
        """List those that are there now. Raises ClusterEnded where nothing can be reached any more."""

    def start(self, machine: NodeMachine, hello: Hello) -> NodeLink:
        """Start a node's process on a machine; its `welcome` says when it is there."""

    def about(self) -> str:
        """Say in a few words which machines are there."""

    def held(self, machine: NodeMachine) -> str:
        """Say what others have of a machine that a node waits for; empty: nothing that is known."""

    def want(self, more: int) -> None:
        """Ask for so many more machines, of whoever starts them where they are lacking; said again, it may be again."""

    def shared(self, value: GridPlan | ModelFiles) -> Any:
        """Make a value ready to be given to any node, sent to each machine once."""

    def close(self) -> None:
        """Let go of everything, and end what was started for this run."""
