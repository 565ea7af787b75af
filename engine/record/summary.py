"""`summary.json`: what a run did, for people who audit it; derived from the folded state and nothing else.

What it tells of events are the events' own types. The schema is versioned: version 1 only ever gains optional fields.
`summary-1.schema.json` beside this file is generated from these types and checked for drift.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from interlock.engine.record import atomic
from interlock.engine.record import events as ev
from interlock.engine.record.facts import (
    REFUSALS_TOLD,
    Artefact,
    Canary,
    Computed,
    DeviceFacts,
    DeviceLoss,
    Grant,
    KeptVectors,
    LawMeasured,
    MissingModel,
    Mitigation,
    ParkedRow,
    Receipt,
    Recovery,
    Refusal,
    Residue,
    Resolution,
    Setting,
    Status,
    Verification,
    joined,
    node_of,
    says,
    timed,
)
from interlock.engine.record.fold import uncollected
from interlock.engine.record.snapshot import coverage, snapshot
from interlock.engine.record.state import CollectionState, LeaseState, RunState, Share
from interlock.engine.record.words import unarmed

SCHEMA_FILE = "summary-1.schema.json"
T = TypeVar("T", bound=Struct)
S = TypeVar("S", bound=Struct)


class PassSummary(Struct, frozen=True, kw_only=True):
    """One model over the distinct texts of one collection, as it ran in all sessions together."""

    model_pass: Annotated[int, says("index of the model in the roster, from 0 (shown from 1)")]
    model: str
    commit: Annotated[str | None, says("commit SHA of the model's repository; null if it has none")]
    fingerprint: str
    dtype: Annotated[
        str,
        says("precisions its rows were computed in, joined by commas; the roster's if no row was computed"),
    ]
    pooling: Annotated[str, says("how states of tokens become a vector; empty in older journals")] = ""
    max_tokens: Annotated[int, says("tokens of a text that the model takes at most; 0 in older summaries")] = 0
    document_prompt: Annotated[str, says("what was put before every text")] = ""
    query_prompt: Annotated[str, says("what is put before every query")] = ""
    device: Annotated[str | None, says("devices that computed it, joined by commas; null if none did")]
    computed: Annotated[list[Computed], says("`rows` by device and precision")] = []
    weight: float
    status: Literal["completed", "incomplete", "failed"]
    batches: int
    rows: Annotated[int, says("distinct texts encoded in this run, without parked ones")]
    rows_reused: Annotated[int, says("distinct texts reused from an earlier run")]
    tokens: Annotated[int, says("tokens of all planned batches, computed or not; reused texts have none")]
    padding: Annotated[int, says("padding tokens of all planned batches")]
    truncated_rows: Annotated[int, says("distinct texts longer than the model's limit, including reused ones")]
    truncated_tokens: Annotated[int, says("tokens cut off from them")]
    split_rows: Annotated[int, says("distinct texts longer than the model's limit that are embedded in spans")] = 0
    spans: Annotated[int, says("spans that they are split into")] = 0
    split_tokens: Annotated[int, says("tokens that this takes beyond those of cutting them off, part of `tokens`")] = 0
    seconds: Annotated[
        float | None,
        says(
            "sum of its batches' wall times (two devices at work for 10 s are 20 s); the last time counts "
            "for recomputed batches; null if the device is simulated"
        ),
    ]
    rows_per_second: Annotated[
        float | None,
        says("rows / seconds: the rate of one device; null if the device is simulated"),
    ]
    reason: str = ""
    kind: Annotated[
        Literal["dense", "sparse"], says("what the model makes of a text: a vector, or weights of terms")
    ] = "dense"
    terms_per_text: Annotated[
        float | None,
        says("mean number of terms of the texts encoded in this run; null if there are none, and of a dense model"),
    ] = None
    token_vectors: Annotated[
        int | None, says("vectors of tokens of the texts encoded in this run; null where they are not kept")
    ] = None
    token_bytes: Annotated[int | None, says("what these take in the run directory; null where they are not kept")] = (
        None
    )
    rows_without_terms: Annotated[
        int | None,
        says("texts encoded in this run that have no term at all, and are found by no query; null of a dense model"),
    ] = None
    coverage: Annotated[
        float | None,
        says(
            "share of the tokens of its texts, reused ones too, that the model made this of: below 1 where texts are "
            "truncated; null if there are none, and in older runs"
        ),
    ] = None


class LeaseSummary(Grant, frozen=True, kw_only=True):
    """A lease from its grant to its receipts."""

    warm: Annotated[bool, says("the weights were already in host memory")]
    weights_bytes: int
    attach_seconds: float | None
    held_seconds: Annotated[
        float | None,
        says("null if the process died before the release, or if the device is simulated"),
    ]
    receipts: list[Receipt]


class DeviceSummary(DeviceFacts, frozen=True, kw_only=True):
    """A device of the last session."""

    peak_occupied_bytes: Annotated[int, says("peak of this process, from receipts and samples")]
    lost: Annotated[str, says("why it was lost; empty if it was not")]


class NodeSummary(Struct, frozen=True, kw_only=True):
    """A node of a cluster, over all sessions."""

    name: str
    label: Annotated[str, says("the machine that it was last")]
    devices: list[str]
    batches: Annotated[int, says("committed batches that its devices computed")]
    rows: Annotated[int, says("texts of them")]
    seconds: Annotated[float | None, says("sum of their wall times; null if the device is simulated")]
    lost: Annotated[list[str], says("why it was lost, each time")]
    batches_again: Annotated[int, says("batches that it alone held when it was lost, computed again")]
    rows_again: Annotated[int, says("texts of them")]
    batches_doubled: Annotated[int, says("batches that another node was given too, because this one was slow")]
    sent_bytes: Annotated[int, says("bytes of models that were sent to it")]
    refused: Annotated[str, says("why it took no part in the last session; empty if it did")]


class ControlSummary(Struct, frozen=True, kw_only=True):
    """Something an operator asked for during the run."""

    control: str
    value: str
    who: str
    at: Annotated[str, says("time of the answer")]
    refused: Annotated[str, says("why it was refused; empty if it was applied")]


class CacheEvent(Resolution, frozen=True, kw_only=True):
    """Where the files of a model came from, and how often that was tried again."""

    seconds: Annotated[float | None, says("null if the device is simulated")]  # type: ignore[assignment]
    retries: int


class CollectionSummary(Struct, frozen=True, kw_only=True):
    """One collection, and every pass over it."""

    name: str
    status: Status
    reason: str
    files: int
    chunks: int
    duplicates: Annotated[int, says("chunks with a text seen before; encoded once, delivered each")]
    refused: int
    truncated: Annotated[int, says("texts truncated by the model that truncates most")]
    refusals: Annotated[list[Refusal], says(f"the first {REFUSALS_TOLD}")]
    refused_by_reason: Annotated[dict[str, int], says("all refusals, counted by reason")] = {}
    refused_files: Annotated[int | None, says("of what was refused, files; null in older runs")] = None
    records: Annotated[int, says("records that its files hold: chunks, same and refused; 0 in older runs")] = 0
    same: Annotated[int, says("records left out as copies, in all that they hold, of an earlier one")] = 0
    elsewhere: Annotated[
        dict[str, int], says("what other shards of a run count: chunks, same, refused, and words of chunks for BM25")
    ] = {}
    renamed: Annotated[int, says("chunks kept under further ids, since others had theirs")] = 0
    exports: list[Artefact]
    qdrant_collection: str
    verification: Verification | None
    passes: list[PassSummary]
    leases: Annotated[
        list[LeaseSummary],
        says("leases of the passes of this collection; one lease serves all collections of its pass"),
    ]
    mitigations: list[Mitigation]
    pressure_passed: Annotated[list[Recovery], says("ends of memory pressure")] = []
    parked: list[ParkedRow]
    cache: list[CacheEvent]
    warnings: Annotated[list[str], says("of all sessions, each once")]
    vectors: Annotated[list[KeptVectors], says("its dense vectors in files and in the store")] = []
    missing: Annotated[
        list[MissingModel], says("models that it was delivered without (--allow-missing); the others took their share")
    ] = []


class Summary(Struct, frozen=True, kw_only=True):
    """What a run did."""

    schema_version: Literal["1"] = "1"
    run_id: str
    status: Status
    reason: str
    exit_code: int | None
    started_at: str
    finished_at: str
    seconds: Annotated[float | None, says("sum over all sessions; null if the device is simulated")]
    sessions: int
    batches_lost: Annotated[int, says("committed batches whose vectors were lost in a crash and recomputed")]
    device_kind: str
    devices: list[DeviceSummary]
    schedule: Annotated[str, says("schedule at the end; `controls` has the changes")]
    controls: list[ControlSummary]
    canaries: Annotated[list[Canary], says("rows computed to try out a model on a device, before its first batch")] = []
    calibrations: list[LawMeasured]
    residues: list[Residue]
    fusion: str
    chunks: str
    collections: list[CollectionSummary]
    configuration: dict[str, Setting]
    versions: dict[str, str]
    environment: dict[str, str]
    warnings: list[str]
    share_done: Annotated[
        float | None,
        says("share of the predicted cost of all passes that was done, 0 to 1; null in older summaries"),
    ] = None
    losses: Annotated[list[DeviceLoss], says("devices that were lost, in all sessions")] = []
    begun: Annotated[
        bool,
        says("false where it ended before any chunks were read: what there was to embed is not known then"),
    ] = True
    nodes: Annotated[list[NodeSummary] | UnsetType, says("nodes of the cluster; left out on one machine")] = UNSET


@uncollected()
def summarise(state: RunState) -> Summary:
    """Make the summary of a state that has seen at least `run_started`."""
    started = state.started
    assert started is not None
    return _made(
        Summary,
        (state, started),
        status=state.status or "incomplete",
        started_at=_iso(state.began_at),
        finished_at=_iso(state.latest_at),
        seconds=round(state.elapsed, 3) if state.timed else None,
        sessions=state.session + 1,
        devices=[
            DeviceSummary(**asdict(gauge.facts), peak_occupied_bytes=gauge.peak, lost=gauge.lost)
            for gauge in state.devices.values()
        ],
        controls=[_made(ControlSummary, (each,), at=_iso(each.at)) for each in state.controls],
        canaries=[_untimed(state, canary, "seconds") for canary in state.canaries],
        calibrations=list(state.calibrations.values()),
        collections=[_collection(state, collection) for collection in state.collections.values()],
        configuration=started.config,
        begun=bool(state.collections),
        warnings=list(state.warnings),
        share_done=round(snapshot(state, 0).share_done, 4),
        nodes=_nodes(state) if state.nodes else UNSET,
    )


@uncollected()
def dumps(summary: Summary) -> bytes:
    """Write out the bytes of `summary.json`."""
    return unarmed(msgspec.json.format(msgspec.json.encode(summary), indent=2)) + b"\n"


def write(summary: Summary, path: Path) -> None:
    """Put the summary at `path`, whole or not at all."""
    atomic.write_bytes(path, dumps(summary))


def load(data: bytes) -> Summary:
    """Read a summary; raises msgspec's ValidationError where it breaks the schema."""
    return msgspec.json.decode(data, type=Summary)


