"""What the vectors of a store mean: the models, weights and prompts that a query must be encoded with."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from interlock.engine.errors import UsageError
from interlock.engine.models.registry import Precision, check_key
from interlock.engine.outlet.fusion import Fusion, delivered
from interlock.engine.record.compare import differences, few
from interlock.engine.record.facts import RosterEntry


class SparseMember(Struct, frozen=True, kw_only=True):
    """A sparse model as it has to be for a query; `dim` is the size of its vocabulary."""

    model: str
    fingerprint: str
    dim: Annotated[int, Meta(ge=1)]
    dtype: Precision
    max_tokens: Annotated[int, Meta(ge=1)]
    query_prompt: str
    document_prompt: str


class Member(SparseMember, frozen=True, kw_only=True):
    """A dense model as it has to be for a query: everything but where its files come from."""

    weight: Annotated[float, Meta(gt=0, le=1)]


class Origin(Struct, frozen=True, kw_only=True):
    """Which run wrote last, and where its models came from; may differ between two writers."""

    run_id: str
    sources: dict[str, str]
    commits: dict[str, str | None]


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store holds; one without sparse vectors says nothing of them, and reads as it always did."""

    schema_version: str
    collection: str
    fusion: Fusion
    models: Annotated[list[Member], Meta(min_length=1)]
    sparse: list[SparseMember] = []
    run: Origin


def manifest_of(collection: str, fusion: Fusion, roster: Sequence[RosterEntry], run_id: str) -> Mapping[str, object]:
    """Make the manifest of a collection, as plain JSON."""
    members = [msgspec.convert(msgspec.to_builtins(entry), Member) for entry in roster if entry.kind == "dense"]
    others = [msgspec.convert(msgspec.to_builtins(entry), SparseMember) for entry in roster if entry.kind == "sparse"]
    origin = Origin(
        run_id=run_id,
        sources={entry.model: entry.source for entry in roster},
        commits={entry.model: entry.commit for entry in roster},
    )
    manifest = Manifest(
        schema_version="1", collection=collection, fusion=fusion, models=members, sparse=others, run=origin
    )
    plain: dict[str, object] = msgspec.to_builtins(manifest)
    return plain


def read_manifest(plain: Mapping[str, object], dims: Mapping[str, int], sparse: Collection[str] = ()) -> Manifest:
    """Read the manifest of a store whose dense vectors have these dimensions by name, and with these sparse ones.

    Raises UsageError for one that this version cannot read, that contradicts itself, or that is not of these vectors.
    """
    try:
        manifest = msgspec.convert(plain, Manifest)
        widths = {member.model: member.dim for member in manifest.models}
        terms = {member.model for member in manifest.sparse}
        if len(widths | dict.fromkeys(terms)) < len(manifest.models) + len(manifest.sparse):
            raise ValueError("it lists a model twice")
        for name in (*widths, *sorted(terms)):
            check_key(name)
            if not manifest.run.sources.keys() & manifest.run.commits.keys() >= {name}:
                raise ValueError(f"it lacks the sources of {name}")
        if faults := list(differences(dict(dims), delivered(manifest.fusion, widths))):
            raise ValueError(f"its vectors do not match the store: {few(faults)}")
        if terms != set(sparse):
            raise ValueError(f"its sparse vectors do not match the store: {few(sorted(terms ^ set(sparse)))}")
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(
            f"cannot read the store's manifest ({error}): it is damaged or from another version; restore it "
            "from a copy, or deliver again"
        ) from None
    return manifest
