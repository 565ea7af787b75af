"""What Python passes as settings of a run. Made from `engine/knobs.py` by `make generate`; do not edit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """What a run may be told, by value; None leaves a setting to the environment, the file or its default."""

    roster: Mapping[str, float] | Mapping[Path, float] | Sequence[str | Path] | None = field(default=None, hash=False)
    sparse: Sequence[str] | None = field(default=None, hash=False)
    token_vectors: Sequence[str] | None = field(default=None, hash=False)
    token_precision: Literal["int8", "float16", "bit"] | None = None
    token_pooling: int | None = None
    collections: Sequence[str] | None = field(default=None, hash=False)
    shard: str | None = None
    text_field: str | Sequence[str] | None = field(default=None, hash=False)
    id_field: str | Sequence[str] | None = field(default=None, hash=False)
    title_field: str | Sequence[str] | None = field(default=None, hash=False)
    dim: int | None = None
    fusion: Literal["concat", "named", "mean"] | None = None
    keep: Literal["fused", "members", "both"] | None = None
    project: int | None = None
    quantise: Literal["none", "int8"] | None = None
    compact: bool | None = None
    payload: Literal["nested", "flat"] | None = None
    offline: bool | None = None
    refresh_models: bool | None = None
    allow_pickle: Sequence[str] | None = field(default=None, hash=False)
    devices: str | Sequence[str] | None = field(default=None, hash=False)
    cluster: str | None = None
    min_nodes: int | None = None
    node_resources: str | None = None
    wait: str | None = None
    window: int | Literal["shared"] | None = None
    cpu_fallback: bool | None = None
    warm: int | str | None = None
    threads: int | None = None
    precision: Literal["auto", "float32", "bfloat16", "int8"] | None = None
    ceiling: int | str | None = None
    host_ceiling: int | str | None = None
    margin: int | str | None = None
    faults: Sequence[str] | None = field(default=None, hash=False)
    export: Sequence[Literal["npy", "parquet", "jsonl"]] | None = field(default=None, hash=False)
    qdrant: str | PathLike[str] | None = None
    prune: bool | None = None
    bm25: str | None = None
    chunk_sparse: str | None = None
    out: str | PathLike[str] | None = None
    run_id: str | None = None
    resume: bool | None = None
    deadline: str | None = None
    reuse: str | PathLike[str] | None = None
    allow_missing: bool | None = None
    max_refused: str | None = None
    retry_parked: bool | None = None
    strict: bool | None = None


BESIDE = (
    "alias api_key_file collection copy exact grpc_port hybrid incremental limit measures missing model only "
    "patience projection qrels quantisation queries query replicas rerank rerank_depth rerank_share run_out seed "
    "settle shards sparse_share split streams vector_type weights write_consistency "
)
"""What else Python takes, by the names of its flags."""
RENAMED = {"filter": "where", "index": "indexes", "shared": "window"}
"""Flags that Python knows by another name."""
