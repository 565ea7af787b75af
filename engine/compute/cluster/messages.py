"""What the head of a run and its nodes tell each other: plain frozen data, whatever carries it.

The head asks and a node answers, one exchange at a time. What is large (ids of texts, vectors) is arrays, which a
carrier may hand over without a copy; they are only read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.grid import Layout
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.corpus.tokens import Ids, Lengths, Specials
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


@dataclass(frozen=True)
class RemoteFacts:
    """A device of a node as the head needs it for planning."""

    facts: DeviceFacts
    capability: tuple[int, int] | None
    processors: int


@dataclass(frozen=True)
class Welcome:
    """What a node says of itself; `trouble` is why it cannot compute."""

    devices: Sequence[RemoteFacts] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class TokenFacts:
    """What a node knows of all texts for one tokenizer: their full lengths [texts], and what is put around ids."""

    lengths: Lengths
    specials: Specials


@dataclass(frozen=True)
class PassPlan:
    """One pass as a node gets it, once; `tokens` names its tokenizer in `GridPlan.tokens`."""

    model_pass: int
    spec: ModelSpec
    layout: Layout
    tokens: str
    fingerprint: str


@dataclass(frozen=True)
class GridPlan:
    """The grid of a run, once for every node."""

    passes: Sequence[PassPlan]
    tokens: Mapping[str, TokenFacts]
    roster: int
    """The number of passes, those that the grid lacks included."""
    granted: int
    """Leases that were granted in earlier sessions."""
    pickles: tuple[str, ...]


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model that a node lacks, by their path in its snapshot."""

    key: str
    files: Mapping[str, npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class Ready:
    """What became of the plan: models that are `lacking` have to be sent; `refused` passes fit nowhere on the node, for
    these reasons; `trouble` is why it cannot compute at all."""

    lacking: Sequence[str] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True)
class Texts:
    """Stored ids of texts of a pass, end to end: those of `texts[i]` end at `ends[i]`."""

    model_pass: int
    texts: npt.NDArray[np.int64]
    ends: Lengths
    ids: Ids


@dataclass(frozen=True)
class Assigned:
    """Batches of a pass for a node, with the ids of their texts."""

    batches: Sequence[int]
    texts: Texts


@dataclass(frozen=True)
class Phase:
    """What is open for computing: `batches` of each pass, on a schedule. Phases are numbered from 1."""

    number: int = 0
    schedule: str = "exclusive"
    batches: Mapping[int, Sequence[int]] = field(default_factory=dict)
    later: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """What would come after it: a model that can be read ahead."""


@dataclass(frozen=True)
class Orders:
    """What the head wants of a node from now on, and what is new for it."""

    phase: Phase
    """What is open; a node is told its batches once."""
    closed: frozenset[int] = frozenset()
    """Passes of the phase of which nothing more will come."""
    handed: Sequence[Assigned] = ()
    dropped: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Batches by pass that another node has computed first."""
    texts: Sequence[Texts] = ()
    """Ids that were asked for."""
    paused: bool = False
    cpu_fallback: bool = True
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
    wants: Mapping[int, int] = field(default_factory=dict)
    """Batches by pass that it would take."""
    asks: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Texts by pass whose ids it lacks."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Passes that it cannot compute, and why."""
    phase: int = 0
    """The phase that it knows of, which `refused` is about."""
    working: int = 0
    """The phase that it computes, which `wants` is about; 0 while it has none."""
    ended: int = 0
    """The last phase whose leases it has given back; what it was handed in that and did not commit is handed back."""
    reached: Mapping[str, str] = field(default_factory=dict)
    """Controls as they are in force there."""
    trouble: str = ""
    """Why it can compute nothing more."""
