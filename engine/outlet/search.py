"""Search in an embedded store: the query is encoded as the store's manifest says, or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import ModelSnapshot, Policy, cached, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.outlet import shard
from interlock.engine.outlet.fusion import fuse, truncate
from interlock.engine.outlet.manifest import Manifest, Member, read_manifest
from interlock.engine.outlet.qdrant import Hit, Store
from interlock.engine.passes.encoder import Vectors, encode_texts


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
        manifest = read_manifest(store.manifest, store.dims)
        vectors = {
            member.model: _encode(member, manifest, query, registry, policy, lessor) for member in manifest.models
        }
        weights = {member.model: member.weight for member in manifest.models}
        fused = fuse(manifest.fusion, list(vectors.values()), list(weights.values()))
        if fused is not None:
            return store.search("fused", fused[0], limit)
        return store.search_named({name: vector[0] for name, vector in vectors.items()}, weights, limit)


def _only(directory: Path) -> str:
    """The one collection of a store."""
    held = shard.collections(directory)
    if not held:
        raise UsageError(f"{directory} has no collection: name the --qdrant directory of a run")
    if len(held) > 1:
        raise UsageError(f"{directory} has {len(held)} collections: choose one with --collection ({', '.join(held)})")
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
    kind = lessor.devices[0].kind
    spec = _spec(member, manifest, registry, kind)
    return read_card(spec, _snapshot(member, spec, registry, policy), kind)


def _spec(member: Member, manifest: Manifest, registry: Mapping[str, ModelSpec], kind: str) -> ModelSpec:
    """The model as the store's vectors were encoded; the registry only adds where else its files may lie."""
    known = registry.get(member.model)
    written_from = manifest.run.sources[member.model]
    others = known.sources if known else ()
    return ModelSpec(
        member.model,
        tuple(dict.fromkeys((written_from, *others))),
        revision=manifest.run.commits[member.model] or (known.revision if known else "main"),
        max_tokens=member.max_tokens,
        document_prompt=member.document_prompt,
        query_prompt=member.query_prompt,
        dtype={kind: "float32" if member.dtype == "float16" else member.dtype},  # a CPU is 100 times slower in halves
    )


def _snapshot(member: Member, spec: ModelSpec, registry: Mapping[str, ModelSpec], policy: Policy) -> ModelSnapshot:
    """The store's own model: what lies here before what has to be fetched, another one with its key never."""
    others: list[ModelSnapshot] = []
    here = [each for each in _alone(spec, registry) if cached(each)]
    for each in here:
        snapshot = resolve(each, policy, lambda _: None)
        if snapshot.fingerprint == member.fingerprint:
            return snapshot
        others.append(snapshot)
    held = {source for each in here for source in each.sources}
    absent = replace(spec, sources=tuple(source for source in spec.sources if source not in held))
    try:
        fetched = resolve(absent, policy, lambda _: None)
    except UnavailableError:
        if not others:
            raise
        raise _another(member, others) from None
    if fetched.fingerprint != member.fingerprint:
        raise _another(member, [*others, fetched])
    return fetched


def _alone(spec: ModelSpec, registry: Mapping[str, ModelSpec]) -> list[ModelSpec]:
    """Each source by itself: at the store's commit, and as the registry has it."""
    known = registry.get(spec.key)
    alone = [replace(spec, sources=(source,)) for source in spec.sources]
    if known and known.revision != spec.revision:
        alone += [replace(each, revision=known.revision) for each in alone if each.sources[0] in known.sources]
    return alone


def _another(member: Member, found: Sequence[ModelSnapshot]) -> UsageError:
    here = ", ".join(f"{each.fingerprint[:12]} from {each.source}" for each in found)
    return UsageError(
        f"the store was written with another {member.model} (fingerprint {member.fingerprint[:12]}, this "
        f"machine has {here}): install that one, or deliver again"
    )
