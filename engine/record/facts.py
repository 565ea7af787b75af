"""What events tell, as plain frozen data that state and summary use as well: devices, models, leases, outcomes.

Sizes are bytes, durations are seconds, and a `row` is the place of a distinct text in the run; only a file that was
delivered has a row for every chunk. The summary tells these types as they stand, and an event adds its place to the one
it extends; descriptions of fields are those of the summary's schema. Types are only ever extended by optional fields.
"""

from collections.abc import Iterable, Mapping
from operator import add, attrgetter, sub
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from interlock.engine.record.words import distinct_sizes, human_bytes

Outcome = Literal["hit", "download", "refresh"]
Status = Literal["completed", "incomplete", "failed", "skipped", "stopped"]


def says(text: str) -> Meta:
    """Describe a field, for the schema of the summary."""
    return Meta(description=text)


class Setting(Struct, frozen=True):
    """One value of the configuration and where it came from."""

    value: Any
    origin: Annotated[str, says("default, file, environment, flag, Python, or the resumed run")]


REHEARSAL = "rehearsal"
"""The origin of what a rehearsal chose, by which its runs are known."""


TokenPrecision = Literal["int8", "float16", "bit"]


class TokenForm(Struct, frozen=True, kw_only=True):
    """How the vectors of a model's tokens are kept."""

    dim: Annotated[int, says("numbers in each")]
    precision: Annotated[TokenPrecision, says("of each number")]
    pooling: Annotated[int, says("tokens that share a vector, the mean of those that are alike; 1 keeps each")]

    @property
    def bytes(self) -> int:
        """What one vector takes: an int8 one has a scale of its own."""
        return {"int8": self.dim + 4, "float16": 2 * self.dim, "bit": self.dim // 8}[self.precision]


class TermForm(Struct, frozen=True, kw_only=True):
    """What decides a model's weights of terms beside its fingerprint, where something does."""

    most: Annotated[int | None, says("terms of a text that are kept, those that weigh most; null for all")] = None
    unweighed: Annotated[tuple[int, ...], says("ids that weigh nothing, where tokens are weighed")] = ()


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
    kind: Annotated[Literal["dense", "sparse"], says("what it makes of a text: a vector, or weights of terms")] = (
        "dense"
    )
    tokens: Annotated[TokenForm | None, says("how its token vectors are kept; null without")] = None
    terms: Annotated[
        TermForm | None, says("what decides its weights of terms beside its fingerprint; null for nothing")
    ] = None
    outputs: Annotated[
        tuple[Literal["dense", "sparse", "tokens"], ...], says("what its pass gives; empty for its kind alone")
    ] = ()
    words: Annotated[int, says("size of the vocabulary whose terms it weighs beside its vectors; 0 if it does not")] = 0
    heads: Annotated[dict[str, str], says("SHA-256 of the heads beside its network that its pass computes")] = {}
    pooling: Annotated[str, says("how states of tokens become a vector; empty in older journals")] = ""
    overlap: Annotated[
        float | None,
        says("how much of a span the one before has too, where longer texts are split; null if they are cut off"),
    ] = None
    missing: Annotated[str, says("why it cannot be had, where nothing but its name and weight is known")] = ""
    tokenizer: Annotated[str, says("digest of its tokenizer, where other files than tokenizer.json decide it")] = ""

    @property
    def gives(self) -> tuple[str, ...]:
        """What its pass gives."""
        return self.outputs or (self.kind,)


class MissingModel(Struct, frozen=True, kw_only=True):
    """A model of the roster that a delivery lacks, because it cannot be had or its pass failed."""

    model_pass: Annotated[int, says("index of the model in the roster, from 0 (shown from 1)")]
    model: str
    kind: Annotated[Literal["dense", "sparse"], says("what it makes of a text: a vector, or weights of terms")]
    weight: Annotated[float, says("its share of the fusion of the whole roster; 0 of a sparse model")]
    reason: str


class Memory(Struct, frozen=True, kw_only=True):
    """What a device holds."""

    allocated: Annotated[int, says("bytes held by this process's tensors")]
    occupied: Annotated[int, says("bytes held as the driver reports them; on a CPU, those of the process")]
    reserved: Annotated[int, says("bytes the allocator reserved for them; 0 on a CPU")] = 0


class Tenant(Struct, frozen=True):
    """A process that holds memory of a device: its user where the machine tells, its bytes where the driver does."""

    pid: int
    name: str = ""
    bytes: int | None = None
    user: str = ""

    def __str__(self) -> str:
        held = "memory" if self.bytes is None else human_bytes(self.bytes)
        who = ", ".join(filter(None, (self.name, self.user)))
        return f"{held} held by pid {self.pid}" + (f" ({who})" if who else "")


NOTICED = 50 << 20
"""Bytes of others from which on they are worth a word, and what memory falls short by."""


LEAST_DISK, LEAST_MEMORY = 1 << 30, 512 << 20
"""Bytes free on the disk of a run and in its host's memory below which somebody has to look, before none is left."""


class Readings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the driver says of a device: bytes of all processes, percent, degrees Celsius, watts.

    One more figure of a device, or of the host that it is in, is an optional field here, set where the device makes its
    readings: `DeviceSampled` carries it, from nodes too, and `DeviceView.latest` has it of each of the last seconds.
    """

    used: int
    total: int
    others: int | None = None
    utilisation: int | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    throttled: str = ""  # what slows its clock down
    holders: tuple[Tenant, ...] = ()
    """Who else has memory of it, the most first, as far as this process may see them."""
    disk_free: int | None = None  # bytes of the disk that the run is written to, told by one device of that machine
    memory_free: int | None = None
    """Bytes of memory that the host, or this process's container, has free, told likewise."""
    memory_holders: tuple[Tenant, ...] = ()  # who has most of the host's, where that is too little; this process too

    def others_beside(self, occupied: int) -> int:
        """Return the bytes that others have beside those that this process occupies."""
        return max(0, self.used - occupied) if self.others is None else self.others


class Squeeze(Struct, frozen=True, kw_only=True):
    """Other processes have what the next batch needs of a device, or, if it is `over`, have no longer."""

    device: str
    others_bytes: int
    free_bytes: Annotated[int, says("what the next batch can have: what the driver has free, and our own cache")]
    needed_bytes: Annotated[int, says("what it is predicted to need, with the reserve")]
    holders: tuple[Tenant, ...] = ()
    over: bool = False

    def __str__(self) -> str:
        others, (needs, free) = human_bytes(self.others_bytes), distinct_sizes(self.needed_bytes, self.free_bytes)
        told = [f"pid {each.pid} {each.user}".rstrip() for each in self.holders[:2]]
        who = f" ({', '.join(told)})" if told else ""
        return f"{self.device}: others hold {others}{who}, {free} free: next batch needs {needs}"


class DiskShortage(Struct, frozen=True, kw_only=True):
    """The disk that the run is written to has too little free, or, if it is `over`, enough again."""

    place: str
    free_bytes: int
    over: bool = False

    def __str__(self) -> str:
        again = " again" if self.over else f": make that {human_bytes(LEAST_DISK)}, or the run stops once it is full"
        return f"{human_bytes(self.free_bytes)} free on the disk of {self.place}{again}"


class MemoryShortage(Struct, frozen=True, kw_only=True):
    """The host has too little memory free, or, if it is `over`, enough again."""

    free_bytes: int
    holders: tuple[Tenant, ...] = ()
    over: bool = False

    def __str__(self) -> str:
        told = [f"most: {each.name}, pid {each.pid}, {human_bytes(each.bytes or 0)}" for each in self.holders]
        who = next(iter(told), "none can be seen from here")
        wanted = f", {human_bytes(LEAST_MEMORY)} needed: end other programs ({who}), or the system may kill the run"
        return f"{human_bytes(self.free_bytes)} of the host's memory free{' again' if self.over else wanted}"


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


class DeviceLoss(Struct, frozen=True, kw_only=True):
    """A device that was lost."""

    device: str
    reason: str


class Resolution(Struct, frozen=True, kw_only=True):
    """Where the files of a model came from."""

    model: str
    source: str
    outcome: Outcome
    commit: str | None
    bytes: int
    seconds: float


REFUSALS_TOLD = 100
"""Refusals that each collection tells one by one, the first of all and of files; all are counted when it was read."""


class Refusal(Struct, frozen=True):
    """A record (or, without a number, a file as a whole or from some place on) that was left out."""

    file: str
    record: Annotated[int | None, says("record number in its file, from 1; null for the file, or what is left of it")]
    reason: str


class Cost(Struct, frozen=True, kw_only=True):
    """Floating-point operations that a model is predicted to need for each token, and for each pair of tokens of one
    row."""

    per_token: float
    per_pair: float

    def of(self, rows: int, tokens: int) -> float:
        """Predict the operations for `tokens` tokens, padding included, in `rows` rows of nearly one length."""
        return (self.per_token + self.per_pair * tokens / max(1, rows)) * tokens


class Planned(Struct, frozen=True):
    """What a model will do for a collection, or for several of them: all of it adds up.

    `flops` is what the batches are predicted to cost; 0 where that is not known, as in older journals. `token_bytes` is
    what the vectors of their tokens will take. `split` of the rows are longer than the model's limit and computed as
    `spans`, which takes `split_tokens` more than cutting them off.
    """

    batches: int
    rows: int
    reused: int
    tokens: int
    padding: int
    truncated: int
    truncated_tokens: int
    flops: float = 0.0
    token_bytes: int = 0
    split: int = 0
    spans: int = 0
    split_tokens: int = 0


class Tally(Struct, frozen=True):
    """What a batch did, or many of them together: all of it adds up.

    `rows` counts those that were parked too; `seconds` is the wall time, with what mitigations cost; `terms` how many
    weights the rows have, `termless` how many rows have none, and `token_vectors` how many vectors of tokens, 0 of a
    model that gives none; `spans` how many rows the forwards had, 0 where each text was one.
    """

    rows: int
    tokens: int
    padding: int
    seconds: float
    terms: int = 0
    termless: int = 0
    token_vectors: int = 0
    spans: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(add, _counts(self), _counts(other)))

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(*map(sub, _counts(self), _counts(other)))