def schema_text() -> str:
    """Write out the JSON Schema (2020-12) of `summary.json`."""
    named = msgspec.json.schema(Summary)["$defs"]
    for part in named.values():
        part["additionalProperties"] = False
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:interlock:summary:1"}
    return json.dumps({**about, **named.pop("Summary"), "$defs": named}, indent=2) + "\n"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _made(kind: type[T], sources: tuple[object, ...], **own: object) -> T:
    """Project what is known to a type of the summary: each field is the one of `own`, else what the first of the
    `sources` that has a field of its name says, else what is usual. Facts within are told by the summary's types of
    them, which leave out an event's place."""
    for name in kind.__struct_fields__:
        source = next((each for each in sources if hasattr(each, name)), None) if name not in own else None
        if source is not None:
            own[name] = getattr(source, name)
    said = {name: value for name, value in own.items() if value is not UNSET}
    return msgspec.convert(said, kind, from_attributes=True)


def _untimed(state: RunState, fact: S, *seconds: str) -> S:
    """Leave out the seconds of a fact where those of the run say nothing."""
    return fact if state.timed else replace(fact, **dict.fromkeys(seconds))


def _collection(state: RunState, collection: CollectionState) -> CollectionSummary:
    shares = collection.shares
    parked = [state.parked.get(model_pass, {}).get(collection.name, {}) for model_pass in shares]
    return _made(
        CollectionSummary,
        (collection, collection.read),
        status=collection.status or ("stopped" if state.status == "stopped" else "incomplete"),
        truncated=max((share.plan.truncated for share in shares.values()), default=0),
        refusals=collection.refusals[:REFUSALS_TOLD],
        refused_by_reason=collection.read.reasons,
        exports=list(collection.artefacts.values()),
        passes=[_pass(state, share) for share in shares.values()],
        leases=[_lease(state, lease) for lease in state.leases.values() if lease.model_pass in shares],
        mitigations=[
            _untimed(state, _made(Mitigation, (step,), measured_bytes=None, free_bytes=step.free), "cost_seconds")
            for step in collection.mitigations
        ],
        parked=[row for rows in parked for row in rows.values()],
        cache=[
            _untimed(
                state,
                _made(CacheEvent, (model,), retries=sum(retry.model == model.model for retry in state.retries)),
                "seconds",
            )
            for model in state.models
        ],
        warnings=list(collection.warnings),
        vectors=list(collection.kept.values()),
    )


