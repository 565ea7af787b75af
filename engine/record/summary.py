"""`summary.json`: what a run did, for people who audit it; derived from the folded state and nothing else.

The schema is versioned: version 1 only ever gains optional fields. `summary-1.schema.json` beside this
file is generated from these models and checked for drift.
"""

import json
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field

from interlock.engine.record import atomic
from interlock.engine.record.events import REFUSALS_TOLD, Mitigated, Status, joined, timed
from interlock.engine.record.fold import uncollected
from interlock.engine.record.safe import unarmed
from interlock.engine.record.state import Collection, Control, Gauge, Lease, RunState, Share

SCHEMA_FILE = "summary-1.schema.json"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, from_attributes=True)


class Refusal(Part):
    """A record (or, without a number, a whole file) that was left out."""

    file: str
    record: int | None = Field(description="number of the record in its file, from 1; null for the whole file")
    reason: str


class Artefact(Part):
    path: str = Field(description="relative to the run directory")
    rows: int = Field(description="chunks: a text that stands in several chunks is in several rows of the file")
    bytes: int
    sha256: str
    verified: bool = Field(
        False, description="it was read back: each row has the point id, text and vectors that were planned for it"
    )


class Verification(Part):
    """What was read back from the vector store after writing."""

    store: str
    points: int
    expected: int
    stale: int = Field(description="points in the store that this corpus no longer holds")
    sampled: int
    worst_cosine: float | None
    ok: bool
    detail: str


class ComputedSummary(Part):
    """Rows whose vectors came from one device in one precision."""

    device: str
    dtype: str
    rows: int


class PassSummary(Part):
    """One model over the distinct texts of one collection, as it ran in all sessions together."""

    model_pass: int = Field(description="place of the model in the roster, from 0; people are told it from 1")
    model: str
    commit: str | None = Field(description="commit sha of the model's repository; null when it has none")
    fingerprint: str
    dtype: str = Field(
        description="precision that its rows were computed in, several joined by commas; that of the roster where no "
        "row was computed"
    )
    device: str | None = Field(description="devices that computed it, joined by commas; null where none did")
    computed: list[ComputedSummary] = Field(default=[], description="`rows` by the device and precision they came from")
    weight: float
    status: Literal["completed", "incomplete", "failed"]
    batches: int
    rows: int = Field(description="distinct texts encoded in this run, without those that are parked")
    rows_reused: int = Field(description="distinct texts taken over from an earlier run")
    tokens: int = Field(description="of all batches as planned, computed or not; reused texts have none")
    padding: int = Field(description="tokens that batches compute for nothing, as planned")
    truncated_rows: int = Field(description="distinct texts longer than the model takes, reused ones included")
    truncated_tokens: int = Field(description="tokens of theirs that the model does not see")
    seconds: float | None = Field(
        description="wall time of its batches added up, so that two devices at work for 10 s are 20 s; of batches that "
        "were lost and done again, the last time counts; null when the device is simulated"
    )
    rows_per_second: float | None = Field(
        description="rows / seconds: the pace of one device while it computed; null when the device is simulated"
    )
    reason: str = ""


class MemorySummary(Part):
    allocated: int = Field(description="bytes held by our tensors")
    occupied: int = Field(description="bytes held in the driver's terms; on a CPU, of the process")
    reserved: int = Field(description="bytes that our allocator held for them; 0 on a CPU")


class ReceiptSummary(Part):
    device: str
    before: MemorySummary
    peak: MemorySummary
    after: MemorySummary
    residue_bytes: int
    retries: int = Field(description="times the allocator gave back its cache before an allocation succeeded")
    lost: bool = Field(description="the device was lost, and what it holds cannot be measured")


class LeaseSummary(Part):
    lease: str
    model_pass: int
    model: str
    devices: list[str]
    device_kind: str
    budget_bytes: int
    predicted_bytes: int
    budgets: dict[str, int] = Field(description="bytes by device")
    schedule: str
    streamed: bool = Field(description="the weights stayed on the host, and layers were copied as they were needed")
    warm: bool = Field(description="the host had the weights already")
    weights_bytes: int
    attach_seconds: float | None
    held_seconds: float | None = Field(
        description="null when the process died before the lease was released, and when the device is simulated"
    )
    receipts: list[ReceiptSummary]


class Mitigation(Part):
    """A step taken because something fell short, with its cause and cost."""

    model_pass: int
    batch_index: int | None = Field(
        description="batch of the pass, from 0; people are told it from 1; null where it concerns a whole lease"
    )
    rung: str = Field(description="replan, split, stream, chunk, relocate, cpu or park")
    device: str = Field(description="where it fell short")
    cause: str
    action: str
    rows: int = Field(description="distinct texts that the step concerned")
    predicted_bytes: int | None = Field(description="what the forward was predicted to take beside the weights")
    measured_bytes: int | None = Field(description="the same as free_bytes, which it was called at first")
    free_bytes: int | None = Field(default=None, description="what was free for it then")
    foreseen: bool = Field(default=False, description="it was known beforehand, and nothing failed")
    cost_seconds: float | None = Field(description="of the failure and the step; null when the device is simulated")


