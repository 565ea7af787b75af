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
    text_field: str | Sequence[str] | None = field(default=None, hash=False)
    id_field: str | Sequence[str] | None = field(default=None, hash=False)
    title_field: str | Sequence[str] | None = field(default=None, hash=False)
    dim: int | None = None
    fusion: Literal["concat", "named", "mean"] | None = None
    keep: Literal["fused", "members", "both"] | None = None
    project: int | None = None
    quantise: Literal["none", "int8", "binary"] | None = None
    payload: Literal["nested", "flat"] | None = None
    offline: bool | None = None
    refresh_models: bool | None = None
    allow_pickle: Sequence[str] | None = field(default=None, hash=False)
    devices: str | Sequence[str] | None = field(default=None, hash=False)
    cluster: str | None = None
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


ARGUMENTS = {
    "alias": "alias",
    "allow-missing": "allow_missing",
    "allow-pickle": "allow_pickle",
    "api-key-file": "api_key_file",
    "bm25": "bm25",
    "ceiling": "ceiling",
    "chunk-sparse": "chunk_sparse",
    "cluster": "cluster",
    "collection": "collection",
    "collections": "collections",
    "copy": "copy",
    "cpu-fallback": "cpu_fallback",
    "deadline": "deadline",
    "devices": "devices",
    "dim": "dim",
    "exact": "exact",
    "export": "export",
    "faults": "faults",
    "filter": "where",
    "fusion": "fusion",
    "grpc-port": "grpc_port",
    "host-ceiling": "host_ceiling",
    "hybrid": "hybrid",
    "id-field": "id_field",
    "incremental": "incremental",
    "index": "indexes",
    "keep": "keep",
    "limit": "limit",
    "margin": "margin",
    "max-refused": "max_refused",
    "measures": "measures",
    "missing": "missing",
    "model": "model",
    "offline": "offline",
    "only": "only",
    "out": "out",
    "patience": "patience",
    "payload": "payload",
    "precision": "precision",
    "project": "project",
    "projection": "projection",
    "prune": "prune",
    "qdrant": "qdrant",
    "qrels": "qrels",
    "quantisation": "quantisation",
    "quantise": "quantise",
    "queries": "queries",
    "query": "query",
    "refresh-models": "refresh_models",
    "replicas": "replicas",
    "rerank": "rerank",
    "rerank-depth": "rerank_depth",
    "rerank-share": "rerank_share",
    "resume": "resume",
    "retry-parked": "retry_parked",
    "reuse": "reuse",
    "roster": "roster",
    "run-id": "run_id",
    "run-out": "run_out",
    "seed": "seed",
    "settle": "settle",
    "shards": "shards",
    "shared": "window",
    "sparse": "sparse",
    "sparse-share": "sparse_share",
    "split": "split",
    "strict": "strict",
    "text-field": "text_field",
    "threads": "threads",
    "title-field": "title_field",
    "token-pooling": "token_pooling",
    "token-precision": "token_precision",
    "token-vectors": "token_vectors",
    "vector-type": "vector_type",
    "warm": "warm",
    "weights": "weights",
    "window": "window",
    "write-consistency": "write_consistency",
}
"""What a flag of the command line is called in Python."""