_counts = attrgetter(*Tally.__struct_fields__)
NO_WORK = Tally(0, 0, 0, 0.0)


class Grant(Struct, frozen=True, kw_only=True):
    """What a model was lent."""

    lease: str
    model_pass: int
    model: str
    devices: list[str]
    device_kind: str
    budget_bytes: int
    predicted_bytes: Annotated[int, says("the most that a batch is predicted to take; at most the budget")]
    budgets: Annotated[dict[str, int], says("bytes per device")] = {}
    schedule: str = "exclusive"
    streamed: Annotated[bool, says("the weights stayed on the host; layers were copied as needed")] = False


class LawMeasured(Struct, frozen=True, kw_only=True):
    """What the measured batches of a pass said of the memory law on a device."""

    model_pass: int
    device: str
    batches: int
    scale: Annotated[float, says("measured activations divided by predicted ones")]
    margin: float
    worst: Annotated[float, says("largest measured/predicted ratio of the last batches")]


class Canary(Struct, frozen=True, kw_only=True):
    """What a few rows showed of a model on a kind of device: computed as in the run, and plainly in float32."""

    model_pass: int
    model: str
    device: str
    label: Annotated[str, says("make of the device")]
    dtype: str
    attention: Annotated[str, says("attention kernel")]
    rows: int
    tokens: int
    cosine: Annotated[float | None, says("lowest cosine between a row's two vectors; null if none was compared")]
    least: Annotated[float, says("cosine below which the vectors are not used")]
    outcome: Annotated[Literal["passed", "failed", "skipped"], says("skipped if there was no way to compare")]
    reference: Annotated[str, says("where the rows were computed plainly; empty if nowhere")]
    detail: Annotated[str, says("why nothing was compared")] = ""
    action: Annotated[str, says("what is done after a failure")] = ""
    remembered: Annotated[bool, says("found by an earlier run on this machine")] = False
    streamed: Annotated[bool, says("layers were copied from the host as needed")] = False
    seconds: float | None = None


