"""Every fact of a run as one small frozen type; journal, state and summary are folds of these.

An event says what happened and never how it is shown. Sizes are bytes, durations are seconds, and a
`row` is the place of a distinct text in the run; only a file that was delivered has a row for every chunk.
Types are only ever extended by optional fields. What the summary tells of an event is a type of its own, which the
event adds its place to; descriptions of fields are those of the summary's schema.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Outcome = Literal["hit", "download", "refresh"]
Status = Literal["completed", "incomplete", "failed", "skipped", "stopped"]


class Event(Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=False):
    """Base of all events."""


def says(text: str) -> Meta:
    """Describe a field, for the schema of the summary."""
    return Meta(description=text)


class Setting(Struct, frozen=True):
    """One value of the configuration and where it came from."""

    value: Any
    origin: Annotated[str, says("default, file, environment, flag, Python, or the resumed run")]


class RosterEntry(Struct, frozen=True, kw_only=True):
    """A model of the run as it was resolved before any work."""

    model: str
    weight: float
    source: str
    commit: str | None
    fingerprint: str
    dim: int
    dtype: str
    max_tokens: int
    document_prompt: str
    query_prompt: str
    batch_tokens: int


class Memory(Struct, frozen=True, kw_only=True):
    """What a device holds."""

    allocated: Annotated[int, says("bytes held by this process's tensors")]
    occupied: Annotated[int, says("bytes held as the driver reports them; on a CPU, those of the process")]
    reserved: Annotated[int, says("bytes the allocator reserved for them; 0 on a CPU")] = 0


class Readings(Struct, frozen=True, kw_only=True):
    """What the driver says of a device: bytes of all processes, percent, degrees Celsius, watts."""

    used: int
    total: int
    others: int | None = None
    utilisation: int | None = None
    temperature: int | None = None
    power: float | None = None


class Receipt(Struct, frozen=True, kw_only=True):
    """What a lease measured: before it, at its peak and after its release, per device."""

    device: str
    before: Memory
    peak: Memory
    after: Memory
    residue_bytes: int
    retries: Annotated[int, says("how often the allocator emptied its cache before an allocation succeeded")] = 0
    lost: Annotated[bool, says("the device was lost, so its memory is unknown")] = False


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """A device that a run may lease; `ceiling_bytes` is the most that this run may occupy on it."""

    name: str
    kind: str
    label: str
    total_bytes: int
    ceiling_bytes: int


class RunStarted(Event, frozen=True, tag="run_started"):
    run_id: str
    chunks: str
    config: dict[str, Setting]
    fusion: str
    schedule: str
    versions: dict[str, str]
    environment: dict[str, str]


class RunResumed(Event, frozen=True, tag="run_resumed"):
    """A new session; what it was called with counts from now on. `committed` batches were there (None: not told, as in
    older journals)."""

    versions: dict[str, str]
    chunks: str
    config: dict[str, Setting]
    environment: dict[str, str]
    schedule: str = ""
    run_id: str = ""
    committed: int | None = None


class DevicesFound(Event, frozen=True, tag="devices_found"):
    """What this session computes on."""

    devices: list[DeviceFacts]


class DeviceSampled(Event, frozen=True, tag="device_sampled"):
    """How a device stands, about once a second while models are leased."""

    device: str
    memory: Memory
    readings: Readings | None = None


class DeviceLost(Event, frozen=True, tag="device_lost"):
    """A device that failed in a way that it does not come back from in this process."""

    device: str
    reason: str


class ControlApplied(Event, frozen=True, tag="control_applied"):
    """Something an operator changed while the run went on, and from when on it counts."""

    control: str
    value: str
    who: str


class ControlRefused(Event, frozen=True, tag="control_refused"):
    """Something an operator asked for that cannot be, and why."""

    control: str
    value: str
    who: str
    reason: str


class Resolution(Struct, frozen=True, kw_only=True):
    """Where the files of a model came from."""

    model: str
    source: str
    outcome: Outcome
    commit: str | None
    bytes: int
    seconds: float


class ModelResolved(Resolution, Event, frozen=True, tag="model_resolved"):
    """A model's files are here."""


