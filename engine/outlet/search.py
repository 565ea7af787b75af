"""Search in an embedded store: the query is encoded as the store's manifest says, or not at all."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.errors import UsageError
from engine.gpu.lease import Lessor
from engine.models.assets import Policy, resolve
from engine.models.card import ModelCard, read_card
from engine.models.registry import ModelSpec
from engine.outlet import shard
from engine.outlet.fusion import Fusion, fuse, truncate
from engine.outlet.manifest import Manifest, Member, read_manifest
from engine.outlet.qdrant import Hit, Store
from engine.passes.encoder import Vectors, encode_texts


def search(
    directory: Path,
    collection: str | None,
    query: str,
    limit: int,
    registry: Mapping[str, ModelSpec],
    policy: Policy,
    lessor: Lessor,
) -> list[Hit]:
    """The `limit` best chunks for `query`, best first.

    Raises UsageError for a store or collection that is not there, UnavailableError for a model that is not, and
    UsageError where a model here is not the one that the store was written with.
    """
    with Store.open_for_read(directory, collection or _only(directory)) as store:
        manifest = read_manifest(store.manifest)
        vectors = {
            member.model: _encode(member, manifest, query, registry, policy, lessor) for member in manifest.models
        }
        weights = {member.model: member.weight for member in manifest.models}
        fused = fuse(Fusion(manifest.fusion), list(vectors.values()), list(weights.values()))
        if fused is not None:
            return store.search("fused", fused[0], limit)
        return store.search_named({name: vector[0] for name, vector in vectors.items()}, weights, limit)


def _only(directory: Path) -> str:
    """The one collection of a store."""
    held = shard.collections(directory)
    if len(held) != 1:
        listed = ", ".join(held) or "none"
        raise UsageError(f"{directory} holds {len(held)} collections ({listed}): choose one with --collection")
    return held[0]


def _encode(
    member: Member,
    manifest: Manifest,
    query: str,
    registry: Mapping[str, ModelSpec],
    policy: Policy,
    lessor: Lessor,
) -> Vectors:
    """The query's vector [1, dim] by one model of the store."""
    card = _card(member, manifest, registry, policy, lessor)
    whole = encode_texts(card, [query], member.query_prompt, lessor)
    return truncate(whole, member.dim) if member.dim < whole.shape[1] else np.asarray(whole, np.float32)


def _card(
    member: Member, manifest: Manifest, registry: Mapping[str, ModelSpec], policy: Policy, lessor: Lessor
) -> ModelCard:
    source = manifest.run.sources[member.model]
    commit = manifest.run.commits[member.model]
    spec = registry.get(member.model) or ModelSpec(member.model, (source,), revision=commit or "main")
    snapshot = resolve(spec, policy, lambda _: None)
    if snapshot.fingerprint != member.fingerprint:
        raise UsageError(
            f"the store was written with another {member.model} (fingerprint {member.fingerprint[:12]}, here "
            f"{snapshot.fingerprint[:12]} from {snapshot.source}): bring that one, or deliver again"
        )
    card = read_card(spec, snapshot, lessor.devices[0].kind)
    return replace(card, max_tokens=member.max_tokens)