class Computed(Struct, frozen=True, kw_only=True):
    """Rows whose vectors came from one device in one precision."""

    device: str
    dtype: str
    rows: int


class Mitigation(Struct, frozen=True, kw_only=True):
    """A step taken because something fell short, with its cause and cost."""

    model_pass: int
    batch_index: Annotated[
        int | None, says("batch in the pass, from 0 (shown from 1); null if it concerns a whole lease")
    ]
    rung: Annotated[str, says("replan, split, stream, relocate, float32, cpu; in old journals slice_mlp, chunk")] = ""
    device: Annotated[str, says("device that fell short")] = ""
    cause: str
    action: str
    rows: Annotated[int, says("distinct texts affected")]
    predicted_bytes: Annotated[int | None, says("bytes the forward was predicted to need besides the weights")] = None
    measured_bytes: Annotated[int | None, says("what earlier versions called free_bytes; null since")] = None
    free_bytes: Annotated[int | None, says("bytes that were free for it")] = None
    foreseen: Annotated[bool, says("predicted beforehand; nothing failed")] = False
    cost_seconds: Annotated[
        float | None,
        says("time lost to a failed forward and to the step; null if the device is simulated"),
    ]


class Recovery(Struct, frozen=True, kw_only=True):
    """A device that was short of memory computes whole batches again."""

    model_pass: int
    batch_index: int
    device: str


