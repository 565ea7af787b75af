"""Every fact of a run as one small frozen type; journal, state and summary are folds of these.

An event says what happened and never how it is shown. What it tells that state and summary use too is a type of
`facts`, which the event extends by its place. Types are only ever extended by optional fields.
"""

from collections.abc import Callable

from msgspec import Struct

from interlock.engine.record import facts


class Event(Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=False):
    """Base of all events."""


class Heartbeat(Event, frozen=True):
    """How something stands, told about once a second: nothing that a node's report hurries for."""


class ControlEvent(Event, frozen=True):
    """What became of something that an operator asked for; `control` and `value` say what."""

    control: str
    value: str


class RunStarted(Event, frozen=True, tag="run_started"):
    run_id: str
    chunks: str
    config: dict[str, facts.Setting]
    fusion: str
    schedule: str
    versions: dict[str, str]
    environment: dict[str, str]


class RunResumed(Event, frozen=True, tag="run_resumed"):
    """A new session; what it was called with counts from now on. `committed` batches were there (None: not told)."""

    versions: dict[str, str]
    chunks: str
    config: dict[str, facts.Setting]
    environment: dict[str, str]
    schedule: str = ""
    run_id: str = ""
    committed: int | None = None


class DeadlineSet(Event, frozen=True, tag="deadline_set"):
    """When this session must be over: as `asked`, in `seconds`, at `ends`; `partial`: what is complete is exported."""

    asked: str
    seconds: float
    ends: float
    partial: bool


class DevicesFound(Event, frozen=True, tag="devices_found"):
    """What this session computes on."""

    devices: list[facts.DeviceFacts]


class DeviceSampled(Heartbeat, frozen=True, tag="device_sampled"):
    """How a device stands, about once a second while models are leased."""

    device: str
    memory: facts.Memory
    readings: facts.Readings | None = None


class RecordsRead(Heartbeat, frozen=True, tag="records_read"):
    """How many records of a collection have been read so far, about once a second."""

    collection: str
    records: int


class DeviceLost(facts.DeviceLoss, Event, frozen=True, kw_only=True, tag="device_lost"):
    """A device that failed for good, as far as this process goes."""


class MemoryTaken(facts.Squeeze, Event, frozen=True, kw_only=True, tag="memory_taken"):
    """Told once when it begins and once when it is over."""


class DiskLow(facts.DiskShortage, Event, frozen=True, kw_only=True, tag="disk_low"):
    """Told once when it falls so low and once when it is over."""


class MemoryLow(facts.MemoryShortage, Event, frozen=True, kw_only=True, tag="memory_low"):
    """Told once when it falls so low and once when it is over."""


class NodeJoined(Event, frozen=True, tag="node_joined"):
    """A node that computes from now on, or again; `label` names its machine, `sent_bytes` were sent of the models."""

    node: str
    label: str
    devices: list[facts.DeviceFacts]
    sent_bytes: int = 0
    seconds: float = 0.0


class NodeLost(Event, frozen=True, tag="node_lost"):
    """A node that is gone or does not answer; the `batches` (of `rows`) that it alone held are computed elsewhere."""

    node: str
    reason: str
    batches: int
    rows: int


class NodeRefused(Event, frozen=True, tag="node_refused"):
    """A node that cannot take part, and why."""

    node: str
    reason: str


class ControlReached(ControlEvent, frozen=True, kw_only=True, tag="control_reached"):
    """What an operator asked for is in force on a node: told once for every change and every node that was there."""

    node: str


class BatchesDoubled(Event, frozen=True, tag="batches_doubled"):
    """Batches that a slow `node` holds near the end of a pass are given to an `other` too: the first result counts."""

    model_pass: int
    node: str
    other: str
    batches: list[int]
    rows: int


class ControlApplied(ControlEvent, frozen=True, kw_only=True, tag="control_applied"):
    """Something an operator changed while the run went on, and from when on it counts."""

    who: str


class ControlRefused(ControlEvent, frozen=True, kw_only=True, tag="control_refused"):
    """Something an operator asked for that cannot be, and why."""

    who: str
    reason: str


class ModelResolved(facts.Resolution, Event, frozen=True, tag="model_resolved"):
    """A model's files are here."""


class DownloadRetried(Event, frozen=True, tag="download_retried"):
    model: str
    attempt: int
    wait_seconds: float
    reason: str


class RosterResolved(Event, frozen=True, tag="roster_resolved"):
    """The models in the order of their passes, the primary first; `paces`: tokens a second in earlier runs, or 0."""

    roster: list[facts.RosterEntry]
    paces: dict[str, float] = {}