class PressurePassedSummary(Part):
    """A device that was short of memory computes whole batches again."""

    model_pass: int
    batch_index: int
    device: str


class CalibrationSummary(Part):
    """What the measured batches of a pass said of the memory law on a device."""

    model_pass: int
    device: str
    batches: int
    scale: float = Field(description="activations are this times what the law says")
    margin: float
    worst: float = Field(description="the largest measured / predicted of the last batches")


class DeviceSummary(Part):
    """A device of the last session."""

    name: str
    kind: str
    label: str
    total_bytes: int
    ceiling_bytes: int
    peak_occupied_bytes: int = Field(description="the most this process held, by receipts and samples")
    lost: str = Field(description="why it was lost; empty where it was not")


class ResidueSummary(Part):
    """Bytes that a released lease left behind."""

    lease: str
    device: str
    bytes: int
    action: str
    left_bytes: int


class ControlSummary(Part):
    """Something an operator asked for during the run."""

    control: str
    value: str
    who: str
    at: str = Field(description="when it was answered")
    refused: str = Field(description="why it was not done; empty where it was")


class ParkedRow(Part):
    model_pass: int
    model: str
    row: int = Field(description="place of the distinct text in the run, from 0")
    reason: str


class CacheEvent(Part):
    model: str
    source: str
    outcome: Literal["hit", "download", "refresh"]
    commit: str | None
    bytes: int
    seconds: float
    retries: int


class CollectionSummary(Part):
    name: str
    status: Status
    reason: str
    files: int
    chunks: int
    duplicates: int = Field(description="chunks whose text had been seen before; encoded once, delivered each")
    refused: int
    truncated: int = Field(description="most rows that any one model truncated")
    refusals: list[Refusal] = Field(description=f"the first {REFUSALS_TOLD}")
    refused_by_reason: dict[str, int] = Field(
        default={}, description="everything that was refused, counted by its reason"
    )
    exports: list[Artefact]
    qdrant_collection: str
    verification: Verification | None
    passes: list[PassSummary]
    leases: list[LeaseSummary] = Field(
        description="of the passes that this collection has a share in; one lease serves all collections of its pass"
    )
    mitigations: list[Mitigation]
    pressure_passed: list[PressurePassedSummary] = Field(default=[], description="how pressure ended")
    parked: list[ParkedRow]
    cache: list[CacheEvent]
    warnings: list[str] = Field(description="of all sessions, each once; texts that a model truncates are among them")


class SettingSummary(Part):
    value: Any
    origin: str = Field(description="default, file, environment, flag or Python, or the run that is continued")


class Summary(Part):
    schema_version: Literal["1"] = "1"
    run_id: str
    status: Status
    reason: str
    exit_code: int | None
    started_at: str
    finished_at: str
    seconds: float | None = Field(description="of all sessions together; null when the device is simulated")
    sessions: int
    batches_lost: int = Field(description="committed batches whose vectors did not survive a crash and were done again")
    device_kind: str
    devices: list[DeviceSummary]
    schedule: str = Field(description="the one the run ended with; `controls` says what was changed on the way")
    controls: list[ControlSummary]
    calibrations: list[CalibrationSummary]
    residues: list[ResidueSummary]
    fusion: str
    chunks: str
    collections: list[CollectionSummary]
    configuration: dict[str, SettingSummary]
    versions: dict[str, str]
    environment: dict[str, str]
    warnings: list[str]


@uncollected()
def summarise(state: RunState) -> Summary:
    """The summary of a state that has seen at least `run_started`."""
    started = state.started
    assert started is not None
    return Summary(
        run_id=started.run_id,
        status=state.status or "incomplete",
        reason=state.reason,
        exit_code=state.exit_code,
        started_at=_iso(state.began_at),
        finished_at=_iso(state.latest_at),
        seconds=round(state.elapsed, 3) if state.timed else None,
        sessions=state.session + 1,
        batches_lost=state.batches_lost,
        device_kind=state.device_kind,
        devices=[_device(gauge) for gauge in state.devices.values()],
        schedule=state.schedule,
        controls=[_control(each) for each in state.controls],
        calibrations=[CalibrationSummary.model_validate(each) for each in state.calibrations.values()],
        residues=[ResidueSummary.model_validate(residue) for residue in state.residues],
        fusion=started.fusion,
        chunks=started.chunks,
        collections=[_collection(state, collection) for collection in state.collections.values()],
        configuration={
            name: SettingSummary(value=setting.value, origin=setting.origin) for name, setting in started.config.items()
        },
        versions=state.versions,
        environment=started.environment,
        warnings=list(state.warnings),
    )


