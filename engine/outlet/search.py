"""Search in an embedded store: the query is encoded as the store's manifest says, or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.lease import Lessor
from interlock.engine.intake.collections import qdrant_name
from interlock.engine.models.assets import ModelSnapshot, Policy, cached, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.outlet import shard
from interlock.engine.outlet.fusion import fuse, truncate
from interlock.engine.outlet.manifest import Member, Origin, read_manifest
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
    given: Mapping[str, Mapping[str, object]] = {},
) -> list[Hit]:
    """Return the `limit` best chunks for `query`, best first.

    `collection` is its own name or Qdrant's. The registry adds where the store's models may lie; rows that the caller
    has `given` for them are the only place, and must not say something else than the store. Raises UsageError where
    they do, for a query that is no text or a limit below 1, for a store or collection that is not there, and where a
    model here is not the one that the store was written with; UnavailableError for a model that is not there.
    """
    if not isinstance(query, str) or any("\ud800" <= sign <= "\udfff" for sign in query):
        raise UsageError(f"the query is not text: expected UTF-8, got {query!r:.100}")
    if not query.strip():
        raise UsageError("the query is empty: pass the words to look for")
    if type(limit) is not int or limit < 1:
        raise UsageError(f"--limit: expected a whole number of at least 1, got {limit!r:.100}")
    with Store.open_for_read(directory, _named(directory, collection)) as store:
        manifest = read_manifest(store.manifest, store.dims, store.sparse)
        for member in manifest.models:
            _check_row(member, given.get(member.model, {}))
        places = {key: registry[key].sources[0] for key, row in given.items() if {"source", "sources"} & row.keys()}
        origin = structs.replace(manifest.run, sources={**manifest.run.sources, **places})
        vectors = {each.model: _encode(each, origin, query, registry, policy, lessor) for each in manifest.models}
        weights = {member.model: member.weight for member in manifest.models}
        limit = min(limit, max(1, store.count()))  # the engine takes no number beyond 64 bits
        fused = fuse(manifest.fusion, list(vectors.values()), list(weights.values()))
        if fused is not None:
            return store.search("fused", fused[0], limit)
        return store.search_named({name: vector[0] for name, vector in vectors.items()}, weights, limit)


def _named(directory: Path, collection: str | None) -> str:
    """The name in Qdrant of the collection that is meant; that of the only one where none is named."""
    names = shard.collections(directory)
    if collection is not None:
        own = "/" not in collection and collection not in names and qdrant_name(collection) in names
        return qdrant_name(collection) if own else collection
    if not names:
        raise UsageError(f"{directory} has no collection: name the --qdrant directory of a run")
    if len(names) > 1:
        raise UsageError(f"{directory} has {len(names)} collections: choose one with --collection ({', '.join(names)})")
    return names[0]


def _check_row(member: Member, row: Mapping[str, object]) -> None:
    """Raise UsageError for a row that would have a model encode otherwise than the store's texts were."""
    for name in ("max_tokens", "document_prompt", "query_prompt"):
        if row.get(name) is not None and row[name] != getattr(member, name):
            raise UsageError(
                f"[models.{member.model}] {name} is {row[name]!r:.100}, but the store was written with "
                f"{getattr(member, name)!r:.100}: drop it from the row, or deliver again"
            )


def _encode(
    member: Member, origin: Origin, query: str, registry: Mapping[str, ModelSpec], policy: Policy, lessor: Lessor
) -> Vectors:
    """The query's vector [1, dim] by one model of the store, encoded as its vectors were; the registry only adds where
    else the model's files may lie."""
    kind, known = lessor.devices[0].kind, registry.get(member.model)
    spec = ModelSpec(
        member.model,
        tuple(dict.fromkeys((origin.sources[member.model], *(known.sources if known else ())))),
        revision=origin.commits[member.model] or (known.revision if known else "main"),
        max_tokens=member.max_tokens,
        pickle_sha256=known.pickle_sha256 if known else None,
        allow_pickle=bool(known and known.allow_pickle),
        document_prompt=member.document_prompt,
        query_prompt=member.query_prompt,
        dtype={kind: "float32" if member.dtype == "float16" else member.dtype},  # a CPU is 100 times slower in halves
    )
    card = read_card(spec, _snapshot(member, spec, registry, policy), kind)
    whole = encode_texts(card, [query], member.query_prompt, lessor)
    return truncate(whole, member.dim) if member.dim < whole.shape[1] else np.asarray(whole, np.float32)


def _snapshot(member: Member, spec: ModelSpec, registry: Mapping[str, ModelSpec], policy: Policy) -> ModelSnapshot:
    """The store's own model: what lies here before what has to be fetched, another one with its key never."""
    others: list[ModelSnapshot] = []
    known = registry.get(spec.key)
    alone = [replace(spec, sources=(source,)) for source in spec.sources]  # at the store's commit ...
    if known and known.revision != spec.revision:  # ... and as the registry has it
        alone += [replace(one, revision=known.revision) for one in alone if one.sources[0] in known.sources]
    here = [one for one in alone if cached(one)]
    for one in here:
        snapshot = resolve(one, policy, lambda _: None)
        if snapshot.fingerprint == member.fingerprint:  # which decides; a commit or a place may differ
            return snapshot
        others.append(snapshot)
    held = {source for one in here for source in one.sources}
    # What lies here is another model, so asking for it again would never fetch the right one.
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


def _another(member: Member, others: Sequence[ModelSnapshot]) -> UsageError:
    here = ", ".join(f"{other.fingerprint[:12]} from {other.source}" for other in others)
    return UsageError(
        f"the store was written with another {member.model} (fingerprint {member.fingerprint[:12]}, this "
        f"machine has {here}): install that one, or deliver again"
    )