class RecordRefused(facts.Refusal, Event, frozen=True, kw_only=True, tag="record_refused"):
    """What was left out of a collection; only the first REFUSALS_TOLD are told."""

    collection: str


class CollectionRead(Event, frozen=True, tag="collection_read"):
    """What a collection holds; texts that stood in those of `borrows` before are theirs.

    Each of its `records` is a chunk, the `same` as an earlier one in all that it holds and left out, or refused.
    `reasons` counts all that was refused by its reason; `refused_files` of it are files, whole or from some place on.
    `renamed` chunks have ids that others gave themselves too, and `unread` files beside them only look like chunk
    files. The last five are 0 in older journals. `elsewhere` has what other shards of a run count, but for files.
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
    records: int = 0
    same: int = 0
    renamed: int = 0
    refused_files: int = 0
    unread: int = 0
    elsewhere: dict[str, int] = {}


class CorpusTokenised(Event, frozen=True, tag="corpus_tokenised"):
    """`digest` is the SHA-256 of the distinct texts' digests in their order; empty in older journals."""

    models: list[str]
    texts: int
    tokens: int
    seconds: float
    digest: str = ""


class BlockRead(Event, frozen=True, tag="block_read"):
    """So many distinct texts were read while a pass began to be computed; `digest` is the SHA-256 of theirs."""

    texts: int
    digest: str


class PassPlanned(facts.Planned, Event, frozen=True, kw_only=True, tag="pass_planned"):
    """What one model will do for one collection; its `batches` of the pass begin at `first_batch`.

    `cost` predicts each of them. `seen_tokens` are all that the model's limit lets it see, those of reused texts too.
    Both are None in older journals.
    """

    model_pass: int
    model: str
    collection: str
    first_batch: int
    plan: str
    cost: facts.Cost | None = None
    seen_tokens: int | None = None


class RowsReused(Event, frozen=True, tag="rows_reused"):
    """Rows of a pass that were taken over from the run in `source`, before the rest was planned.

    `mask` says which: a bit for each text, packed and deflated. `crcs` are the CRC-32 of each 512 of them in their
    order, the last of fewer.
    """

    model_pass: int
    model: str
    source: str
    rows: int
    mask: bytes
    crcs: list[int]


class BatchesLost(Event, frozen=True, tag="batches_lost"):
    """Committed batches that are done again: their vectors did not survive, or came from a bad `node`."""

    model_pass: int
    batches: list[int]
    node: str = ""


class ParkedRetried(Event, frozen=True, tag="parked_retried"):
    """Batches of an earlier session with `rows` that were parked are computed again, and why."""

    model_pass: int
    batches: list[int]
    rows: int
    cause: str


class LeaseGranted(facts.Grant, Event, frozen=True, kw_only=True, tag="lease_granted"):
    """`rows` and `batches` that it is for: what its turn has left, or those of a batch that falls back to the CPU."""

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


class ModelMoved(Event, frozen=True, tag="model_moved"):
    """The weights of a reranker were copied to a device, from files (`source` "disk") or one they left, and why."""

    lease: str
    model: str
    source: str
    device: str
    bytes: int
    cause: str
    seconds: float


class ModelUnloaded(Event, frozen=True, tag="model_unloaded"):
    """The weights of a reranker were dropped from a device, and why; the lease's receipt says what stayed."""

    lease: str
    model: str
    device: str
    bytes: int
    cause: str
    seconds: float


class PairsPlanned(Event, frozen=True, tag="pairs_planned"):
    """Pairs of a query and a text that a reranker is about to score, in batches by length."""

    model: str
    pairs: int
    batches: int
    tokens: int
    padding: int
    truncated: int
    truncated_tokens: int


class PairsScored(Event, frozen=True, tag="pairs_scored"):
    """Every pair has its score; `device` and `dtype` name each that computed one, sorted and joined by commas."""

    model: str
    pairs: int
    tokens: int
    forwards: int
    device: str
    dtype: str
    seconds: float


class RerankerPassedOver(Event, frozen=True, tag="reranker_passed_over"):
    """A reranker gave no scores; `next` is tried instead, empty where none is left: the first stage's order stands."""

    model: str
    reason: str
    next: str = ""


class CanaryChecked(facts.Canary, Event, frozen=True, kw_only=True, tag="canary_checked"):
    """A model was tried out on a device before its vectors are kept."""


class MemoryCalibrated(facts.LawMeasured, Event, frozen=True, tag="memory_calibrated"):
    """The memory law was corrected; `margin` is kept beside what it says."""


class BatchCommitted(facts.Tally, Event, frozen=True, kw_only=True, tag="batch_committed"):
    """A batch as it ran.

    `device` and `dtype` name every device and precision that computed a row of it, sorted and joined by commas; `parts`
    says which computed how many, where there are several. An empty dtype, as in older journals, is the roster's.
    """

    model_pass: int
    batch_index: int
    device: str
    crc: int
    forwards: int = 1
    dtype: str = ""
    parts: list[facts.Computed] = []


