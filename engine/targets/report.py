"""What an upload is asked for, what it would send, and what it came to. Plain data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from interlock.engine.targets.layout import Quantisation, VectorType


@dataclass(frozen=True)
class UploadOptions:
    """How a collection is to be on the server; `settle` is how many seconds its indexes may take, `grpc_port` where
    points may go over gRPC (0: nowhere), `prune` whether points of earlier uploads that are not of the run are removed.
    """

    alias: str = ""
    indexes: Mapping[str, str] = field(default_factory=dict)
    vector_type: VectorType = "float32"
    quantisation: Quantisation = "none"
    settle: float = 3600.0
    grpc_port: int = 0
    prune: bool = False


@dataclass(frozen=True)
class UploadHearing:
    """Who is told how many rows of how many are there, and in words what else is worth knowing."""

    progress: Callable[[int, int], object] = lambda done, rows: None
    told: Callable[[str], object] = lambda text: None


class UploadPlan(Struct, frozen=True, kw_only=True):
    """What an upload would send, and how its collection would be made; where it is asked to prune, how many points it
    would remove, how many more are neither of the run nor of an upload, and why none can be told (`unread`)."""

    collection: str
    alias: str
    points: int
    requests: int
    bytes: int
    configuration: dict[str, Any]
    prunable: int | None = None
    foreign: int | None = None
    unread: str = ""


class UploadReport(Struct, frozen=True, kw_only=True):
    """What an upload came to: `rows` are those of the run, all of them found there by their ids; `points` all that the
    collection holds, of which `stale` are not of the run; `sent` are those that this process sent, and `transport`
    how: grpc, rest, grpc+rest, or none; `pruned` are those that it removed, and `foreign` those that no upload put
    there, where it was asked to prune."""

    schema_version: str = "1"
    url: str
    server_version: str
    collection: str
    alias: str
    previous: str
    run_id: str
    fingerprint: str
    rows: int
    points: int
    stale: int
    pruned: int
    foreign: int | None
    compared: int
    worst_cosine: float | None
    sent: int
    transport: str
    requests: int
    retries: int
    bytes: int
    seconds: float
    finished_at: str
    configuration: dict[str, Any]