class DownloadRetried(Event, frozen=True, tag="download_retried"):
    model: str
    attempt: int
    wait_seconds: float
    reason: str


class RosterResolved(Event, frozen=True, tag="roster_resolved"):
    """The models of the run in the order of their passes; the first is the primary."""

    roster: list[RosterEntry]


REFUSALS_TOLD = 100
"""Refusals that each collection tells one by one, the first of them; all of them are counted when it has been read."""


class Refusal(Struct, frozen=True):
    """A record (or, without a number, a whole file) that was left out."""

    file: str
    record: Annotated[int | None, says("record number in its file, from 1; null for the whole file")]
    reason: str


class RecordRefused(Refusal, Event, frozen=True, kw_only=True, tag="record_refused"):
    """What was left out of a collection; only the first REFUSALS_TOLD are told."""

    collection: str


class CollectionRead(Event, frozen=True, tag="collection_read"):
    """What a collection holds; some of its texts stood in the collections of `borrows` before, and are theirs.

    `reasons` counts everything that was refused, told or not, by its reason.
    """

    collection: str
    qdrant_collection: str
    files: int
    chunks: int
    duplicates: int
    refused: int
    seconds: float
    borrows: list[str] = []
    reasons: dict[str, int] = {}


class CorpusTokenised(Event, frozen=True, tag="corpus_tokenised"):
    """`digest` is the SHA-256 of the distinct texts' digests in their order; empty in older journals."""

    models: list[str]
    texts: int
    tokens: int
    seconds: float
    digest: str = ""


class Cost(Struct, frozen=True, kw_only=True):
    """Floating-point operations that a model is predicted to need for each token, and for each pair of tokens of one
    row."""

    per_token: float
    per_pair: float

    def of(self, rows: int, tokens: int) -> float:
        """Predict the operations for `tokens` tokens, padding included, in `rows` rows of nearly one length."""
        return (self.per_token + self.per_pair * tokens / max(1, rows)) * tokens


class PassPlanned(Event, frozen=True, tag="pass_planned"):
    """What one model will do for one collection; `batches` of the pass begin at `first_batch`. `flops` is what all of
    them are predicted to cost, each by `cost`; 0 and None where that is not known, as in older journals."""

    model_pass: int
    model: str
    collection: str
    first_batch: int
    batches: int
    rows: int
    reused: int
    tokens: int
    padding: int
    truncated: int
    truncated_tokens: int
    plan: str
    flops: float = 0.0
    cost: Cost | None = None


class RowsReused(Event, frozen=True, tag="rows_reused"):
    """Rows of a pass that were taken over from the run in `source`, before the rest was planned. `mask` is which: a bit
    for each text, packed and deflated; `crcs` are the CRC-32 of each 512 of them in their order, the last of fewer."""

    model_pass: int
    model: str
    source: str
    rows: int
    mask: bytes
    crcs: list[int]


class BatchesLost(Event, frozen=True, tag="batches_lost"):
    """Batches that an earlier session committed but whose vectors did not survive; they are done again."""

    model_pass: int
    batches: list[int]


class Grant(Struct, frozen=True, kw_only=True):
    """What a model was lent."""

    lease: str
    model_pass: int
    model: str
    devices: list[str]
    device_kind: str
    budget_bytes: int
    predicted_bytes: int
    budgets: Annotated[dict[str, int], says("bytes per device")] = {}
    schedule: str = "exclusive"
    streamed: Annotated[bool, says("the weights stayed on the host; layers were copied as needed")] = False


class LeaseGranted(Grant, Event, frozen=True, kw_only=True, tag="lease_granted"):
    """`rows` and `batches` are what the lease was opened for: what its turn has left, or the rows of one batch that
    fall back to the CPU, where others may follow."""

    batches: int = 0
    rows: int = 0