class ParkedRow(Struct, frozen=True, kw_only=True):
    """A row that has no vector of a model."""

    model_pass: int
    model: str
    row: Annotated[int, says("index of the distinct text in the run, from 0")]
    reason: str
    file: Annotated[str, says("where the text stands first in its collection; empty in older journals")] = ""
    record: Annotated[int | None, says("record number there, from 1")] = None
    chunk_id: Annotated[str, says("the id of that chunk; empty where nobody looked it up")] = ""

    @property
    def place(self) -> str:
        """Where it stands, for people; empty in older journals."""
        at = f"{self.file} record {self.record:,}" if self.file and self.record is not None else ""
        return at + f", chunk {self.chunk_id}" * bool(at and self.chunk_id)


class Residue(Struct, frozen=True, kw_only=True):
    """Bytes that a released lease left behind on a device, what still refers to them, and what is left now."""

    lease: str
    device: str
    bytes: int
    action: str
    left_bytes: int


class Artefact(Struct, frozen=True, kw_only=True):
    """A file that was delivered."""

    path: Annotated[str, says("relative to the run directory")]
    rows: Annotated[int, says("one per chunk, also where a text is in several; 0 of a file of another kind")]
    bytes: int
    sha256: str
    verified: Annotated[bool, says("read back: each row has its planned point id, text and vectors")] = False


class Verification(Struct, frozen=True, kw_only=True):
    """What was read back from the vector store after writing, compared with the plan: `expected` are its rows."""

    store: str
    points: int
    expected: int
    stale: Annotated[int, says("points in the store that are no longer in this corpus")]
    pruned: Annotated[int, says("points that were no longer in this corpus, and were removed")] = 0
    sampled: int
    worst_cosine: Annotated[
        float | None, says("lowest cosine between sampled points as stored and as computed; null if none was sampled")
    ]
    ok: bool
    detail: str


class KeptVectors(Struct, frozen=True, kw_only=True):
    """The dense vectors of a collection as they are kept in one place."""

    place: Annotated[str, says("the store of the collection, or the directory of its files")]
    bytes: Annotated[int, says("bytes of the dense vectors of a chunk there, before a table is compressed")]
    neighbours: Annotated[
        float | None,
        says(
            "share of the ten nearest neighbours of the sampled rows that are found as by the whole fused vectors; "
            "null where these are kept whole, or there are none"
        ),
    ] = None
    sampled: Annotated[int, says("rows, spread over the collection, whose neighbours were compared")] = 0


def node_of(name: str) -> str:
    """Name the node that a device or a lease is of, as in `node-1/cuda:0`; empty on one machine."""
    return name.rpartition("/")[0]


def on_host(device: str) -> bool:
    """Tell whether a device is the CPU, of whatever node."""
    return device.rpartition("/")[2] == "cpu"


def joined(names: Iterable[str]) -> str:
    """Write several devices or precisions as one word: sorted, by commas; empty for none."""
    return ",".join(sorted({each for name in names for each in name.split(",") if each}))


def rehearsed(config: Mapping[str, Setting]) -> bool:
    """Tell whether a run with these settings was a rehearsal, which writes its chunks itself."""
    return any(each.origin == REHEARSAL for each in config.values())


def timed(device_kind: str) -> bool:
    """Tell whether the seconds of such a device say anything: one that is simulated or scripted is not there."""
    return device_kind not in ("sim", "scripted")