def _pass(state: RunState, share: Share) -> PassSummary:
    plan, entry, done = share.plan, state.roster[share.plan.model_pass], share.done
    # A pass that failed took nothing from a collection that it had computed whole before.
    failure = None if share.whole else state.failures.get(plan.model_pass)
    computed = {place: rows for place, rows in sorted(share.computed.items()) if rows}
    encoded, sparse = sum(computed.values()), "sparse" in entry.gives
    return _made(
        PassSummary,
        (plan, entry),
        dtype=joined(dtype for _, dtype in computed) or entry.dtype,
        device=joined(device for device, _ in computed) or None,
        computed=[Computed(device=name, dtype=dtype, rows=rows) for (name, dtype), rows in computed.items()],
        status="completed" if share.whole else "failed" if failure else "incomplete",
        rows=encoded,
        rows_reused=plan.reused,
        truncated_rows=plan.truncated,
        split_rows=plan.split,
        seconds=round(done.seconds, 3) if state.timed else None,
        rows_per_second=round(encoded / done.seconds, 2) if state.timed and done.seconds else None,
        reason=failure.reason if failure else "",
        terms_per_text=round(done.terms / encoded, 1) if encoded and sparse else None,
        token_vectors=done.token_vectors if entry.tokens else None,
        token_bytes=done.token_vectors * entry.tokens.bytes if entry.tokens else None,
        rows_without_terms=done.termless if sparse else None,
        coverage=None if (seen := coverage([plan])) is None else round(seen, 4),
    )


def _nodes(state: RunState) -> list[NodeSummary]:
    done: dict[str, list[ev.BatchCommitted]] = {name: [] for name in state.nodes}
    for batches in state.committed.values():
        for batch in batches.values():
            done.get(node_of(batch.device.partition(",")[0]), []).append(batch)
    return [
        _made(
            NodeSummary,
            (node,),
            name=name,
            batches=len(done[name]),
            rows=sum(batch.rows for batch in done[name]),
            seconds=round(sum(batch.seconds for batch in done[name]), 3) if state.timed else None,
            lost=node.losses,
        )
        for name, node in state.nodes.items()
    ]


def _lease(state: RunState, lease: LeaseState) -> LeaseSummary:
    summary = _made(LeaseSummary, (lease,))
    if state.timed and timed(lease.device_kind):
        return summary
    return replace(summary, attach_seconds=None, held_seconds=None)