class ModelAttached(Event, frozen=True, tag="model_attached"):
    """`bytes` on the device; `warm` when the host had the weights already; `streamed`: they stay on the host."""

    lease: str
    model: str
    bytes: int
    seconds: float
    device: str = ""
    warm: bool = False
    streamed: bool = False


class LawMeasured(Struct, frozen=True, kw_only=True):
    """What the measured batches of a pass said of the memory law on a device."""

    model_pass: int
    device: str
    batches: int
    scale: Annotated[float, says("measured activations divided by predicted ones")]
    margin: float
    worst: Annotated[float, says("largest measured/predicted ratio of the last batches")]


class MemoryCalibrated(LawMeasured, Event, frozen=True, tag="memory_calibrated"):
    """The memory law was corrected; `margin` is kept beside what it says."""


class Computed(Struct, frozen=True, kw_only=True):
    """Rows whose vectors came from one device in one precision."""

    device: str
    dtype: str
    rows: int


class BatchCommitted(Event, frozen=True, tag="batch_committed"):
    """A batch as it ran: `device` and `dtype` name every device and precision that computed a row of it, sorted and
    joined by commas (dtype empty in older journals: the roster's). `parts` says which rows those were, unless all of
    them came from one place. `rows` counts those that were parked too; `seconds` is the wall time of the batch, with
    what its mitigations cost."""

    model_pass: int
    batch_index: int
    rows: int
    tokens: int
    padding: int
    seconds: float
    device: str
    crc: int
    forwards: int = 1
    dtype: str = ""
    parts: list[Computed] = []


class Mitigation(Struct, frozen=True, kw_only=True):
    """A step taken because something fell short, with its cause and cost."""

    model_pass: int
    batch_index: Annotated[
        int | None, says("batch in the pass, from 0 (shown from 1); null if it concerns a whole lease")
    ]
    rung: Annotated[str, says("replan, split, stream, chunk, relocate, cpu or park")] = ""
    device: Annotated[str, says("device that fell short")] = ""
    cause: str
    action: str
    rows: Annotated[int, says("distinct texts affected")]
    predicted_bytes: Annotated[int | None, says("bytes the forward was predicted to need besides the weights")] = None
    measured_bytes: Annotated[int | None, says("former name of free_bytes")] = None
    free_bytes: Annotated[int | None, says("bytes that were free for it")] = None
    foreseen: Annotated[bool, says("predicted beforehand; nothing failed")] = False
    cost_seconds: Annotated[
        float | None, says("time lost to the failure and the step; null if the device is simulated")
    ]


class Mitigated(Mitigation, Event, frozen=True, kw_only=True, tag="mitigated"):
    """A step of the ladder (`rung`) taken because memory, a device or a vector fell short."""

    cost_seconds: float

    @property
    def free(self) -> int | None:
        """Bytes that were free for what fell short, by whichever name the journal has them."""
        return self.measured_bytes if self.free_bytes is None else self.free_bytes


class Recovery(Struct, frozen=True, kw_only=True):
    """A device that was short of memory computes whole batches again."""

    model_pass: int
    batch_index: int
    device: str


class PressurePassed(Recovery, Event, frozen=True, tag="pressure_passed"):
    """What was short of memory is no longer."""


class ParkedRow(Struct, frozen=True, kw_only=True):
    """A row that has no vector of a model."""

    model_pass: int
    model: str
    row: Annotated[int, says("index of the distinct text in the run, from 0")]
    reason: str


class RowParked(ParkedRow, Event, frozen=True, kw_only=True, tag="row_parked"):
    """A row was given up; its collection cannot be complete."""

    collection: str
    batch_index: int | None = None


class LeaseReleased(Event, frozen=True, tag="lease_released"):
    lease: str
    model_pass: int
    model: str
    held_seconds: float
    receipts: list[Receipt]


