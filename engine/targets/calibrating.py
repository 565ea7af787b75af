"""Weights that an evaluation chose, written where a search finds them: into the manifest of a store."""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.targets import shard
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CalibratedWeights, read_manifest


def is_store(path: Path) -> bool:
    """Whether the directory is a collection of a store."""
    return (path / shard.MANIFEST).is_file()


def calibrate(path: Path, run_id: str, weights: Mapping[str, float], queries: int) -> CalibratedWeights:
    """Have questions to the collection at `path` count its dense models by `weights`, which so many judged
    `queries` chose, where nobody says otherwise. Returns what was written: the manifest, whole or not at all.

    Raises UsageError for a collection that is damaged, in use, written by another run than `run_id`, or such that no
    other weights can be asked of it, and for weights that are not those of its models.
    """
    with shard.holding(path, fcntl.LOCK_EX):
        plain, dims = shard.read_manifest(path), shard.read_dims(path)
        manifest = read_manifest(plain, dims, shard.read_sparse(path), shard.read_tokens(path))
        if manifest.run.run_id != run_id:
            raise UsageError(
                f"{path} keeps its weights: run {manifest.run.run_id} wrote it after {run_id}, which was judged: name "
                "that one"
            )
        if manifest.fusion is Fusion.MEAN and not {member.model for member in manifest.models} <= dims.keys():
            raise UsageError(
                f"{path} keeps its weights: --fusion {Fusion.MEAN} mixed its models for good: use --fusion "
                f"{Fusion.CONCAT} or --keep both in another run"
            )
        chosen = CalibratedWeights(weights=dict(weights), before=manifest.weights, queries=queries)
        try:
            chosen.check([member.model for member in manifest.models])
        except ValueError as error:
            raise UsageError(f"cannot calibrate {path} ({error}): name the run that wrote it") from None
        shard.write_manifest(path, {**plain, "calibrated": json.loads(msgspec.json.encode(chosen))})
    return chosen
