"""Sample events: one of each kind with plausible values, for the page of messages and its tests."""

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from interlock.engine.record import events as ev

SAMPLES: dict[str, Any] = {
    "model": "bge-m3", "models": "bge-m3", "collection": "Handbook", "qdrant_collection": "handbook",
    "node": "node-2", "device": "cuda:0", "devices": "cuda:0", "name": "cuda:0", "label": "Tesla T4",
    "kind": "cuda", "device_kind": "cuda", "attempt": 1,
    "run_id": "20261122-120000", "chunks": "chunks", "lease": "L001", "schedule": "exclusive", "model_pass": 1,
    "batch_index": 13, "row": 41, "source": "hf:BAAI/bge-m3", "commit": "5617a9f61b028005a4858fdac845db406aefb181",
    "file": "2021/q3_chunks.json", "record": 17, "path": "exports/Handbook/fused.npy", "store": "store",
    "who": "kim", "control": "schedule", "value": "shared", "rung": "split", "dtype": "float16", "weight": 0.6,
    "cause": "out of memory (2 texts, at most 512 tokens each: needs 1.1 GiB, 1.0 GiB free)",
    "action": "computing each half separately", "predicted_bytes": 1088 << 20, "free_bytes": 1 << 30,
    "measured_bytes": None, "budget_bytes": 4 << 30, "total_bytes": 15 << 30, "ceiling_bytes": 12 << 30,
    "bytes": 46 << 20, "left_bytes": 2 << 20, "allocated": 2 << 30, "occupied": 3 << 30, "residue_bytes": 0,
    "scale": 0.982, "margin": 0.046, "worst": 1.013, "held_seconds": 72.4, "seconds": 7.1, "cost_seconds": 0.412,
    "wait_seconds": 1.4, "message": "torch was 2.12, is now 2.13: the last bits of vectors may differ",
    "detail": "321 points (321 expected, 0 stale)", "worst_cosine": 1.0, "exit_code": 0, "lost": False,
    "fingerprint": "", "plan": "", "digest": "", "sha256": "",
}  # fmt: skip
"""What fields hold in the samples; numbers that are not here are counts."""
OWN: dict[tuple[type[Struct], str], Any] = {
    (ev.RecordRefused, "reason"): "the text is empty",
    (ev.DeviceLost, "reason"): "unspecified launch failure",
    (ev.NodeJoined, "label"): "ws-2",
    (ev.NodeJoined, "sent_bytes"): 91 << 20,
    (ev.NodeLost, "reason"): "no answer for 30 s",
    (ev.NodeRefused, "reason"): "interlock is 0.3.0 there, 0.4.0 here",
    (ev.BatchesDoubled, "other"): "node-1",
    (ev.ControlReached, "control"): "pause",
    (ev.ControlReached, "value"): "yes",
    (ev.DownloadRetried, "reason"): "read timed out",
    (ev.ControlRefused, "reason"): "the roster has only one model",
    (ev.RowParked, "reason"): "not finite",
    (ev.PassFailed, "reason"): "cannot read vectors.npy: Input/output error",
    (ev.CollectionClosed, "reason"): "",
    (ev.RunClosed, "reason"): "",
    (ev.RowsReused, "source"): "runs/20261121-120000",
    (ev.CanaryChecked, "outcome"): "passed",
    (ev.CanaryChecked, "cosine"): 0.99996,
    (ev.CanaryChecked, "least"): 0.999,
    (ev.CanaryChecked, "rows"): 8,
    (ev.CanaryChecked, "tokens"): 1204,
    (ev.CanaryChecked, "attention"): "memory-efficient",
    (ev.CanaryChecked, "reference"): "float32 on cuda:0",
    (ev.CanaryChecked, "detail"): "",
    (ev.CanaryChecked, "action"): "",
    (ev.CanaryChecked, "remembered"): False,
    (ev.CanaryChecked, "streamed"): False,
    (ev.CanaryChecked, "seconds"): 0.6,
    (ev.RunClosed, "mitigations"): 0,
    (ev.DeadlineSet, "asked"): "8h30m",
    (ev.DeadlineSet, "seconds"): 30600.0,
    (ev.DeadlineSet, "ends"): 1795430400.0,
    (ev.DeadlineSet, "partial"): True,
    (ev.VectorsKept, "place"): "store/handbook",
    (ev.DiskLow, "place"): "runs",
    (ev.VectorsKept, "bytes"): 388,
    (ev.VectorsKept, "neighbours"): 0.9834,
    (ev.ResidueFound, "action"): "still referenced by dict",
}
"""What fields of one event hold."""


def sample(kind: type[Struct], count: int) -> Any:
    """An event with plausible values, `count` of everything that is counted."""
    hints = get_type_hints(kind)
    return kind(**{item.name: _value(kind, item.name, hints[item.name], count) for item in fields(kind)})


def _value(kind: type[Struct], name: str, hint: Any, count: int) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if (kind, name) in OWN:
        return OWN[kind, name]
    if origin is list and isinstance(args[0], type) and issubclass(args[0], Struct):
        return [sample(args[0], count)] * min(count, 2)
    if origin is list:
        return [SAMPLES.get(name, number) for number in range(min(count, 3))] if count else []
    if origin is dict:
        return {}
    if name in SAMPLES and (hint not in (int, float, str) or isinstance(SAMPLES[name], hint)):
        return SAMPLES[name]
    if origin in (Union, types.UnionType):
        return _value(kind, name, args[0], count)
    if origin is Literal:
        return args[0]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return sample(hint, count)
    return {str: "", int: count, float: 1.5, bool: True, bytes: b""}.get(hint, "")