class Residue(Struct, frozen=True, kw_only=True):
    """Bytes that a released lease left behind on a device, what was done about it, and what is left now."""

    lease: str
    device: str
    bytes: int
    action: str
    left_bytes: int


class ResidueFound(Residue, Event, frozen=True, tag="residue_found"):
    """A released lease left something behind."""


class EnsemblePassCompleted(Event, frozen=True, tag="ensemble_pass_completed"):
    """The end of a pass, over all sessions: `rows` that were not reused, parked ones included, `seconds` of their
    batches added up (two devices at work for 10 s are 20 s), and the devices and precisions that computed them, sorted
    and joined by commas; both are empty where nothing was left to compute."""

    model_pass: int
    model: str
    device: str
    dtype: str
    weight: float
    rows: int
    seconds: float


class PassFailed(Event, frozen=True, tag="pass_failed"):
    model_pass: int
    model: str
    reason: str


class Artefact(Struct, frozen=True, kw_only=True):
    """A file that was delivered."""

    path: Annotated[str, says("relative to the run directory")]
    rows: Annotated[int, says("one per chunk: a text that occurs in several chunks has several rows")]
    bytes: int
    sha256: str
    verified: Annotated[bool, says("read back: each row has its planned point id, text and vectors")] = False


class ArtefactWritten(Artefact, Event, frozen=True, kw_only=True, tag="artefact_written"):
    """A file of a collection was delivered."""

    collection: str


class Verification(Struct, frozen=True, kw_only=True):
    """What was read back from the vector store after writing, compared with the plan: `expected` are its rows."""

    store: str
    points: int
    expected: int
    stale: Annotated[int, says("points in the store that are no longer in this corpus")]
    sampled: int
    worst_cosine: Annotated[
        float | None, says("lowest cosine between sampled points as stored and as computed; null if none was sampled")
    ]
    ok: bool
    detail: str


class StoreVerified(Verification, Event, frozen=True, kw_only=True, tag="store_verified"):
    """A collection of the store was read back."""

    collection: str
    qdrant_collection: str


class CollectionClosed(Event, frozen=True, tag="collection_closed"):
    collection: str
    status: Status
    reason: str


class Warned(Event, frozen=True, tag="warned"):
    message: str
    collection: str | None = None


class RunClosed(Event, frozen=True, tag="run_closed"):
    status: Status
    reason: str
    exit_code: int


_Begins = RunStarted | RunResumed | DevicesFound | DeviceSampled | DeviceLost | ControlApplied | ControlRefused
_Reads = ModelResolved | DownloadRetried | RosterResolved | RecordRefused | CollectionRead | CorpusTokenised
_Plans = RowsReused | PassPlanned | BatchesLost | LeaseGranted | ModelAttached
_Computes = MemoryCalibrated | BatchCommitted | Mitigated | PressurePassed | RowParked
_Ends = LeaseReleased | ResidueFound | EnsemblePassCompleted | PassFailed
_Delivers = ArtefactWritten | StoreVerified | CollectionClosed | Warned | RunClosed
AnyEvent = _Begins | _Reads | _Plans | _Computes | _Ends | _Delivers


class Entry(Struct, frozen=True, kw_only=True):
    """An event in its place: `seq` counts from 0 in the run, `at` is seconds since the epoch (UTC),
    `elapsed` is seconds since this `session` (process) of the run began."""

    seq: int
    at: float
    session: int
    elapsed: float
    device_kind: str
    body: AnyEvent


def joined(names: Iterable[str]) -> str:
    """Write several devices or precisions as one word: sorted, by commas; empty for none."""
    return ",".join(sorted({each for name in names for each in name.split(",") if each}))


def timed(device_kind: str) -> bool:
    """Tell whether the seconds of such a device say anything: one that is simulated or scripted is not there."""
    return device_kind not in ("sim", "scripted")