class Mitigated(facts.Mitigation, Event, frozen=True, kw_only=True, tag="mitigated"):
    """A step of the ladder (`rung`); of a reranker where it has a `model`.

    What is too large for any GPU `stays`, but in a session with these `flags`, where any make the room; there are none
    in older journals, whose `action` says it in words.
    """

    batch_index: int | None = None
    cost_seconds: float = 0.0
    model: str = ""
    stays: bool = False
    flags: tuple[str, ...] = ()

    @property
    def free(self) -> int | None:
        """Bytes that were free for what fell short, by whichever name the journal has them."""
        return self.measured_bytes if self.free_bytes is None else self.free_bytes


class PressurePassed(facts.Recovery, Event, frozen=True, tag="pressure_passed"):
    """What was short of memory is no longer."""


class RowParked(facts.ParkedRow, Event, frozen=True, kw_only=True, tag="row_parked"):
    """A row was given up; its collection cannot be complete."""

    collection: str
    batch_index: int | None = None


class LeaseReleased(Event, frozen=True, tag="lease_released"):
    lease: str
    model_pass: int
    model: str
    held_seconds: float
    receipts: list[facts.Receipt]


class ResidueFound(facts.Residue, Event, frozen=True, tag="residue_found"):
    """A released lease left something behind."""


class EnsemblePassCompleted(Event, frozen=True, tag="ensemble_pass_completed"):
    """The end of a pass, over all sessions.

    `rows` are those that were not reused, parked ones included, and `seconds` those of their batches added up: two
    devices at work for 10 s are 20 s. `device` and `dtype` name all that computed; empty where none did.
    """

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


class DeliveredWithout(Event, frozen=True, tag="delivered_without"):
    """A collection is about to be delivered without these models; `weights` are those of the dense ones that remain."""

    collection: str
    models: list[facts.MissingModel]
    weights: dict[str, float]


class ArtefactWritten(facts.Artefact, Event, frozen=True, kw_only=True, tag="artefact_written"):
    """A file of a collection was delivered."""

    collection: str


class StoreVerified(facts.Verification, Event, frozen=True, kw_only=True, tag="store_verified"):
    """A collection of the store was read back."""

    collection: str
    qdrant_collection: str


class VectorsKept(facts.KeptVectors, Event, frozen=True, kw_only=True, tag="vectors_kept"):
    """What the dense vectors of a collection take in a place, and what it costs where they were made smaller."""

    collection: str


class CollectionClosed(Event, frozen=True, tag="collection_closed"):
    collection: str
    status: facts.Status
    reason: str


class Warned(Event, frozen=True, tag="warned"):
    message: str
    collection: str | None = None


class RunClosed(Event, frozen=True, tag="run_closed"):
    status: facts.Status
    reason: str
    exit_code: int
    mitigations: int = 0  # of all sessions; 0 in older journals


Begins = RunStarted | RunResumed | DeadlineSet | DevicesFound
Beats = DeviceSampled | RecordsRead
Joins = NodeJoined | NodeLost | NodeRefused | BatchesDoubled
Steers = DeviceLost | MemoryTaken | DiskLow | MemoryLow | ControlApplied | ControlRefused | ControlReached
Reads = ModelResolved | DownloadRetried | RosterResolved | RecordRefused | CollectionRead | CorpusTokenised | BlockRead
Plans = RowsReused | PassPlanned | BatchesLost | ParkedRetried | LeaseGranted | ModelAttached | CanaryChecked
Scores = ModelMoved | ModelUnloaded | PairsPlanned | PairsScored | RerankerPassedOver
Computes = MemoryCalibrated | BatchCommitted | Mitigated | PressurePassed | RowParked
Ends = LeaseReleased | ResidueFound | EnsemblePassCompleted | PassFailed
Delivers = DeliveredWithout | ArtefactWritten | StoreVerified | VectorsKept | CollectionClosed | Warned | RunClosed
Progress = Begins | Joins | DeviceLost | Reads | Plans | Scores | Computes | Ends | Delivers
"""Signs that a run goes on. What is told whether or not it does is an event beside these."""
AnyEvent = Beats | Steers | Progress
Emit = Callable[[AnyEvent], object]


class Entry(Struct, frozen=True, kw_only=True):
    """An event in its place: `seq` from 0 in the run, `at` since the epoch, `elapsed` since its session began."""

    seq: int
    at: float
    session: int
    elapsed: float
    device_kind: str
    body: AnyEvent