@uncollected()
def dumps(summary: Summary) -> bytes:
    """The bytes of `summary.json`."""
    return unarmed(summary.model_dump_json(indent=2).encode()) + b"\n"


def write(summary: Summary, path: Path) -> None:
    """Put the summary at `path`, whole or not at all."""
    atomic.write_bytes(path, dumps(summary))


def load(data: bytes) -> Summary:
    """Read a summary; raises pydantic's ValidationError where it breaks the schema."""
    return Summary.model_validate_json(data)


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `summary.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:interlock:summary:1",
        **Summary.model_json_schema(mode="serialization"),
    }


def schema_text() -> str:
    """The schema as it is committed."""
    return json.dumps(schema(), indent=2) + "\n"


def committed_schema() -> str:
    """The schema file that ships with the package."""
    return resources.files("interlock.engine.record").joinpath(SCHEMA_FILE).read_text()


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _collection(state: RunState, collection: Collection) -> CollectionSummary:
    shares = collection.shares.values()
    passes = set(collection.shares)
    return CollectionSummary(
        name=collection.name,
        status=collection.status or ("stopped" if state.status == "stopped" else "incomplete"),
        reason=collection.reason,
        files=collection.files,
        chunks=collection.chunks,
        duplicates=collection.duplicates,
        refused=collection.refused,
        truncated=max((share.truncated for share in shares), default=0),
        refusals=[Refusal.model_validate(refusal) for refusal in collection.refusals[:REFUSALS_TOLD]],
        refused_by_reason=collection.reasons,
        exports=[Artefact.model_validate(made) for made in collection.artefacts.values()],
        qdrant_collection=collection.qdrant_collection,
        verification=Verification.model_validate(collection.verification) if collection.verification else None,
        passes=[_pass(state, share) for share in shares],
        leases=[_lease(state, lease) for lease in state.leases.values() if lease.model_pass in passes],
        mitigations=[_mitigation(state, step) for step in collection.mitigations],
        pressure_passed=[PressurePassedSummary.model_validate(each) for each in collection.pressure_passed],
        parked=_parked(state, collection),
        cache=_cache(state),
        warnings=list(collection.warnings),
    )


def _pass(state: RunState, share: Share) -> PassSummary:
    entry = state.roster[share.model_pass]
    failure = state.failures.get(share.model_pass)
    whole = share.batches_done == share.batches
    timed = state.timed
    computed = {place: rows for place, rows in sorted(share.computed.items()) if rows}
    encoded = sum(computed.values())
    return PassSummary(
        model_pass=share.model_pass,
        model=share.model,
        commit=entry.commit,
        fingerprint=entry.fingerprint,
        dtype=joined(dtype for _, dtype in computed) or entry.dtype,
        device=joined(device for device, _ in computed) or None,
        computed=[ComputedSummary(device=name, dtype=dtype, rows=rows) for (name, dtype), rows in computed.items()],
        weight=entry.weight,
        status="completed" if whole else "failed" if failure else "incomplete",
        batches=share.batches,
        rows=encoded,
        rows_reused=share.reused,
        tokens=share.tokens,
        padding=share.padding,
        truncated_rows=share.truncated,
        truncated_tokens=share.truncated_tokens,
        seconds=round(share.seconds, 3) if timed else None,
        rows_per_second=round(encoded / share.seconds, 2) if timed and share.seconds else None,
        reason=failure.reason if failure and not whole else "",
    )


def _control(asked: Control) -> ControlSummary:
    return ControlSummary(**{**vars(asked), "at": _iso(asked.at)})


def _device(gauge: Gauge) -> DeviceSummary:
    return DeviceSummary(**asdict(gauge.facts), peak_occupied_bytes=gauge.peak_occupied, lost=gauge.lost)


def _mitigation(state: RunState, step: Mitigated) -> Mitigation:
    summary = Mitigation.model_validate(step).model_copy(update={"measured_bytes": step.free, "free_bytes": step.free})
    return summary if state.timed else summary.model_copy(update={"cost_seconds": None})


def _lease(state: RunState, lease: Lease) -> LeaseSummary:
    summary = LeaseSummary.model_validate(lease)
    if state.timed and timed(lease.device_kind):
        return summary
    return summary.model_copy(update={"attach_seconds": None, "held_seconds": None})


def _parked(state: RunState, collection: Collection) -> list[ParkedRow]:
    return [
        ParkedRow.model_validate(parked)
        for model_pass in collection.shares
        for parked in state.parked.get(model_pass, {}).get(collection.name, {}).values()
    ]


def _cache(state: RunState) -> list[CacheEvent]:
    return [
        CacheEvent(
            model=model.model,
            source=model.source,
            outcome=model.outcome,
            commit=model.commit,
            bytes=model.bytes,
            seconds=model.seconds,
            retries=sum(retry.model == model.model for retry in state.retries),
        )
        for model in state.models
    ]
