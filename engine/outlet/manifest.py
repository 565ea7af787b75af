"""What the vectors of a store mean: the models, weights and prompts that a query must be encoded with."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from engine.errors import UsageError
from engine.models.registry import Precision
from engine.outlet.fusion import Fusion
from engine.record.events import RosterEntry


class Member(Struct, frozen=True, kw_only=True):
    """A model as it has to be for a query: everything but where its files come from."""

    model: str
    weight: float
    fingerprint: str
    dim: int
    dtype: Precision
    max_tokens: int
    query_prompt: str
    document_prompt: str


class Origin(Struct, frozen=True, kw_only=True):
    """Which run wrote last, and where its models came from; may differ between two writers."""

    run_id: str
    sources: dict[str, str]
    commits: dict[str, str | None]


class Manifest(Struct, frozen=True, kw_only=True):
    schema_version: str
    collection: str
    fusion: str
    models: list[Member]
    run: Origin


def manifest_of(collection: str, fusion: Fusion, roster: Sequence[RosterEntry], run_id: str) -> Mapping[str, object]:
    """The manifest of a collection, as plain JSON."""
    members = [msgspec.convert(msgspec.to_builtins(entry), Member) for entry in roster]
    origin = Origin(
        run_id=run_id,
        sources={entry.model: entry.source for entry in roster},
        commits={entry.model: entry.commit for entry in roster},
    )
    manifest = Manifest(schema_version="1", collection=collection, fusion=str(fusion), models=members, run=origin)
    plain: dict[str, object] = msgspec.to_builtins(manifest)
    return plain


def read_manifest(plain: Mapping[str, object]) -> Manifest:
    """The manifest of a store. Raises UsageError for one that this version cannot read."""
    try:
        return msgspec.convert(plain, Manifest)
    except msgspec.ValidationError as error:
        raise UsageError(f"the store's manifest cannot be read ({error}): was it written by another version?") from None
